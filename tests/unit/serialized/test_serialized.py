"""The DAG as data: order, numbers, ranges, and the same bytes for the same DAG."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline import DAG
from paceline.operators import EmptyOperator
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag, params_in_order
from scheduler.serialized.tasks import ALWAYS_STORED, SerializedTask, complete
from scheduler.settings import Core, Scheduler


def serialized(dag: DAG) -> SerializedDag:
    return from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler())


def authored(edges: list[tuple[int, int]], count: int) -> DAG:
    with DAG("d", schedule=None) as dag:
        tasks = [EmptyOperator(task_id=f"t{number:02}") for number in range(count)]
        for above, below in edges:
            tasks[above] >> tasks[below]
    return dag


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[list[tuple[int, int]], int]:
    count = draw(st.integers(1, 14))
    pairs = [(above, below) for above in range(count) for below in range(above + 1, count)]
    return draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else [], count


@given(edge_lists())
def test_tasks_come_after_their_upstream_and_ranges_name_exactly_these(drawn: tuple[list[tuple[int, int]], int]) -> None:
    dag = serialized(authored(*drawn))

    for no, above in enumerate(dag.upstream):
        assert all(one < no for one in above)
        assert [one for low, high in dag.upstream_ranges[no] for one in range(low, high + 1)] == list(above)
        assert all(no in dag.downstream[one] for one in above)
    assert {no for no in range(len(dag.tasks)) if not dag.downstream[no]} == set(dag.leaves)


@given(edge_lists())
def test_it_reads_back_as_it_was_written(drawn: tuple[list[tuple[int, int]], int]) -> None:
    dag = serialized(authored(*drawn))

    again = SerializedDag.from_json(dag.to_json())

    assert again == dag
    assert again.content_hash == dag.content_hash


def test_a_fan_in_is_one_range_however_wide() -> None:
    with DAG("d", schedule=None) as dag:
        start, end = EmptyOperator(task_id="start"), EmptyOperator(task_id="end")
        middle = [EmptyOperator(task_id=f"m{number}") for number in range(500)]
        start >> middle >> end

    data = serialized(dag)

    assert data.upstream_ranges[data.number["end"]] == ((1, 500),)


def test_params_keep_the_order_of_their_author_in_the_database() -> None:
    sorted_by_length = {"rows": 1, "region": "all"}
    assert serialized(DAG("d", schedule=None, params=sorted_by_length)).param_order == ()

    data = json.loads(serialized(DAG("d", schedule=None, params={"region": "all", "rows": 1, "since": None})).to_json())
    data["params"] = dict(sorted(data["params"].items(), key=lambda param: len(param[0])))

    assert list(params_in_order(data)) == ["region", "rows", "since"]
    assert params_in_order(data) == data["params"]
    assert params_in_order(data | {"param_order": ["gone", "since"]}).keys() == data["params"].keys()


def test_values_that_the_author_leaves_out_come_from_the_settings() -> None:
    with DAG("d", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        EmptyOperator(task_id="t")

    data = from_dag(
        dag,
        file="d.py",
        core=Core(default_task_retries=4, default_task_retry_delay=7, max_active_runs_per_dag=3, max_active_tasks_per_dag=5),
        scheduler=Scheduler(catchup_by_default=True),
    )

    assert (data.max_active_runs, data.max_active_tasks, data.catchup) == (3, 5, True)
    assert (data.tasks[0].retries, data.tasks[0].retry_delay_s) == (4, 7.0)


def test_keys_of_a_newer_writer_are_passed_over() -> None:
    dag = SerializedDag(
        dag_id="d", file="d.py", schedule={"kind": "never"}, tasks=(SerializedTask(task_id="t", operator="E", runtime="empty"),)
    )
    newer = dag.to_json().replace('"task_id":"t"', '"task_id":"t","colour":"red"').replace('"file":', '"mood":1,"file":')

    assert SerializedDag.from_json(newer) == dag


def test_a_stored_task_omits_defaults_and_keeps_fields_that_statements_read() -> None:
    plain = SerializedTask(task_id="t", operator="E", runtime="empty")
    other = SerializedTask(task_id="o", operator="E", runtime="empty", sla_s=5.0, depends_on_past=True, email=("a@b",))

    stored, other_stored = (json.loads(dag_of(task).to_json())["tasks"][0] for task in (plain, other))

    assert stored.keys() == {"task_id", "operator", "runtime"} | ALWAYS_STORED
    assert other_stored.keys() - stored.keys() == {"sla_s", "depends_on_past", "email"}
    assert SerializedDag.from_json(json.dumps({**json.loads(dag_of(plain).to_json()), "tasks": [complete(stored)]})) == dag_of(
        plain
    )


def test_a_new_field_with_a_default_changes_no_hash() -> None:
    @dataclass(frozen=True, kw_only=True)
    class NextTask(SerializedTask):
        colour: str = "red"

    @dataclass(frozen=True, kw_only=True)
    class NextDag(SerializedDag):
        moods: dict[str, Any] = field(default_factory=dict)
        shape: int = 1

    task = {"task_id": "t", "operator": "E", "runtime": "empty"}
    dag = {"dag_id": "d", "file": "d.py", "schedule": {"kind": "never"}}

    now = SerializedDag(**dag, tasks=(SerializedTask(**task),))
    later = NextDag(**dag, tasks=(NextTask(**task),))

    assert later.content_hash == now.content_hash
    assert NextDag(**dag, shape=2, tasks=now.tasks).content_hash != now.content_hash
    assert NextDag(**dag, tasks=(NextTask(**task, colour="blue"),)).content_hash != now.content_hash
    # A change of this hash gives each DAG a new version with the upgrade, and one more for as long as both releases parse it.
    assert now.content_hash == "c53ebc7c45f365d793e5bc03d8a5520ade5f2ac768129b65aba9c2b3f2c305ee"


def dag_of(task: SerializedTask) -> SerializedDag:
    return SerializedDag(dag_id="d", file="d.py", schedule={"kind": "never"}, tasks=(task,))
