"""The checker of chaos runs, on recorded ledgers: each counter finds its violations, and excuses only causes in the history."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from chaos.checker import COUNTERS, Findings, Tolerance, check
from chaos.history import Action, Harm, History, Outage
from chaos.plan import Plan, PlannedDag, PlannedTask, Schedule
from chaos.records import Execution, Records, StoredInstance, StoredRun, StoredTry

START = datetime(2026, 1, 1, tzinfo=UTC)
DAG = PlannedDag(
    dag_id="d",
    tasks=(
        PlannedTask(task_id="a", retries=1, pool="narrow"),
        PlannedTask(task_id="b", upstream=("a",), takes="a", retries=1, pool="narrow"),
        PlannedTask(task_id="fails", does="fails", retries=0, upstream=("a",)),
        PlannedTask(task_id="skips", does="skips", upstream=("a",)),
        PlannedTask(task_id="never", upstream=("fails",)),
        PlannedTask(task_id="last", upstream=("b", "skips"), rule="all_done"),
    ),
)
MAPPED = PlannedDag(
    dag_id="m",
    tasks=(
        PlannedTask(task_id="make", does="lists", count=2),
        PlannedTask(task_id="one", does="item", count=2, over="make", upstream=("make",)),
    ),
)
PAST = PlannedDag(
    dag_id="p",
    tasks=(PlannedTask(task_id="t", depends_on_past=True),),
    schedule=Schedule(start=START, end=START + timedelta(seconds=20), interval=timedelta(seconds=20)),
)


def ran(dag_id: str, run_id: str, task_id: str, start: float, *, index: int = -1, number: int = 1, **other: Any) -> Execution:
    value = f"{run_id}/{task_id}/{index}/{number}"
    given = {"ended": start + 1.0, "outcome": "done", "returned": value, "process": "worker-1", "child": 11, **other}
    return Execution(key=(dag_id, run_id, task_id, index), try_number=number, start=start, id=f"{value}@{start}", **given)


def stored(one: Execution, state: str = "success", **other: Any) -> StoredInstance:
    """As it is stored if all is well."""
    now = StoredTry(state=state, process=one.process, start=one.start, ended=one.ended, reason="because")
    stored = StoredInstance(key=one.key, state=state, try_number=one.try_number, tries={one.try_number: now}, result=one.returned)
    return replace(stored, **other)


@dataclass
class Record:
    """A run of each DAG in which all is well; tests change one thing."""

    executions: dict[str, Execution] = field(default_factory=dict)
    instances: dict[str, StoredInstance] = field(default_factory=dict)
    runs: list[StoredRun] = field(default_factory=list)
    history: History = field(default_factory=History)
    parallelism: int = 2

    def findings(self) -> Findings:
        plan = Plan.of([DAG, MAPPED, PAST], {"narrow": 1}, self.parallelism)
        executions = sorted(self.executions.values(), key=lambda one: one.start)
        return check(
            plan, Records(self.runs, list(self.instances.values()), executions), self.history, Tolerance(after_harm_s=10.0)
        )

    def only(self, counter: str) -> list[str]:
        """The findings of this counter; all others are empty."""
        found = self.findings()
        assert {name for name in COUNTERS if getattr(found, name)} == {counter}
        return list(getattr(found, counter))

    def run(self, name: str, one: Execution, state: str = "success", **other: Any) -> None:
        self.executions[name] = one
        self.instances[name] = stored(one, state, **other)

    def change(self, name: str, **other: Any) -> None:
        self.instances[name] = replace(self.instances[name], **other)

    def executes(self, name: str, **other: Any) -> None:
        self.executions[name] = replace(self.executions[name], **other)

    def undone(self, name: str, state: str) -> None:
        """It has this state although its code never ran."""
        del self.executions[name]
        self.change(name, state=state, try_number=0, tries={}, result=None)

    def retried(self, name: str, reason: str = "because") -> None:
        """Its first try is stored as failed, and a second one succeeded at 100."""
        first = self.executions[name]
        second = ran(*first.key[:3], 100.0, index=first.key[3], number=2, given=first.given)
        self.executions[f"{name} again"] = second
        failed = StoredTry(state="failed", process=first.process, start=first.start, ended=first.ended, reason=reason)
        good = stored(second)
        self.instances[name] = replace(good, tries={1: failed, **good.tries})


@pytest.fixture
def record() -> Record:
    record = Record()
    for dag_id in "dm":
        record.runs.append(StoredRun(dag_id=dag_id, run_id="r", state="failed" if dag_id == "d" else "success"))
        record.history.requested(dag_id, "r", sure=True)
    record.run("a", ran("d", "r", "a", 0.0))
    record.run("b", ran("d", "r", "b", 2.0, given="r/a/-1/1"))
    record.run("fails", ran("d", "r", "fails", 2.0, outcome="raised", returned=None), "failed")
    record.run("skips", ran("d", "r", "skips", 4.0, outcome="skipped", returned=None), "skipped")
    record.instances["never"] = StoredInstance(key=("d", "r", "never", -1), state="upstream_failed", try_number=0)
    record.run("last", ran("d", "r", "last", 200.0))
    record.run("make", ran("m", "r", "make", 6.0, returned=["r:0", "r:1"]))
    for index in (0, 1):
        record.run(f"one{index}", ran("m", "r", "one", 8.0, index=index, given=f"r:{index}"))
    for number in (0, 1):
        run_id = f"scheduled{number}"
        date = (START + number * timedelta(seconds=20)).timestamp()
        record.runs.append(StoredRun(dag_id="p", run_id=run_id, state="success", run_type="scheduled", logical_date=date))
        record.run(run_id, ran("p", run_id, "t", 10.0 + 2 * number))
    return record


def harm(record: Record, process: str, start: float, end: float, child: int | None = None) -> None:
    record.history.harms.append(Harm("SIGKILL", process, start, end, child))


def act(record: Record, kind: str, task_id: str, start: float) -> None:
    tasks = DAG.with_descendants([task_id]) if kind == "clear" else frozenset({task_id})
    record.history.actions.append(Action(kind=kind, dag_id="d", run_id="r", tasks=tasks, start=start, end=start))


def test_a_run_in_which_all_is_well_has_no_findings(record: Record) -> None:
    assert record.findings() == Findings()


UNENDED = {"ended": None, "outcome": None}


def gave_up(record: Record) -> None:
    harm(record, "worker-1", 199.0, 202.0)
    record.run("last", replace(record.executions["last"], **UNENDED), "failed", result=None)


def other_index(record: Record) -> None:
    record.instances["one1"] = replace(record.instances["one1"], key=("m", "r", "one", 2))
    record.executes("one1", key=("m", "r", "one", 2), given="r:2")


def list_made_again(record: Record) -> None:
    del record.instances["one1"], record.executions["one1"]
    cleared = MAPPED.with_descendants(["make"])
    record.history.actions.append(Action(kind="clear", dag_id="m", run_id="r", tasks=cleared, start=300.0, end=300.0))


@pytest.mark.parametrize(
    ("change", "counter", "findings"),
    [
        # A success that was discarded and repeated; reasons that the product records about itself excuse nothing.
        (lambda r: r.retried("last"), "lost_success",
         ["d.last (run r): try 1 was done by worker-1 and is failed (because; worker worker-1)"]),
        (lambda r: r.retried("last", reason="worker worker-1 sent no heartbeat for 10 s"), "lost_success", 1),
        (lambda r: r.run("last", r.executions["last"], "skipped", result=None), "lost_success", 1),
        (lambda r: r.run("last", r.executions["last"], tries={}), "lost_success", 1),
        # A failure or a skip that neither the rule nor the task explains.
        (gave_up, "failed_without_cause", ["d.last (run r) failed for good in try 1, with retries left"]),
        (lambda r: r.undone("last", "upstream_failed"), "failed_without_cause",
         ["d.last (run r) is upstream_failed, by all_done over skipped 1, success 1"]),
        (lambda r: r.runs.append(replace(r.runs.pop(1), state="failed")), "failed_without_cause",
         ["m, run r: failed, and no leaf task did"]),
        (lambda r: r.undone("last", "skipped"), "skipped_without_cause",
         ["d.last (run r) is skipped, by all_done over skipped 1, success 1"]),
        (lambda r: r.run("last", replace(r.executions["last"], **UNENDED), "skipped", result=None), "skipped_without_cause", 1),
        # A value that is not stored as it was returned, and one of another task.
        *((lambda r, value=value: r.change("last", result=value), "wrong_xcoms", 1) for value in (None, "r/last/-1/2", "other")),
        *((lambda r, name=name, given=given: r.executes(name, given=given), "wrong_xcoms", 1)
          for name, given in (("b", None), ("b", "r/a/-1/2"), ("one0", "r:1"), ("one1", "other:1"))),
        (lambda r: r.run("scheduled1", replace(r.executions["scheduled1"], start=10.5)), "out_of_order",
         ["p.t (run scheduled1) began before the end of t in the run before, scheduled0"]),
        (other_index, "wrong_runs", ["m.one[1] (run r) is missing", "m.one[2] (run r) is not planned"]),
        (list_made_again, "wrong_runs", ["m.one[1] (run r) is missing"]),
    ],
)  # fmt: skip
def test_each_violation_is_a_finding_of_its_counter(
    record: Record, change: Callable[[Record], None], counter: str, findings: int | list[str]
) -> None:
    change(record)

    found = record.only(counter)

    assert (len(found) if isinstance(findings, int) else found) == findings


@pytest.mark.parametrize(
    ("process", "child", "at", "excuses"),
    [
        ("worker-1", None, 200.5, True),
        ("worker-1", 11, 200.5, True),
        ("worker-1", 12, 200.5, False),  # another child of it
        ("worker-2", None, 200.5, False),
        ("worker-1", None, 195.0, True),  # just before: it may be declared lost now
        ("worker-1", None, 150.0, False),
    ],
)
def test_only_a_fault_of_the_worker_or_child_that_ran_it_excuses(
    record: Record, process: str, child: int | None, at: float, excuses: bool
) -> None:
    record.retried("last")
    record.executions["last again"] = replace(record.executions["last again"], start=300.0, ended=301.0)
    harm(record, process, at, at, child)

    assert (record.findings().lost_success == []) is excuses


@pytest.mark.parametrize(
    ("outages", "killed_at", "excuses"),
    [
        ([], 230.0, False),  # it was reported long before
        ([(200.5, 240.0)], 230.0, True),  # its report was waiting
        ([(200.5, 240.0)], 245.0, True),  # it may be sent just now
        ([(200.5, 240.0)], 250.0, False),
        ([(200.5, 240.0), (243.0, 280.0)], 270.0, True),
        ([(210.0, 240.0)], 230.0, False),  # reported before the outage
        ([(200.5, 240.0)], None, False),  # an outage alone loses nothing
    ],
)
def test_a_report_is_late_by_an_outage_of_postgresql_and_not_by_more(
    record: Record, outages: list[tuple[float, float]], killed_at: float | None, excuses: bool
) -> None:
    record.retried("last")
    record.executions["last again"] = replace(record.executions["last again"], start=300.0, ended=301.0)
    record.history.outages += [Outage(start, end) for start, end in outages]
    if killed_at is not None:
        harm(record, "worker-1", killed_at, killed_at)

    assert (record.findings().lost_success == []) is excuses


def test_a_try_that_failed_before_its_code_has_no_cause(record: Record) -> None:
    record.retried("last")
    del record.executions["last"]

    assert len(record.only("failed_without_cause")) == 1
    harm(record, "worker-1", 200.5, 201.0)
    assert record.findings().ok


def test_a_failure_that_is_planned_is_none(record: Record) -> None:
    record.change("fails", state="failed", try_number=2)
    record.executions.pop("fails")

    assert len(record.findings().failed_without_cause) == 1, "it did not raise, so it failed for another reason"


def test_a_task_that_began_before_the_end_of_its_upstream_task_is_out_of_order(record: Record) -> None:
    record.parallelism = 9
    record.run("never", ran("d", "r", "never", 30.0))
    record.run("last", replace(record.executions["last"], start=4.5))

    found = record.findings().out_of_order

    assert found[0].startswith("d.never (run r) is success, by all_success over failed 1: it must not run")
    assert found[1:] == ["d.last (run r) began before the end of skips"]


def test_missing_and_unrequested_runs_are_wrong(record: Record) -> None:
    record.runs = [run for run in record.runs if run.run_id != "scheduled1"]
    del record.instances["scheduled1"], record.executions["scheduled1"]
    record.history.requested("d", "lost", sure=True)
    record.history.requested("d", "perhaps", sure=False)
    record.runs.append(StoredRun(dag_id="m", run_id="surprise", state="queued"))

    found = record.findings().wrong_runs

    assert [text.partition(":")[0] for text in found if "is missing" not in text] == ["d, run lost", "m, run surprise", "p"]


def test_more_at_a_time_than_parallelism_is_an_overrun_unless_a_fault_hides_it_from_the_product(record: Record) -> None:
    record.parallelism = 1
    assert len(record.only("parallelism_overruns")) == 2
    harm(record, "worker-1", 0.0, 300.0)

    assert record.findings().ok


def test_more_at_a_time_than_a_pool_has_slots_is_an_overrun(record: Record) -> None:
    record.executions["a"] = replace(record.executions["a"], ended=2.5)

    assert len(record.findings().slot_overruns) == 1


@pytest.mark.parametrize(("harmed", "without_fault"), [(False, 1), (True, 0)])
def test_two_executions_at_a_time_overlap(record: Record, harmed: bool, without_fault: int) -> None:
    record.retried("last")
    record.executions["last"] = replace(record.executions["last"], start=99.0, ended=104.0)
    if harmed:
        harm(record, "worker-1", 95.0, 96.0)

    found = record.findings()

    assert found.overlap_figures() == {"count": 1, "longest_s": 1.0, "without_fault": without_fault}
    assert found.ok is harmed


def test_an_execution_that_is_still_there_overlaps_for_an_unknown_time(record: Record) -> None:
    record.retried("last")
    first = record.executions["last"] = replace(record.executions["last"], start=99.0, ended=None, outcome=None)
    record.executions["last again"] = replace(record.executions["last again"], ended=None, outcome=None, beside=(first.id,))

    assert record.findings().overlap_figures() == {"count": 1, "longest_s": None, "without_fault": 1}


def _cleared(record: Record) -> None:
    """b and its downstream tasks, after the run had ended."""
    first = record.executions["b"]
    again = ran("d", "r", "b", 300.0, number=2, given="r/a/-1/1")
    record.executions["b again"] = again
    record.instances["b"] = replace(stored(again), tries={1: stored(first).tries[1], **stored(again).tries})


def _marked(record: Record) -> None:
    """b, while it ran; that decided its downstream tasks."""
    record.run("b", replace(record.executions["b"], outcome="stopped", returned=None), "failed", result=None)


@pytest.mark.parametrize(("kind", "change"), [("clear", _cleared), ("mark", _marked)])
def test_an_action_of_a_user_is_no_finding(record: Record, kind: str, change: Callable[[Record], None]) -> None:
    change(record)
    act(record, kind, "b", 299.0 if kind == "clear" else 2.5)

    assert record.findings() == Findings()


def test_instances_of_a_list_that_a_person_took_away_may_stay_or_be_missing(record: Record) -> None:
    """Marked as failed after its instances had run, and cleared: neither determines the number of instances."""
    record.run("make", replace(record.executions["make"], outcome="stopped", returned=None), "failed", result=None)
    assert any("one[0]" in text for text in record.findings().wrong_runs)

    record.history.actions.append(Action(kind="mark", dag_id="m", run_id="r", tasks=frozenset({"make"}), start=6.5, end=6.5))

    assert record.findings().wrong_runs == []


@pytest.mark.parametrize(("task_id", "state"), [("b", "skipped"), ("skips", "failed")])
def test_a_mark_overrules_an_earlier_end_of_a_task(record: Record, task_id: str, state: str) -> None:
    one = record.executions[task_id]
    record.instances[task_id] = stored(one, state, result=None if task_id == "skips" else one.returned)
    assert not record.findings().ok

    act(record, "mark", task_id, 90.0)

    assert record.findings() == Findings()


def test_a_mark_before_a_try_excuses_nothing_of_it(record: Record) -> None:
    one = replace(record.executions["b"], start=99.0, ended=100.0)
    record.run("b", one, "skipped")
    act(record, "mark", "b", 30.0)

    assert record.findings().lost_success == ["d.b (run r): try 1 was done by worker-1 and is skipped (because; worker worker-1)"]
