"""Assets in user code: `@asset`, outlet_events, and the mappings of events."""

from datetime import UTC, datetime

import pytest
from support.tries import run

from paceline import DAG, Asset, asset
from paceline.authoring import scope
from paceline.authoring.asset import AssetEvent, AssetEvents, OutletEvents
from paceline.exceptions import DagError

A, B = Asset("a", "s3://a"), Asset("b", "s3://b")


def event(of: Asset, number: int) -> AssetEvent:
    return AssetEvent(
        asset=of, extra={"n": number}, timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        source_dag_id="d", source_run_id="r", source_task_id="t", source_map_index=-1,
    )  # fmt: skip


def test_events_are_read_once_and_found_by_asset_uri_or_name() -> None:
    reads = []

    def read() -> list[AssetEvent]:
        reads.append(1)
        return [event(A, 1), event(A, 2)]

    events = AssetEvents(read, [B])
    assert reads == []

    assert [one.extra["n"] for one in events[A]] == [1, 2]
    assert events["s3://a"] == events["a"] == events[Asset(uri="s3://a")]
    assert list(events[B]) == []
    assert {one.name for one in events} == {"a", "b"}
    assert reads == [1]
    assert Asset("c") not in events
    with pytest.raises(KeyError, match="c: this task has no such asset here"):
        events["c"]


def test_outlet_events_of_a_task_are_stored_by_uri() -> None:
    events = OutletEvents([A, B])
    events[A].extra = {"rows": 7}
    events["a"].add({"files": 1})

    assert events.to_xcom() == {"s3://a": {"extra": {"rows": 7, "files": 1}}}
    with pytest.raises(KeyError):
        events["elsewhere"].extra["x"] = 1


def test_an_asset_function_is_a_dag_of_one_task_that_updates_it() -> None:
    with scope.collect() as made:

        @asset(schedule=A & B, uri="s3://c", tags=["lake"])
        def c(self, context, run_id):  # type: ignore[no-untyped-def]
            return self.uri, run_id, len(context)

    (dag,) = made
    task = dag.get_task("c")
    assert (c.name, c.uri, dag.dag_id, dag.timetable.summary, dag.tags) == ("c", "s3://c", "c", "on a and b", ["lake"])
    assert task.outlet_uris == ("s3://c",)
    assert task.execute({"run_id": "r1"}) == ("s3://c", "r1", 1)


def test_other_parameters_of_an_asset_function_are_assets_that_it_reads() -> None:
    """Airflow 3.3.2 makes them inlets, by name, and passes the assets. A parameter with a default is no input."""
    with scope.collect() as made:

        @asset(schedule=None, name="lake/c", dag_id="refresh_c")
        def c(self, context, other, ds, rows=3, *, last):  # type: ignore[no-untyped-def]
            return self.name, len(context["inlets"]), other.uri, ds, rows, last.name, context["inlet_events"][other]

        @asset(schedule=None, name="d_of_lake")
        def d(first):  # type: ignore[no-untyped-def]
            return first

    task, dag = made[0].get_task("c"), made[0]
    result, _ = run(task)

    assert result == ("lake/c", 2, "other", "2026-03-04", 3, "last", [])
    assert (dag.dag_id, dag.asset_names, made[1].dag_id) == ("refresh_c", {}, "d_of_lake")


def test_a_dag_names_its_assets_once() -> None:
    from paceline.operators import EmptyOperator

    with DAG("d", schedule=[A]) as dag:
        EmptyOperator(task_id="t", outlets=[B, Asset("plain")], inlets=[A])

    assert dag.asset_names == {"s3://a": "a", "s3://b": "b"}
    with pytest.raises(DagError, match="outlets must be a list of Asset"):
        EmptyOperator(task_id="u", outlets=["s3://a"])
