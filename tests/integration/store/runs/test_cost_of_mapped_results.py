"""Tasks mapped over the result of another: while the DAG changes and runs are cleared, at a linear cost."""

import json
from typing import Any

import pytest
from support.run_actions import brief, clear_, push, running
from support.scenario import Scenario, dag, of, product

from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.store.db.database import transact
from scheduler.store.runs.edits import delete_xcom, put_xcom
from scheduler.store.runs.selection import Tasks
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Ending
from scheduler.store.worker.hot_path import HotPath

#: Instances of `each`, and blocks that PostgreSQL may read for all entries together, for each of them.
SIZE, BLOCKS = 1500, 20


class Reads:
    """The connection of a pool process, with the blocks that PostgreSQL reads for its statements, and the rows that it returns."""

    def __init__(self, hot: HotPath) -> None:
        self._hot = hot
        self.blocks = 0
        self.rows: list[Any] = []

    def read(self, statement: str, parameters: Any) -> list[Any]:
        plan = self._hot.value("explain (analyze, buffers, format json) " + statement, parameters)[0]["Plan"]
        self.blocks += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        found = self._hot.read(statement, parameters)
        self.rows += found
        return found

    def value(self, statement: str, parameters: Any) -> Any:
        return next((value for (value,) in self.read(statement, parameters)), None)


def mapped_over_mapped(scenario: Scenario, *, size: int, without: int, unfinished: int = 0) -> tuple[int, int]:
    """A run in which `each` has returned its map index, except one that returned nothing; and the number of `each`.

    The first `unfinished` instances have a value, too, but have not ended.
    """
    literal = {"expand": {"kind": "product", "inputs": [{"literal": size}]}}
    edges: dict[str, list[str]] = {"each": [], "sum": ["each"]}
    run = scenario.start(dag("d", edges, options={"each": literal, "sum": product(of("each"))}), run_id="r")
    scenario.sql(
        "update task_instance set state = 'success', started_at = now(), ended_at = now(), try_number = 1"
        " where task_id = 'each' and map_index >= %s",
        unfinished,
    )
    scenario.sql(
        "insert into xcom (task_instance_id, key, value) select id, 'return_value', to_json(map_index) from task_instance"
        " where task_id = 'each' and map_index is distinct from %s",
        without,
    )
    return run, scenario.rows("select task_no from task_instance where task_id = 'each' limit 1")[0][0]


@pytest.mark.parametrize("unfinished", [0, 1])
def test_all_entries_of_a_mapped_result_are_read_in_linear_time(scenario: Scenario, unfinished: int) -> None:
    run, task_no = mapped_over_mapped(scenario, size=SIZE, without=700, unfinished=unfinished)
    scenario.sql("analyze task_instance, xcom")
    reads, over = Reads(scenario.hot), xcoms.MappedOver()
    places = range(0, SIZE - 1, 5)

    for place in places:
        assert xcoms.length(reads, run, task_no, "return_value", is_mapped=True, over=over) == SIZE - 1
        entry = xcoms.entry(reads, run, task_no, "return_value", place, is_mapped=True, over=over)
        assert entry == [place if place < 700 else place + 1]

    assert reads.blocks < BLOCKS * (SIZE + len(places))


def test_a_product_of_two_results_reads_each_of_them_once(scenario: Scenario) -> None:
    options = {"both": product(of("a"), of("b"))}
    run = scenario.start(dag("d", {"a": [], "b": [], "both": ["a", "b"]}, options=options), run_id="r")
    scenario.work(lambda claim: Ending(TaskState.SUCCESS, result=json.dumps([claim.task_id, 2])))
    reads, over = Reads(scenario.hot), xcoms.MappedOver()

    for place in (0, 1, 0, 1):
        got = [xcoms.entry(reads, run, no, "return_value", place, is_mapped=False, over=over) for no in (0, 1)]
        assert got == [[["a", 2][place]], [["b", 2][place]]]

    assert len([text for _, text in reads.rows if text is not None]) == 2


@pytest.mark.parametrize("again", ["the same instances", "others"])
def test_a_process_sees_the_results_of_a_cleared_mapped_task(scenario: Scenario, again: str) -> None:
    run, task_no = mapped_over_mapped(scenario, size=4, without=1)
    over = xcoms.MappedOver()

    def entries() -> list[Any]:
        size = xcoms.length(scenario.hot, run, task_no, "return_value", is_mapped=True, over=over)
        return [
            xcoms.entry(scenario.hot, run, task_no, "return_value", place, is_mapped=True, over=over)[0]
            for place in range(size or 0)
        ]

    assert entries() == entries() == [0, 2, 3]
    silent = 1 if again == "the same instances" else 2
    clear_(scenario, Tasks(task_ids=("each",), downstream=True))
    assert entries() == []
    results: list[Any] = []

    def outcome(claim: Any) -> Ending:
        results.append(entries())
        value = None if claim.map_index == silent else json.dumps(claim.map_index + 10)
        return Ending(TaskState.SUCCESS, result=value if claim.task_id == "each" else None)

    scenario.run_to_end(outcome=outcome)

    assert entries() == [place + 10 for place in range(4) if place != silent]


def test_a_deleted_or_added_xcom_changes_the_entries_at_once(scenario: Scenario) -> None:
    run, task_no = mapped_over_mapped(scenario, size=3, without=1)
    over = xcoms.MappedOver()
    ids = [row[0] for row in scenario.rows("select id from task_instance where task_id = 'each' order by map_index")]

    def entry(place: int) -> list[Any]:
        return xcoms.entry(scenario.hot, run, task_no, "return_value", place, is_mapped=True, over=over)

    assert [entry(place) for place in range(3)] == [[0], [2], []]
    transact(scenario.engine, put_xcom, ids[1], "return_value", 1, new=True)
    assert [entry(place) for place in range(3)] == [[0], [1], [2]]
    transact(scenario.engine, delete_xcom, ids[0], "return_value")
    assert [entry(place) for place in range(3)] == [[1], [2], []]
    transact(scenario.engine, put_xcom, ids[1], "return_value", "new", new=False)
    assert entry(0) == ["new"]


S = TaskState
FREE = {"disable_bundle_versioning": True}


def mapped(ref: dict[str, Any] | None = None, **options: Any) -> SerializedDag:
    """source returns a list, each is mapped over it, after comes after all of each."""
    edges: dict[str, list[str]] = {"source": [], "each": ["source"], "after": ["each"]}
    return dag("d", edges, options={"each": product(ref or of("source"))}, **options)


def returning(result: str) -> Any:
    return lambda claim: Ending(S.SUCCESS, result=result if claim.task_id == "source" else None)


REFS = [
    of("source"),
    {"zip": [of("source"), {"literal": 5}], "longest": False},
    {"zip": [of("source"), {"literal": 2}], "longest": True},
    {"concat": [of("source"), {"concat": [of("source")]}]},
]


@pytest.mark.parametrize("ref", REFS, ids=["result", "zip", "zip_longest", "concat"])
def test_an_open_run_continues_after_an_edit_of_its_unpinned_dag(scenario: Scenario, ref: dict[str, Any]) -> None:
    scenario.add(mapped(ref, **FREE))
    run = scenario.trigger("d", run_id="r")
    push(scenario, running(scenario), "[1, 2]")
    scenario.turn()
    scenario.add(mapped(ref, description="edited", **FREE))

    scenario.sql("update task_instance set state = 'scheduled' where state = 'queued'")  # their messages go astray
    scenario.run_to_end(turns=10)

    assert scenario.run_state(run) == "success"
    assert scenario.rows("select max(v.number) from dag_run r join dag_version v on v.id = r.version_id") == [(2,)]


@pytest.mark.parametrize("ref", REFS, ids=["result", "zip", "zip_longest", "concat"])
def test_clearing_with_the_latest_version_after_an_edit_keeps_the_mapped_result(scenario: Scenario, ref: dict[str, Any]) -> None:
    scenario.add(mapped(ref))
    run = scenario.trigger("d", run_id="r")
    scenario.run_to_end(outcome=returning("[1, 2]"))
    before = scenario.states()
    scenario.add(mapped(ref, description="edited"))

    changes = clear_(scenario, Tasks(task_ids=("after",)), latest=True)

    assert brief(changes) == [("after", -1, "success", "none")]
    scenario.run_to_end()
    assert scenario.states() == before
    assert scenario.run_state(run) == "success"


def test_a_process_splits_a_result_once_until_it_changes(scenario: Scenario) -> None:
    scenario.add(mapped())
    scenario.trigger("d", run_id="r")
    source = running(scenario)
    over = xcoms.MappedOver()

    def entries(key: str = "return_value") -> Any:
        return over.entries(scenario.hot, source.dag_run_id, source.task_no, key)

    assert entries() is None
    xcoms.push(scenario.hot, source, "return_value", '[1, {"a": [2]}]')
    first = entries()
    assert (first, entries() is first) == (["1", '{"a": [2]}'], True)

    xcoms.push(scenario.hot, source, "return_value", "[3]")
    xcoms.push(scenario.hot, source, "other", '{"b": "\u00e9"}')

    assert [entries(), entries("other"), entries()] == [["3"], ['["b", "\u00e9"]'], ["3"]]
    xcoms.clear(scenario.hot, source)
    assert entries() is None


def test_an_instance_does_not_see_changes_of_another_to_its_entry(scenario: Scenario) -> None:
    scenario.add(mapped())
    scenario.trigger("d", run_id="r")
    source = running(scenario)
    xcoms.push(scenario.hot, source, "return_value", "[[1]]")
    over = xcoms.MappedOver()

    def entry() -> Any:
        found = xcoms.entry(scenario.hot, source.dag_run_id, source.task_no, "return_value", 0, is_mapped=False, over=over)
        return found[0]

    entry().append(2)

    assert entry() == [1]
