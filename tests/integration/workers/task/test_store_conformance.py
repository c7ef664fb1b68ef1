"""The two stores of tries behave alike: the same worker code over PostgreSQL and over memory."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support import conformance
from support.conformance import Outcome, named
from support.conformance_cases import CASES
from support.deferred import running_waiter
from support.scenario import Scenario, dag, pool_process
from support.waiting import eventually

from paceline.authoring.connection import Connection
from paceline.exceptions import StaleTryError
from paceline.states import RUN_FINISHED, TaskState
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher
from scheduler.store.worker.claims import Claim, Ending
from scheduler.testing.in_memory.store import MemoryStore
from workers.task.follow import DatabaseStore
from workers.task.store import Store


def stored(scenario: Scenario, run: int) -> Outcome:
    """How a run ended in the database."""
    rows = scenario.rows(
        "select task_id, map_index, coalesce(state, 'none'), try_number, map_label from task_instance where dag_run_id = %s", run
    )
    values = scenario.rows(
        "select task_id, map_index, key, value from xcom x join task_instance t on t.id = x.task_instance_id"
        " where dag_run_id = %s", run,
    )  # fmt: skip
    return Outcome(
        scenario.run_state(run),
        {named(task, index): state for task, index, state, _, _ in rows},
        {named(task, index): number for task, index, _, number, _ in rows},
        {named(task, index, key): value for task, index, key, value in values},
        {named(task, index): label for task, index, _, _, label in rows if label is not None},
    )


@pytest.mark.parametrize("follow", [True, False])
def test_a_worker_ends_runs_as_the_cases_expect(make_scenario: Callable[..., Scenario], follow: bool) -> None:
    scenario = make_scenario(follow=follow)
    settings, worker = scenario.settings, pool_process(scenario)
    conn_id, uri = conformance.CONNECTION
    transact(scenario.engine, connections.add, [Connection.from_uri(conn_id, uri)], Cipher.of(settings, make=True))
    runs = {}
    for name, case in CASES.items():
        scenario.add(conformance.parsed(settings, name, case)[1])
        runs[name] = scenario.trigger(name, run_id="r1", logical_date=conformance.MOMENT)

    def all_ended() -> bool:
        scenario.turn()
        for message in scenario.messages():
            worker.run(*message)
        return all(scenario.run_state(run) in RUN_FINISHED for run in runs.values())

    with running_waiter(settings):
        eventually(all_ended, interval=0.01, message=lambda: str(scenario.states()))
    assert {name: stored(scenario, run) for name, run in runs.items()} == {name: case.expected() for name, case in CASES.items()}


@dataclass
class Tries:
    """The task instances of one run over one of the stores, claimed one after the other."""

    store: Store
    next: Callable[[], tuple[int, str]]

    def claim(self) -> Claim:
        claim = self.store.claim(*self.next(), self.worker_id)
        assert claim is not None
        return claim

    worker_id: str = "w"


PLAN = dag("d", {"first": [], "each": ["first"], "last": ["each"]}, options={
    "each": {"expand": {"kind": "product", "inputs": [{"literal": 3}]}}, "last": {"retries": 1, "trigger_rule": "all_done"},
})  # fmt: skip


@pytest.fixture(params=["memory", "postgresql"])
def tries(request: pytest.FixtureRequest) -> Tries:
    if request.param == "memory":
        memory = MemoryStore(PLAN, conformance.dag_run("d"), max_map_length=10, environment={})

        def ready() -> tuple[int, str]:
            for one in memory.suspended():
                memory.resume(one, {})
            one = memory.first_ready()
            assert one is not None
            return memory.queue(one)

        return Tries(memory, ready)
    scenario: Scenario = request.getfixturevalue("scenario")
    scenario.add(PLAN)
    scenario.trigger("d", run_id="r1")
    waiting: list[tuple[int, str]] = []

    def queued() -> tuple[int, str]:
        def sent() -> bool:
            scenario.turn()
            waiting.extend(scenario.messages())
            return bool(waiting)

        eventually(sent)
        return waiting.pop(0)

    return Tries(DatabaseStore(scenario.settings, scenario.hot, scenario.follower), queued, scenario.worker_id)


def test_pushed_xcoms_can_be_pulled(tries: Tries) -> None:
    store, first = tries.store, tries.claim()
    for key, text in {"list": "[1, 2]", "dict": '{"b": 1, "a": 2}', "text": '"x"', "null": "null", "twice": "1"}.items():
        store.push_xcom(first, key, text)
    store.push_xcom(first, "twice", "2")

    assert [store.pull_xcom(first, "first", key, -1, "none") for key in ("list", "twice", "null", "no")] == [
        [1, 2],
        2,
        None,
        "none",
    ]
    assert store.pull_xcom(first, "unknown", "list", -1, "none") == store.pull_xcom(first, "first", "list", 0, "none") == "none"
    assert [store.count_entries(first, 0, key, is_mapped=False) for key in ("list", "dict", "text", "no")] == [2, 2, None, None]
    assert [store.entry(first, 0, "list", place, is_mapped=False) for place in (1, 2)] == [[2], []]
    assert [store.entry(first, 0, "dict", place, is_mapped=False) for place in (0, 2)] == [[["b", 1]], []]
    assert store.entry(first, 0, "text", 0, is_mapped=False) == []

    store.clear_xcoms(first)

    assert store.pull_xcom(first, "first", "list", -1, "none") == "none"
    assert store.report(first, Ending(TaskState.SUCCESS, result="[7]")).is_stored
    each = [tries.claim() for _ in range(3)]
    assert store.pull_xcom(each[0], "first", "return_value", -1, None) == [7]
    assert (store.pull_xcoms(each[0], 1, "k"), store.count_entries(each[0], 1, "k", is_mapped=True)) == ([], 0)
    for one in each:
        store.label(one, "x")
        if one.map_index != 1:
            store.push_xcom(one, "k", str(one.map_index))
    assert store.pull_xcoms(each[1], 1, "k") == [0, 2]
    assert store.count_entries(each[1], 1, "k", is_mapped=True) == 2
    assert [store.entry(each[1], 1, "k", place, is_mapped=True) for place in (1, 2)] == [[2], []]
    assert store.count_instances(each[1]) == 3


def test_a_try_that_is_over_changes_nothing(tries: Tries) -> None:
    store, message = tries.store, tries.next()
    assert store.claim(message[0], str(uuid.uuid4()), tries.worker_id) is None
    claim = store.claim(*message, tries.worker_id)
    assert claim is not None
    assert store.claim(*message, tries.worker_id) is None
    assert store.report(claim, Ending(TaskState.FAILED, reason="lost")).is_stored

    assert not store.report(claim, Ending(TaskState.SUCCESS)).is_stored

    for write in (
        lambda: store.push_xcom(claim, "k", "1"),
        lambda: store.clear_xcoms(claim),
        lambda: store.label(claim, "x"),
        lambda: store.secrets(claim).set_variable("k", "v", None),
    ):
        with pytest.raises(StaleTryError):
            write()
    assert store.secrets(claim).variable("k") is None


def test_a_try_that_continues_keeps_its_xcoms(tries: Tries) -> None:
    store, first = tries.store, tries.claim()
    store.push_xcom(first, "k", "1")

    assert store.report(first, Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=0.0, resume={"pokes": 1})).is_stored

    again = tries.claim()
    assert (again.id, again.try_number, again.resume, again.started_at) == (first.id, 1, {"pokes": 1}, first.started_at)
    assert again.dispatch_id != first.dispatch_id
    with pytest.raises(StaleTryError):
        store.push_xcom(first, "k", "2")
    assert store.pull_xcom(again, "first", "k", -1, None) == 1
    assert store.report(again, Ending(TaskState.UP_FOR_RETRY, reason="failed", delay_s=0.0)).is_stored
    retried = tries.claim()
    assert (retried.id, retried.try_number, retried.resume) == (first.id, 2, None)
    assert retried.started_at > first.started_at
    assert store.previous_success(retried) is None
    assert store.describe_dag("unknown") is None
