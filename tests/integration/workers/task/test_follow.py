"""Fast-follow: which tasks a worker queues or continues with in place when a task ends, and which it leaves to a scheduler."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.run_actions import running as claim_one
from support.scenario import Scenario, chain, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.store.db.database import transact
from scheduler.store.queueing import pools
from scheduler.store.worker.claims import Ending, NextInPlace
from scheduler.store.worker.hot_path import HotPath
from workers.task.follow import Follower

SUCCESS = Ending(TaskState.SUCCESS)


def queued_by(scenario: Scenario) -> list[str]:
    return [row[0].split("#")[0] for row in scenario.rows("select queued_by from task_instance order by id")]


def test_a_chain_is_queued_by_its_worker_after_the_first_task(scenario: Scenario) -> None:
    run = scenario.triggered(chain("c", 100))

    scenario.run_to_end()

    assert scenario.run_state(run) == "success"
    assert queued_by(scenario) == ["s0"] + ["w"] * 99
    assert scenario.rows("select distinct try_number, state from task_instance") == [(1, "success")]


def test_an_error_while_following_leaves_the_report_and_wakes_a_scheduler(scenario: Scenario, tmp_path: Path) -> None:
    run = scenario.start(dag("j", {"a": [], "b": [], "join": ["a", "b"]}))
    first, second = (scenario.claim(message) for message in scenario.messages())
    assert first and second
    scenario.follower.report(first, SUCCESS)
    wakeups = Wakeups(scenario.settings)
    wakeups.wait(0.0)
    faults = {fault_points.FAULTS: "follow.commit=raise", fault_points.FOLDER: str(tmp_path)}
    fault_points.arm(faults, scenario.settings.database_url)
    try:
        assert scenario.follower.report(second, SUCCESS).is_stored
    finally:
        fault_points.arm({}, scenario.settings.database_url)

    assert (tmp_path / "struck").exists()
    assert scenario.states() == {"a": "success", "b": "success", "join": "none"}
    assert wakeups.wait(1.0) == {"queue", "plan", "notify", f"run:{run}", f"next:{run}"}


def test_two_last_siblings_at_once_queue_the_join_exactly_once(scenario: Scenario) -> None:
    """Each reports on its own connection; neither may think the other unfinished for good, and the join is queued once."""
    scenario.add(dag("j", {"a": [], "b": [], "join": ["a", "b"]}))
    followers = [
        Follower(HotPath(scenario.settings, "w"), Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
        for _ in range(2)
    ]
    for number in range(25):
        run = scenario.trigger("j", run_id=f"r{number}")
        scenario.turn()
        claims = [scenario.claim(message) for message in scenario.messages()]
        barrier = threading.Barrier(2)

        def report(index: int, claims: list = claims, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            followers[index].report(claims[index], SUCCESS)

        threads = [threading.Thread(target=report, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert scenario.states(run)["join"] == "queued"
        assert scenario.work() == 1
        assert scenario.states(run)["join"] == "success"


def test_a_report_of_another_dispatch_is_refused_and_follows_nothing(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 2))
    claim = claim_one(scenario)
    scenario.sql("update task_instance set dispatch_id = gen_random_uuid() where task_id = 't000'")

    assert scenario.follower.report(claim, SUCCESS).is_stored is False

    assert scenario.states() == {"t000": "running", "t001": "none"}


def test_a_report_repeated_after_a_lost_answer_counts_as_stored(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 2))
    claim = claim_one(scenario)

    assert scenario.follower.report(claim, SUCCESS).is_stored is True
    assert scenario.follower.report(claim, SUCCESS).is_stored is True

    assert scenario.states() == {"t000": "success", "t001": "queued"}


def test_the_duplicate_of_a_message_finds_nothing_to_claim(scenario: Scenario) -> None:
    scenario.start(chain("c", 1))
    message = scenario.messages()[0]

    assert scenario.claim(message) is not None
    assert scenario.claim(message) is None


@pytest.mark.parametrize("below", [{"join": ["a", "b"]}, {}])
def test_the_report_that_is_stored_last_decides_the_join_or_closes_the_run(scenario: Scenario, below: dict[str, list[str]]) -> None:
    """Task b starts and ends while the report of a waits for its lock. That report then sees the end of b, and decides the join."""
    run = scenario.start(dag("j", {"a": [], "b": [], **below}))
    messages = scenario.messages()
    first = scenario.claim(messages[0])
    assert first
    other = Follower(HotPath(scenario.settings, "w"), Publisher(scenario.settings), Wakeups(scenario.settings), enabled=True)
    report = threading.Thread(target=other.report, args=(first, SUCCESS))
    wakeups = Wakeups(scenario.settings)
    with scenario.engine.begin() as holder:
        holder.exec_driver_sql("select from task_instance where id = %s for update", (first.id,))
        report.start()
        eventually(lambda: scenario.rows("select 1 from pg_locks where not granted"))
        second = scenario.claim(messages[1])
        assert second
        scenario.follower.report(second, SUCCESS)
        wakeups.wait(0.0)
    report.join(20)

    assert scenario.states() == {"a": "success", "b": "success", **dict.fromkeys(below, "queued")}
    assert scenario.run_state(run) == ("running" if below else "success")
    assert f"run:{run}" not in (wakeups.wait(0.0) or ())


Change = Callable[[Scenario], None]
#: With the two slots that the pool has if nothing else is said, a and b run, and c and d wait in line.
LINE = "a b c d"
JOIN = "a b a>join b>join"
PAUSE, END_RUN = "update dag_schedule set is_paused = true", "update dag_run set state = 'failed', ended_at = now()"
ANOTHER_VERSION = """
with other as (insert into dag_version (dag_id, number, content_hash, data)
               select dag_id, 2, '', data from dag_version returning id)
update dag_run set version_id = other.id from other
"""


def now(**tasks: str) -> dict[str, str]:
    """The tasks of each state."""
    return {task: state for state, names in tasks.items() for task in names.split()}


#: The line gets nothing.
WAITS = now(success="a", running="b", scheduled="c d")


def sql(statement: str) -> Change:
    return lambda scenario: scenario.sql(statement)


def resized(scenario: Scenario) -> None:
    transact(scenario.engine, pools.set_pool, "p", 2)


def beside(weight: int, pool: str = "p", slots: int | None = None) -> Change:
    """A task of another run waits for the pool; with `slots`, that is a new pool, and another task has its slots."""

    def change(scenario: Scenario) -> None:
        if slots is not None:
            scenario.pool(pool, slots)
        tasks: dict[str, Sequence[str]] = {"u": []} if slots is None else {"u": [], "v": []}
        scenario.start(dag("beside", tasks, task={"pool": pool, "priority_weight": weight}))

    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`graph` names tasks and edges. All tasks that have slots run; then `change` happens, and those named in `ends` end."""

    graph: str
    then: dict[str, str]
    slots: int = 2
    #: The options of the DAG, of all tasks, and of some.
    dag: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    change: Change | None = None
    ends: str = "a"
    state: TaskState = TaskState.SUCCESS
    #: The wakeups of schedulers, without the numbers of runs; None if it does not matter.
    wakes: set[str] | None = None
    #: The task with which the process continues in place: "" for none although it could, None if it could not.
    in_place: str | None = None
    follow: bool = True
    aging: bool = False


CASES = {
    "the first in line gets the slots": Case(
        graph=LINE, then=now(success="a", running="b", queued="c", scheduled="d"), wakes=set()),
    "the highest rank is first in line": Case(
        graph=LINE, change=sql("update task_instance set rank = 9 where task_id = 'd'"),
        then=now(success="a", running="b", queued="d", scheduled="c"), wakes=set()),
    "a retry passes its slots on": Case(
        graph=LINE, task={"retries": 1}, state=TaskState.UP_FOR_RETRY,
        then=now(up_for_retry="a", running="b", queued="c", scheduled="d")),
    **{f"the first in line {why}": Case(graph=LINE, options={"c": options}, then=WAITS, wakes={"queue"}) for why, options in (
        ("is in another queue", {"queue": "gpu"}),
        ("needs more slots", {"pool_slots": 2}),
        ("is counted in its DAG", {"max_active_tis_per_dag": 9}),
        ("is counted in its run", {"max_active_tis_per_dagrun": 9}),
    )},
    "another run is first in line": Case(
        graph=LINE, change=beside(5), then=WAITS, wakes={"queue"}),
    "a task that is ready now outranks the line and needs more slots": Case(
        graph="a b c d a>heavy", options={"a": {"priority_weight": 10}, "heavy": {"priority_weight": 9, "pool_slots": 2}},
        then=now(success="a", running="b", scheduled="c d heavy"), wakes={"queue"}),
    "an older task goes before the successor, which needs the same": Case(
        graph="a b c a>after", task={"priority_weight": 1},
        then=now(success="a", running="b", queued="c", scheduled="after"), wakes=set()),
    "another pool is full": Case(
        graph=LINE, change=beside(1, "full", slots=1), then=now(success="a", running="b", queued="c", scheduled="d"), wakes=set()),
    **{f"nobody gets the slots: {why}": Case(graph=LINE, change=sql(change), then=WAITS) for why, change in (
        ("the DAG is paused", PAUSE),
        ("the run is over", END_RUN),
        ("there is no pool", "delete from pool where name = 'p'"),
        ("the queue service allows nothing", "update pool set passes_slots_on = false where name = 'p'"),
    )},
    "following is off": Case(
        graph=LINE, follow=False, then=WAITS, wakes={"queue", "run"}),
    "ranks rise with age": Case(
        graph=LINE, aging=True, then=WAITS, wakes={"queue"}),
    "a failure ends the run": Case(
        graph=LINE, dag={"fail_fast": True}, state=TaskState.FAILED, then=now(failed="a", running="b", scheduled="c d")),
    "one of two siblings leaves the join": Case(graph=JOIN, then=now(success="a", running="b", none="join")),
    "the last of two siblings queues the join": Case(graph=JOIN, ends="a b", then=now(success="a b", queued="join")),
    "a failure decides the join at once, and what is below it later": Case(
        graph=f"{JOIN} join>end", state=TaskState.FAILED, then=now(failed="a", running="b", upstream_failed="join", none="end"),
        wakes={"run"}),
    **{f"the successor needs {what}": Case(
        graph="a a>b", slots=1, options={"b": options}, then=now(success="a", scheduled="b"), wakes={"queue"})
        for what, options in (("another pool", {"pool": "other"}), ("more slots", {"pool_slots": 2}))},
    # The columns of the row count, which a newer version may have changed since the DAG was read.
    **{f"the row of the successor has {what}": Case(
        graph="a a>b", slots=1, change=sql(f"update task_instance set {column} where task_id = 'b'"),
        then=now(success="a", scheduled="b"))
        for what, column in (("another pool", "pool = 'other'"), ("more slots", "pool_slots = 2"))},
    "another run outranks the successor": Case(
        graph="a a>b", slots=1, change=beside(9), then=now(success="a", scheduled="b"), wakes={"queue"}),
    "another run does not outrank the successor": Case(
        graph="a a>b", slots=1, task={"priority_weight": 5}, change=beside(5), then=now(success="a", queued="b")),
    "nothing follows in a paused DAG": Case(
        graph="a a>b", slots=1, change=sql(PAUSE), then=now(success="a", scheduled="b")),
    # Where a switch of the version puts a task that is gone.
    "the new version has no such task": Case(
        graph="a", change=sql("update task_instance set task_no = 1"), state=TaskState.FAILED, then=now(failed="a")),
    # From here on, the process offers to continue in place.
    "the successor runs in place": Case(
        graph="a a>b b>c", slots=1, in_place="b", then=now(success="a", running="b", none="c"), wakes=set()),
    "the first in line runs in place": Case(
        graph="a b c", slots=1, in_place="b", then=now(success="a", running="b", scheduled="c"), wakes=set()),
    "a join runs in place after the last task above it": Case(
        graph=JOIN, ends="a b", in_place="join", then=now(success="a b", running="join")),
    **{f"not in place: {why}": Case(
        graph="a a>b", slots=1, options={"b": options}, in_place="", then=now(success="a", **{state: "b"}))
        for why, options, state in (
            ("another pool", {"pool": "other"}, "scheduled"),
            ("another queue", {"queue": "gpu"}, "queued"),
            ("more slots", {"pool_slots": 2}, "scheduled"),
            ("a limit of its own", {"max_active_tis_per_dag": 1}, "scheduled"),
            ("a Spark session", {"runtime": "pyspark"}, "queued"),
            ("a Spark application", {"runtime": "spark_submit"}, "queued"),
            ("a lease", {"exclusive": True}, "queued"),
        )},
    **{f"not in place: {why}": Case(graph="a a>b", slots=1, change=change, in_place="", then=now(success="a", **{state: "b"}))
        for why, change, state in (
            ("the slots of the pool have changed", resized, "queued"),
            ("the worker was declared lost", sql("update process set stopped_at = now() where kind = 'worker'"), "queued"),
            ("the DAG is paused", sql(PAUSE), "scheduled"),
            ("the run has ended", sql(END_RUN), "none"),
            ("the run has another version", sql(ANOTHER_VERSION), "none"),
        )},
    "in place before another run of higher rank": Case(
        graph="a a>b b>c", slots=1, change=beside(9), in_place="b", then=now(success="a", running="b", none="c")),
    "not in place before another run of higher rank: ranks rise with age": Case(
        graph="a a>b", slots=1, change=beside(9), aging=True, in_place="", then=now(success="a", scheduled="b")),
    "not in place before another run of higher rank: another queue": Case(
        graph="a a>b", slots=1, options={"b": {"queue": "gpu"}}, change=beside(9), in_place="",
        then=now(success="a", scheduled="b")),
    "not in place: the first in line resumes an earlier dispatch": Case(
        graph="a b", slots=1, change=sql("update task_instance set resume = '{}' where task_id = 'b'"), in_place="",
        then=now(success="a", queued="b")),
    "not in place: the first in line, in a DAG with a Spark task": Case(
        graph="a b b>c", slots=1, options={"c": {"runtime": "pyspark"}}, in_place="",
        then=now(success="a", queued="b", none="c")),
    "not in place: the task that goes before the successor, in a DAG with a Spark task": Case(
        graph="a waits a>b b>spark", slots=1, in_place="", then=now(success="a", queued="waits", scheduled="b", none="spark"),
        options={"a": {"priority_weight": 10}, "waits": {"priority_weight": 9}, "spark": {"runtime": "pyspark"}}),
}  # fmt: skip


def edges(graph: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in graph.split():
        above, _, task = word.rpartition(">")
        found.setdefault(task, []).extend([above] if above else [])
    return found


def wakeups_of(scenario: Scenario) -> set[str]:
    """The kinds of wakeups since the last call."""
    with closing(Wakeups(scenario.settings)) as wakeups:  # Closed, it leaves its place to the next one that listens.
        return {token.partition(":")[0] for token in wakeups.wait(0.01) or ()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_the_end_of_a_task_leads_to(make_scenario: Callable[..., Scenario], case: Case) -> None:
    scenario = make_scenario(follow=case.follow, scheduler={"priority_aging": 60.0 if case.aging else 0.0})
    scenario.pool("p", case.slots)
    scenario.pool("other", 1)
    run = scenario.start(dag("d", edges(case.graph), task={"pool": "p"} | case.task, options=case.options, **case.dag))
    claims = {claim.task_id: claim for claim in map(scenario.claim, scenario.messages()) if claim is not None}
    if case.change is not None:
        case.change(scenario)
    scenario.messages()
    wakeups_of(scenario)
    follower = Follower(
        scenario.hot, Publisher(scenario.settings), Wakeups(scenario.settings), enabled=case.follow, aging=case.aging
    )
    in_place = None if case.in_place is None else NextInPlace(str(uuid4()))

    *earlier, last = case.ends.split()
    for name in earlier:
        assert follower.report(claims[name], Ending(TaskState.SUCCESS)).is_stored
    answer = follower.report(claims[last], Ending(case.state, delay_s=60.0), in_place)

    assert answer.is_stored
    assert scenario.states(run) == case.then
    if case.wakes is not None:
        assert wakeups_of(scenario) == case.wakes
    if in_place is not None:
        assert (answer.continues.task_id if answer.continues else "") == case.in_place
    of_run = "from task_instance where state = 'queued' and dag_run_id = %s"
    queued = scenario.rows(f"select id, dispatch_id::text, queued_by, dispatched_at {of_run}", run)
    assert [row[2:] for row in queued] == [(scenario.worker_id, None)] * len(queued)
    assert scenario.messages() == [row[:2] for row in queued]
