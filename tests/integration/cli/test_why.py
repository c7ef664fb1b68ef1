"""`why` in more than 40 situations, live and afterwards: the command line and the REST API of the pages give the same text.

The sentences themselves are tested in tests/unit/deciding/test_why.py.
"""

import re
from typing import Any

import pytest
from support.rest import Rest
from support.scenario import Scenario, dag

from paceline.exceptions import NotFoundError
from paceline.states import Branched, TaskState
from scheduler.store.db.database import transact
from scheduler.store.read import history
from scheduler.store.worker.claims import Ending

from . import situations as of
from .conftest import Cli
from .situations import NOTHING, Place, Situation, after_waiting, ended, nothing, through

RIGHT_ENDS = "Scheduled by .*, because right ended"
SITUATIONS: dict[str, Situation] = {
    "an upstream task runs": Situation(
        build=of.upstream(left="success", right="running"), solve=of.after_upstream, after=RIGHT_ENDS,
        live=("It waits for upstream task right (running); its trigger rule is all_success.",)),
    "two upstream tasks are undecided": Situation(
        build=of.upstream(), solve=of.after_upstream, after=RIGHT_ENDS,
        live=("It waits for upstream tasks left (none), right (none); its trigger rule is all_success.",)),
    "an upstream task waits for its retry": Situation(
        build=of.upstream(left="success", right="up_for_retry"), solve=of.after_upstream, after=RIGHT_ENDS,
        live=("It waits for upstream task right (up_for_retry); its trigger rule is all_success.",)),
    "one success is enough": Situation(
        build=of.one_of_them, solve=of.after_upstream, after=RIGHT_ENDS,
        live=("It waits for upstream task right (running); its trigger rule is one_success.",)),
    "half of a mapped upstream task has ended": Situation(
        build=of.mapped_upstream, solve=of.after_upstream, after="Scheduled by .*, because (left|right) ended",
        live=("It waits for upstream task left (1 of 2 instances ended: 1 none, 1 success); its trigger rule is all_success.",)),
    "its setup runs": Situation(
        build=of.its_setup, solve=through(), after="Scheduled by ", live=("It waits for its setup task up (running).",)),
    "a teardown waits for the work": Situation(
        build=of.its_scope, solve=through(), after="Scheduled by ",
        live=("It is a teardown and waits for left (running) between its setup and itself.",)),
    "the list to map over is not there": Situation(
        build=of.a_result, solve=through(), after="Scheduled by ",
        live=("It is not expanded yet: it waits for the result of left (running).",)),
    "depends_on_past": Situation(
        build=of.the_past(), solve=through(), after="Scheduled by ",
        live=("It waits for the previous run: depends_on_past: load of the previous run, zero, is failed.",)),
    "wait_for_downstream": Situation(
        build=of.the_past(wait_for_downstream=True), solve=through(), after="Scheduled by ",
        live=("It waits for the previous run: wait_for_downstream: below of the previous run, zero, is failed.",)),
    "its pool is full": Situation(
        build=of.pool(1), solve=after_waiting(),
        after="Waited 4. s for pool 'db' with 1 of 1 slot in use by d.left of run 'one', then queued by s#1",
        live=("Pool 'db' is full: 1 of 1 slot is in use, held by d.left of run 'one'.",)),
    "its pool has too few free slots": Situation(
        build=of.pool(3, needs=2, held=2), solve=after_waiting(),
        after=r"Waited 4. s for pool 'db' with 2 of 3 slots in use by d.left of run 'one' \(2 slots\), then queued by s#1",
        live=("Pool 'db' has 1 free, and it needs 2: 2 of 3 slots are in use, held by d.left of run 'one' (2 slots).",)),
    "its pool is too small for it": Situation(
        build=of.pool(1, needs=2, held=0), solve=after_waiting(), after="Waited 4. s for pool 'db' with 0 of 1 slot in use, then",
        live=("It needs 2 slots and pool 'db' has 1 in all, so it can never run: enlarge the pool.",)),
    "its pool is closed": Situation(
        build=of.pool(0, held=0), solve=after_waiting(), after="Waited 4. s for pool 'db' with 0 of 0 slots in use, then",
        live=("It needs 1 slot and pool 'db' has 0 in all, so it can never run: enlarge the pool.",)),
    "its pool does not exist": Situation(
        build=of.pool(None, held=0), solve=after_waiting(), after="Waited 4. s for pool 'db', which does not exist, then queued",
        live=("There is no pool 'db': create it with `paceline pools set db SLOTS`.",)),
    "another one holds its place in line": Situation(
        build=of.reserved, solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("d.right of run 'one' ranks higher, needs 3 slots of pool 'db' and holds its place in line while 1 is free "
              "(scheduler.pool_reservation).",)),
    "another one ranks higher": Situation(
        build=of.pool(2, state="scheduled", rank=5), solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("1 task instance of higher rank waits in pool 'db' before it.",)),
    "a deferred one holds the slot": Situation(
        build=of.pool(1, state="deferred", deferred=True), solve=after_waiting(), after="Waited 4. s ",
        live=("Pool 'db' is full: 1 of 1 slot is in use, held by d.left of run 'one'.",)),
    "a deferred one holds no slot": Situation(
        build=of.pool(1, state="deferred"), solve=after_waiting(), after="Waited 4. s in line, then queued", live=(NOTHING,)),
    "max_active_tasks": Situation(
        build=of.limits({}, max_active_tasks=1), solve=after_waiting(),
        after="Waited 4. s for max_active_tasks: 1 of 1 was active, then queued",
        live=("The limit max_active_tasks is reached: 1 of 1.",)),
    "max_active_tis_per_dag": Situation(
        build=of.limits({"max_active_tis_per_dag": 1}, runs=("zero", "one")), solve=after_waiting(),
        after="Waited 4. s for max_active_tis_per_dag: 1 of 1 was active, then queued",
        live=("The limit max_active_tis_per_dag is reached: 1 of 1.",)),
    "nothing is in the way": Situation(
        build=of.in_state("scheduled"), solve=after_waiting(), after="Waited 4. s in line, then queued", live=(NOTHING,)),
    "no worker listens to its queue": Situation(
        build=of.queue(workers=0), solve=after_waiting(),
        after="Waited 4. s for queue 'q', which no worker listened to, then queued",
        live=("No live worker listens to queue 'q': start one with `paceline worker -q q`.",)),
    "its queue is full": Situation(
        build=of.queue(workers=1, queued=33), solve=after_waiting(),
        after="Waited 4. s for queue 'q' with 0 running and 33 queued for 1 place, then queued",
        live=("Queue 'q' is full: 33 queued and 0 running for 1 worker slot.",)),
    "its message is not sent": Situation(
        build=of.queue(workers=1, state="queued", dispatched_at=None), solve=after_waiting(since="queued"),
        after="Waited 4. s in queue 'q', then started by w#",
        live=("It was queued … ago and no worker has taken it: if its message was lost, a scheduler sends it again.",)),
    "all workers are busy": Situation(
        build=of.queue(workers=1, running=1, state="queued", dispatched_at="2025-01-01T00:00:00Z"),
        solve=after_waiting(since="queued"), after="Waited 4. s in queue 'q', whose 1 place was taken, then started by w#",
        live=("No worker has taken its message from queue 'q' yet: it was queued … ago, and 0 messages were queued before it.",
              "The only worker slot of queue 'q' is busy.")),
    "no worker takes its message": Situation(
        build=of.queue(workers=0, state="queued", dispatched_at="2025-01-01T00:00:00Z"), solve=after_waiting(since="queued"),
        after="Waited 4. s in queue 'q', which no worker listened to, then started by w#",
        live=("No worker has taken its message from queue 'q' yet: it was queued … ago, and 0 messages were queued before it.",
              "No live worker listens to queue 'q': start one with `paceline worker -q q`.")),
    "messages are before its own": Situation(
        build=of.queue(workers=9, queued=2, state="queued", dispatched_at="2025-01-01T00:00:00Z"),
        solve=after_waiting(since="queued"), after="Waited 4. s in queue 'q', then started by w#",
        live=("No worker has taken its message from queue 'q' yet: it was queued … ago, and 2 messages were queued before it.",)),
    "it runs": Situation(
        build=of.in_state("running", try_number=1, max_tries=2, resume=None), solve=ended(resume=None), after="Succeeded after 0",
        live=("It has been running since …, try 1 of 3, on worker w#….",)),
    "its worker is silent": Situation(
        build=of.silent, solve=ended(state="failed", reason="its worker sent no heartbeat"),
        after="Failed.*: its worker sent no heartbeat",
        live=("It has been running since …, try 0 of 1; "
              "its worker worker-lost#… sends no heartbeats, so a scheduler will recover it.",)),
    "it is being stopped": Situation(
        build=of.in_state("shutdown", requested_state="none"), solve=ended(state=None, reason="cleared"), after="Cleared by ",
        live=("A stop was requested, and its state will be none; it is with worker w#….",)),
    "its retry is due later": Situation(
        build=of.in_state("up_for_retry", try_number=1, max_tries=1, reason="exit code 1"), solve=through(),
        after="Failed by .*: exit code 1", live=("Try 1 of 2 failed (exit code 1); the next one is due at …",)),
    "it looks again later": Situation(
        build=of.in_state("up_for_reschedule"), solve=through(), after="Checked its condition, and will check again",
        live=("It checks its condition again and again; the next check is due at …",)),
    "no waiter awaits its trigger": Situation(
        build=of.deferred(), solve=through(), after="Deferred to its trigger",
        live=("It waits for its trigger a.Moment.", "No waiter is alive to await triggers: start one with `paceline waiter`.")),
    "a waiter awaits its trigger": Situation(
        build=of.deferred(waiter=True), solve=through(), after="Deferred to its trigger",
        live=("It waits for its trigger a.Moment; it times out at ….",)),
    "its trigger has fired": Situation(
        build=of.deferred(trigger=False), solve=through(), after="Deferred to its trigger",
        live=("Its trigger has fired or timed out; a scheduler continues the task in its next pass.",)),
    "its run may start later": Situation(
        build=of.run_not_due, solve=of.begun, after="Waited 4. s to start, then started", task=None,
        live=("Its run may start at ….",)),
    "max_active_runs": Situation(
        build=of.queued_run("zero", max_active_runs=1), solve=of.begun, task=None,
        after="Waited 4. s for max_active_runs: 1 of 1 run was running, then started",
        live=("Its run has not started: the DAG has 1 running run and max_active_runs is 1.",)),
    "max_active_runs, and another run comes first": Situation(
        build=of.behind_another_run, solve=of.begun, task=None,
        after="Waited 4. s for max_active_runs: 1 of 1 run was running, then started",
        live=("Its run has not started: the DAG has 1 running run and max_active_runs is 1. 1 queued run comes before it.",)),
    "its backfill is paused": Situation(
        build=of.a_backfill(paused=True), solve=of.begun, after="Waited 4. s to start, then started", task=None,
        live=("Backfill 7 is paused: `paceline backfills resume 7` lets its runs start.",)),
    "its backfill has enough runs": Situation(
        build=of.a_backfill(paused=False, others=("zero",)), solve=of.begun, task=None,
        after="Waited 4. s for max_active_runs: 1 of 1 run was running, then started",
        live=("Its run has not started: backfill 7 has 1 running run and max_active_runs is 1.",)),
    "its run is about to start": Situation(
        build=of.queued_run(), solve=of.begun, after="Waited 4. s to start, then started", task=None,
        live=("Its run is queued and starts in a scheduler's next pass, within about a second.",)),
    "its DAG is paused": Situation(
        build=of.paused, solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("DAG 'd' is paused: `paceline dags unpause d` resumes it.",)),
    "the file of its DAG has an error": Situation(
        build=of.import_error, solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("The DAG's file d.py, line 7 has an import error, so the last version that loaded is used: NameError: x.",)),
    "its DAG is paused, its file has an error, and no scheduler is alive": Situation(
        build=of.nothing_works, solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("DAG 'd' is paused: `paceline dags unpause d` resumes it.",
              "The DAG's file d.py, line 7 has an import error, so the last version that loaded is used: NameError: x.",
              "No scheduler is alive: start one with `paceline scheduler`.")),
    "it is one of two instances": Situation(
        build=of.mapped_upstream, solve=nothing, after="", task="left",
        live=("It has 2 instances (1 none, 1 success); this is about index 1.", NOTHING)),
    "its run cannot be decided": Situation(
        build=of.undecidable, solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("The schedulers cannot decide its run, and try again about every second: its version cannot be read.",)),
    "it has succeeded": Situation(
        build=of.in_state("success", try_number=1), solve=nothing, after="Succeeded by ",
        live=("It has ended as success on try 1 of 1 at ….",)),
    "it has failed": Situation(
        build=of.in_state("failed", try_number=1, reason="exit code 1"), solve=nothing, after="Failed by .*: exit code 1",
        live=("It has ended as failed on try 1 of 1 at …: exit code 1.",)),
    "an upstream task has failed": Situation(
        build=of.in_state("upstream_failed", reason="upstream failed: left"), solve=nothing,
        after="Not run, because an upstream task failed: upstream failed: left",
        live=("It has ended as upstream_failed …: upstream failed: left.",)),
    "a branch left it out": Situation(
        build=of.in_state("skipped", reason="left out by branch left"), solve=nothing,
        after="Skipped by .*: left out by branch left", live=("It has ended as skipped …: left out by branch left.",)),
    "its DAG has no such task now": Situation(
        build=of.in_state("removed"), solve=nothing, after="Removed by ",
        live=("It is removed: the run's version of the DAG has no such task.",)),
    "its run is over": Situation(
        build=of.run_over, solve=through(), after="Scheduled by ",
        live=("Its run has ended as failed, so nothing moves it any more; clear it to run it.",)),
}  # fmt: skip


def test_why_is_right_live_and_afterwards(cli: Cli, rest: Rest, scenario: Scenario) -> None:
    assert len(SITUATIONS) >= 40
    live, after = {}, {}
    for name, one in SITUATIONS.items():
        place = Place(scenario)
        one.build(place)
        scenario.sql("update process set heartbeat_at = now() + interval '1 hour' where heartbeat_at > now() - interval '1 minute'")
        live[name] = shortened(answers(cli, rest, one)["waiting_for"], one.live)
        one.solve(place)
        texts = "\n".join(step["text"] for step in answers(cli, rest, one)["history"])
        after[name] = one.after if re.search(one.after, texts) else texts
        place.clean()

    assert live == {name: one.live for name, one in SITUATIONS.items()}
    assert after == {name: one.after for name, one in SITUATIONS.items()}


def test_the_history_of_a_run_that_is_deleted_meanwhile_is_not_found(scenario: Scenario) -> None:
    with pytest.raises(NotFoundError, match="was deleted in this moment"):
        transact(scenario.engine, history.of_instance, scenario.settings, 12345)


def answers(cli: Cli, rest: Rest, one: Situation) -> Any:
    """The answer of the command line; that of the API must be the same."""
    if one.task is None:
        answer, found = cli.json("runs", "why", "d", "one"), rest.get("/dags/d/dagRuns/one/why")
    else:
        answer = cli.json("tasks", "why", "d", "one", one.task)
        found = rest.get(f"/dags/d/dagRuns/one/taskInstances/{one.task}/why", map_index=answer["map_index"])
    # A request to the API is about one instance, so its answer names no other.
    assert plain(found["waiting_for"]) == plain([text for text in answer["waiting_for"] if "; this is about index " not in text])
    assert [step["text"] for step in found["history"]] == [step["text"] for step in answer["history"]]
    return answer


def plain(sentences: list[str]) -> list[str]:
    """Without times that differ because the request to the API comes later."""
    return [re.sub(r"\d+ (s|min) ago|\(in [^)]*\)", "", sentence) for sentence in sentences]


def shortened(sentences: list[str], expected: tuple[str, ...]) -> tuple[str, ...]:
    """The sentences; those that are as expected are as they are expected."""
    patterns = [re.escape(wanted).replace("…", ".*") for wanted in expected]
    cut = [
        wanted if re.fullmatch(pattern, one) else one for one, wanted, pattern in zip(sentences, expected, patterns, strict=False)
    ]
    return (*cut, *sentences[len(expected) :])


@pytest.fixture
def place(scenario: Scenario) -> Place:
    """A running run `one` of `d`: left, right >> load."""
    place = Place(scenario)
    place.add(max_active_runs=1)
    return place


def test_text_is_the_sentences_alone_and_json_has_the_state_too(cli: Cli, place: Place) -> None:
    text = cli("tasks", "why", "d", "one", "load").stdout
    place.set("left", "scheduled")
    left, right = (cli.json("tasks", "why", "d", "one", task) for task in ("left", "right"))
    place.instances("right", "success", None)
    ended = cli.json("tasks", "why", "d", "one", "right", "--map-index", "0")["waiting_for"]

    assert text == "It waits for upstream tasks left (none), right (none); its trigger rule is all_success.\n"
    assert [step["state"] for step in left.pop("history")] == ["scheduled"]
    assert left == {"state": "scheduled", "map_index": -1, "waiting_for": [NOTHING]}
    assert right["state"] is None
    assert ended[0].startswith("It has ended as success")


def test_with_aging_the_older_task_instance_comes_first(cli: Cli, place: Place) -> None:
    place.scenario.pool("db", 3)
    place.set("left", "scheduled", pool="db", rank=5)
    place.set("right", "scheduled", pool="db", rank=1)
    place.sql("update task_instance set scheduled_at = now() - interval '1 hour' where task_id = 'right'")
    second = "1 task instance of higher rank waits in pool 'db' before it."

    def why(**env: str) -> list[str]:
        return [cli("tasks", "why", "d", "one", task, **env).stdout.strip() for task in ("left", "right")]

    assert why() == [NOTHING, second]
    assert why(PACELINE_SCHEDULER_PRIORITY_AGING="60") == [second, NOTHING]


def reasons(rest: Rest, *, runs: bool) -> set[tuple[int, str]]:
    """What the home page says of waiting runs, or of waiting task instances."""
    return {(row["count"], row["reason"]) for row in rest.get("/home")["waiting"] if (row["pool"] is None) == runs}


def test_the_home_page_names_the_limit_of_the_dag_or_of_the_backfill(rest: Rest, place: Place) -> None:
    two, three, _ = (place.scenario.trigger("d", run_id=name) for name in ("two", "three", "four"))
    of.insert_backfill(place, runs=(two, three), max_active_runs=2)

    of_dag = (1, "It has not started: the DAG has 1 running run and max_active_runs is 1.")
    assert reasons(rest, runs=True) == {of_dag, (2, "A scheduler starts them soon.")}
    place.sql("update backfill set max_active_runs = 1")
    place.sql("update dag_run set state = 'running', started_at = now() where id = %s", two)
    full = "It has not started: backfill 7 has 1 running run and max_active_runs is 1."
    assert reasons(rest, runs=True) == {of_dag, (1, full)}
    place.sql("update backfill set is_paused = true")
    paused = "Backfill 7 is paused: `paceline backfills resume 7` lets its runs start."
    assert reasons(rest, runs=True) == {of_dag, (1, paused)}


def test_the_home_page_says_why_task_instances_wait_as_why_does(rest: Rest, place: Place) -> None:
    for pool, queue, slots, reason in (
        ("nowhere", "default", 9, "There is no pool 'nowhere': create it with `paceline pools set nowhere SLOTS`."),
        ("default_pool", "spark", 9, "No live worker listens to queue 'spark': start one with `paceline worker -q spark`."),
        (
            "default_pool",
            "default",
            0,
            "It needs 1 slot and pool 'default_pool' has 0 in all, so it can never run: enlarge the pool.",
        ),
    ):
        place.sql("update pool set slots = %s where name = 'default_pool'", slots)
        place.set("left", "scheduled", pool=pool, queue=queue)
        assert reasons(rest, runs=False) == {(1, reason)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope", "one", "left"), "There is no DAG 'nope'"),
        (("d", "nope", "left"), "'nope'"),
        (("d", "one", "lef"), "did you mean 'left'?"),
        (("d", "one", "left", "--map-index", "4"), "is not mapped, or not expanded yet: remove --map-index"),
    ],
)
def test_a_missing_task_instance(cli: Cli, place: Place, arguments: tuple[str, ...], message: str) -> None:
    done = cli("tasks", "why", *arguments)

    assert done.exit_code == 3
    assert message in done.stderr


def test_a_task_in_a_loop_waits_for_the_iteration_before(cli: Cli, rest: Rest, scenario: Scenario) -> None:
    in_loop = {"expand": {"kind": "product", "inputs": [{"literal": 3}]}, "mapped_group": "d", "group": "d", "loop_gate": "gate"}
    options = {"work": in_loop, "gate": {**in_loop, "branches": True}}
    run = scenario.triggered(dag("d", {"before": [], "work": ["before"], "gate": ["work"]}, options=options), run_id="one")
    for _ in range(20):
        if scenario.states(run).get("work[0]") == "success":
            break
        scenario.turn()
        scenario.work()

    def why() -> str:
        (sentence,) = cli.json("tasks", "why", "d", "one", "work", "--map-index", "1")["waiting_for"]
        assert rest.get("/dags/d/dagRuns/one/taskInstances/work/why", map_index=1)["waiting_for"] == [sentence]
        return str(sentence)

    assert re.fullmatch(r"It is in iteration 2 of its loop and waits for gate\[0\] \(\w+\), which ends iteration 1\.", why())
    scenario.run_to_end(outcome=lambda claim: Ending(TaskState.SUCCESS, skip=(Branched.LOOP_STOP,)))
    assert why() == "It is removed: the loop ended with iteration 1."


LATER = "interval '40 s'"


class Past:
    """Runs of `d`, whose task `first` holds something that `second` waits for."""

    def __init__(self, cli: Cli, rest: Rest, scenario: Scenario) -> None:
        self.cli = cli
        self.rest = rest
        self.scenario = scenario

    def run(self, **options: Any) -> int:
        """`first` has run and ended while `second` was scheduled; then `second` ran."""
        own = options.pop("options", {})
        run = self.scenario.start(
            dag("d", {"first": [], "second": []}, options={"first": {"priority_weight": 9}, **own}, **options), run_id="one"
        )
        waiting = self.scenario.messages()
        for message in waiting:
            claim = self.scenario.claim(message)
            assert claim is not None
            assert self.scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
        self.scenario.run_to_end()
        assert set(self.scenario.states(run).values()) == {"success"}
        return run

    def stretch(self) -> None:
        """Let `second` have been scheduled 40 s earlier, and `first` have been queued and running before that."""
        second = "(select id from task_instance where task_id = 'second')"
        first = "(select id from task_instance where task_id = 'first')"
        self.scenario.sql(f"update event set at = at - {LATER} where to_state = 'scheduled' and task_instance_id in {second}")
        self.scenario.sql(
            f"update event set queued_at = queued_at - 2 * {LATER}, started_at = started_at - 2 * {LATER}"
            f" where queued_at is not null and task_instance_id in {first}"
        )
        self.scenario.sql("update process set started_at = started_at - interval '1 hour'")

    def steps(self, task_id: str = "second") -> list[str]:
        answer = self.cli.json("tasks", "why", "d", "one", task_id)
        text = self.cli("tasks", "why", "d", "one", task_id, "--history").stdout
        texts = [step["text"] for step in answer["history"]]
        assert all(one in text for one in texts)
        history = self.rest.get(f"/dags/d/dagRuns/one/taskInstances/{task_id}/why", map_index=answer["map_index"])["history"]
        assert [step["text"] for step in history] == texts
        return texts


@pytest.fixture
def past(cli: Cli, rest: Rest, scenario: Scenario) -> Past:
    return Past(cli, rest, scenario)


def waited(texts: list[str]) -> str:
    """The step with the longer wait, as if the machine had taken no time besides."""
    (found,) = [text for text in texts if re.match(r"Waited 4\d s ", text)]
    return re.sub(r"^Waited 4\d s", "Waited 40 s", found)


@pytest.mark.parametrize(
    ("state", "include_deferred", "text"),
    [
        ("deferred", True, "for pool 'db' with 1 of 1 slot in use by d.first of run 'one'"),
        ("deferred", False, "in line"),
        ("running", False, "for pool 'db' with 1 of 1 slot in use by d.first of run 'one'"),
    ],
    ids=["deferred", "deferred without its slot", "resumed"],
)
def test_a_pool_whose_slot_a_task_held_between_two_dispatches(past: Past, state: str, include_deferred: bool, text: str) -> None:
    past.scenario.pool("db", 1)
    past.run(task={"pool": "db"})
    past.stretch()
    past.scenario.sql("update pool set include_deferred = %s where name = 'db'", include_deferred)
    past.scenario.sql("update event set queued_at = null, started_at = null where task_instance_id in (select id from task_instance"
                      " where task_id = 'first')")  # fmt: skip
    past.scenario.sql(
        "insert into event (at, dag_run_id, task_instance_id, from_state, to_state, actor)"
        f" select now() - 2 * {LATER}, dag_run_id, id, 'queued', %s, 'w' from task_instance where task_id = 'first'",
        state,
    )

    assert waited(past.steps()).startswith(f"Waited 40 s {text}, then queued by ")


def test_the_whole_story_of_a_task_that_was_tried_twice(past: Past) -> None:
    scenario = past.scenario
    run = scenario.triggered(dag("d", {"first": [], "second": ["first"]}, options={"second": {"retries": 1}}), run_id="one")
    tries = iter([TaskState.SUCCESS, TaskState.UP_FOR_RETRY, TaskState.SUCCESS])
    scenario.run_to_end(outcome=lambda claim: next(tries))
    assert scenario.states(run)["second"] == "success"

    texts = past.steps()
    assert [text.partition(" ")[0] for text in texts if text.startswith(("Started", "Failed", "Succeeded"))] == [
        "Started", "Failed", "Started", "Succeeded",
    ]  # fmt: skip
    assert "try 2" in texts[-2]
    scenario.sql("delete from event")
    assert past.steps() == []


@pytest.mark.parametrize("at_first", [1, 16], ids=["one version", "a new version lowers the limit"])
def test_a_run_that_waited_for_another_run(scenario: Scenario, at_first: int) -> None:
    scenario.triggered(dag("d", {"first": []}, max_active_runs=at_first), run_id="zero")
    scenario.trigger("d", run_id="one")
    if at_first > 1:
        scenario.add(dag("d", {"first": []}, max_active_runs=1))
    scenario.run_to_end()
    scenario.sql(
        f"update event set at = at - {LATER} where task_instance_id is null and to_state = 'queued'"
        " and dag_run_id = (select id from dag_run where run_id = 'one')"
    )
    scenario.sql(
        f"update dag_run set started_at = started_at - 2 * {LATER} where run_id = 'zero'",
    )
    # The run that was in the way ended just before the other one started.
    texts = [step["text"] for step in transact(scenario.engine, history.of_dag_run, "d", "one")]

    assert texts[0].startswith("Created as queued by ")
    assert waited(texts) == re.sub(r"4\d s", "40 s", texts[1])
    assert waited(texts).startswith("Waited 40 s for max_active_runs: 1 of 1 run was running, then started by ")
    assert texts[2].startswith("Ended as success")
