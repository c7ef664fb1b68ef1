"""`why` in more than 40 situations, live and afterwards: the command line and the REST API of the pages give the same text."""

import re
from typing import Any

import pytest
from support.rest import Rest
from support.scenario import Scenario

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
        live=("Pool 'db' is full: 1 of 1 slot are in use, held by d.left of run 'one'.",)),
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
        live=("d.right of run 'one' ranks higher, needs 3 slots of pool 'db' and holds its place in line while 1 are free "
              "(scheduler.pool_reservation).",)),
    "another one ranks higher": Situation(
        build=of.pool(2, state="scheduled", rank=5), solve=after_waiting(), after="Waited 4. s in line, then queued",
        live=("1 task instance of higher rank waits in pool 'db' before it.",)),
    "a deferred one holds the slot": Situation(
        build=of.pool(1, state="deferred", deferred=True), solve=after_waiting(), after="Waited 4. s ",
        live=("Pool 'db' is full: 1 of 1 slot are in use, held by d.left of run 'one'.",)),
    "max_active_tasks": Situation(
        build=of.limits({}, max_active_tasks=1), solve=after_waiting(),
        after="Waited 4. s for max_active_tasks: 1 of 1 were active, then queued",
        live=("The limit max_active_tasks is reached: 1 of 1.",)),
    "max_active_tis_per_dag": Situation(
        build=of.limits({"max_active_tis_per_dag": 1}, runs=("zero", "one")), solve=after_waiting(),
        after="Waited 4. s for max_active_tis_per_dag: 1 of 1 were active, then queued",
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
        live=("It was queued … ago and its message is not sent yet: a scheduler sends it again if the broker was unavailable.",)),
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
        after="Waited 4. s for max_active_runs: 1 of 1 runs were running, then started",
        live=("Its run has not started: the DAG has 1 running run and max_active_runs is 1.",)),
    "its backfill is paused": Situation(
        build=of.a_backfill(paused=True), solve=of.begun, after="Waited 4. s to start, then started", task=None,
        live=("Backfill 7 is paused: `paceline backfills resume 7` lets its runs start.",)),
    "its backfill has enough runs": Situation(
        build=of.a_backfill(paused=False, others=("zero",)), solve=of.begun, task=None,
        after="Waited 4. s for max_active_runs: 1 of 1 runs were running, then started",
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


@pytest.mark.long
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


def answers(cli: Cli, rest: Rest, one: Situation) -> Any:
    """The answer of the command line; that of the API must be the same."""
    if one.task is None:
        answer, found = cli.json("runs", "why", "d", "one"), rest.get("/dags/d/dagRuns/one/why")
    else:
        answer = cli.json("tasks", "why", "d", "one", one.task)
        found = rest.get(f"/dags/d/dagRuns/one/taskInstances/{one.task}/why", map_index=answer["map_index"])
    assert plain(found["waiting_for"]) == plain(answer["waiting_for"])
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
