"""The columns that tasks take of a DataFrame: only what the DAG file shows to be unread is left out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import DAG, task
from paceline.authoring import frames, pruning, xcom
from paceline.authoring.frames import DataFrameReference, DataFrames
from paceline.exceptions import DagError, XComError
from paceline.operators import BashOperator

FIELDS = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("day", "amount")]
PRUNED = DataFrameReference(
    url="file:///data/d/r/sales/r1-try1-x", schema={"type": "struct", "fields": FIELDS}, rows=3, bytes=700, left_out=("note",),
    task_id="sales",
)  # fmt: skip


@task.pyspark
def sales(spark: Any, number: int = 0) -> Any: ...


@task
def use(*frames: Any, **named: Any) -> Any: ...


@task.sql
def totals(orders: Any) -> str:
    return "select day, sum(amount) from orders where not cancelled group by day"


@task.sql
def everything(orders: Any) -> str:
    return "select * from orders"


@task.sql
def unknown(orders: Any) -> str:
    return f"select day from {orders}"


@task.sql
def other(rows: Any) -> str:
    return "select day from orders"


@task
def pulls(ti: Any) -> Any:
    return ti.xcom_pull(task_ids=["sales"])


@task
def pulls_other(ti: Any) -> Any:
    return ti.xcom_pull("others")


def taken(define: Callable[[Any], object], *path: str | int, mapped: bool = False) -> Any:
    """What is taken of the DataFrame at a path in the result of `sales`."""
    with DAG("d", schedule=None) as dag:
        define(sales.expand(number=[1, 2]) if mapped else sales())
    return pruning.taken(dag.get_task("sales"), path)


def both(first: object, second: object) -> None:
    """Two tasks that take something."""


@pytest.mark.parametrize(
    ("define", "columns"),
    [
        (lambda frame: use(frame[["day", "Amount"]]), {"day", "amount"}),
        (lambda frame: both(use(frame[["day"]]), use(x=frame["day", "shop"])), {"day", "shop"}),
        (lambda frame: use({"deep": [frame[["day"]]]}), {"day"}),
        (lambda frame: use.partial(x=frame[["day"]]).expand(y=[1, 2]), {"day"}),
        (lambda frame: use.expand(x=[frame[["day"]], frame[["shop"]]]), {"day", "shop"}),
        (lambda frame: both(use(frame[["note"]]), totals(frame)), {"note", "day", "amount", "orders", "cancelled"}),
        (lambda frame: both(use(frame[["day"]]), pulls_other()), {"day"}),
        (lambda frame: use(), None),
        (lambda frame: both(use(frame[["day"]]), use(frame)), None),
        (lambda frame: both(use(frame[["day"]]), use.expand(x=frame)), None),
        (lambda frame: both(use(frame[["day"]]), use.expand(x=frame.map(str))), None),
        (lambda frame: both(use(frame[["day"]]), everything(frame)), None),
        (lambda frame: both(use(frame[["day"]]), unknown(frame)), None),
        (lambda frame: both(use(frame[["day"]]), other(frame)), None),
        (lambda frame: both(use(frame[["day"]]), totals([frame])), None),
        (lambda frame: both(use(frame[["day"]]), pulls()), None),
        (lambda frame: both(use(frame[["day"]]), BashOperator(task_id="b", bash_command=f"ls {frame}")), None),
    ],
)
def test_all_is_written_unless_every_task_names_its_columns(define: Callable[[Any], object], columns: set[str] | None) -> None:
    assert taken(define) == columns


def test_each_dataframe_of_a_result_has_its_own_columns() -> None:
    def define(result: Any) -> None:
        use(result["a"][["day"]], result["parts"][0][["shop"]], result["parts"][1], result["last"][-1][["x"]])

    assert taken(define, "a") == {"day"}
    assert taken(define, "parts", 0) == {"shop"}
    assert taken(define, "parts", 1) is None
    assert taken(define, "last", 4) == {"x"}
    assert taken(define, "nobody") is None
    assert taken(define) is None
    assert taken(lambda result: (use(result["a"][["day"]]), use(result)), "a") is None


def test_columns_may_be_named_of_all_instances_of_a_mapped_task() -> None:
    assert taken(lambda frames: use(frames[["day"]]), mapped=True) == {"day"}


def test_a_task_of_a_mapped_group_may_get_the_whole() -> None:
    from paceline import task_group

    @task_group
    def each(frame: Any) -> None:
        use(frame)

    assert taken(lambda frame: (use(frame[["day"]]), each.expand(frame=frame))) is None


@pytest.mark.parametrize("columns", [[], [1], ["day", 2], ()])
def test_columns_are_a_list_of_names(columns: Any) -> None:
    with DAG("d"), pytest.raises(DagError, match="or a list of columns"):
        sales()[columns]


class Session:
    """Records the columns of each DataFrame that is opened, in place of a SparkSession."""

    def __init__(self) -> None:
        self.columns: list[str] = []

    @property
    def read(self) -> "Session":
        return self

    def schema(self, schema: Any) -> "Session":
        self.columns = schema.names
        return self

    def parquet(self, *_: str) -> list[str]:
        return self.columns


def test_a_reference_to_some_columns_opens_only_these() -> None:
    pytest.importorskip("pyspark")
    session: Any = Session()

    assert PRUNED[["amount"]].to_spark(session) == ["amount"]
    assert list(PRUNED["amount", "day"].columns) == ["amount", "day"]
    assert frames.opened([PRUNED[["day"]]], session).union() == ["day"]


def test_a_reader_of_a_column_that_was_left_out_learns_which_task_to_clear() -> None:
    pytest.importorskip("pyspark")
    session: Any = Session()
    readers: list[Callable[[], object]] = [
        lambda: PRUNED[["day", "note"]], lambda: PRUNED.to_spark(session), PRUNED.to_pandas, lambda: PRUNED.to_pandas(["note"]),
        lambda: DataFrames([PRUNED[["day"]], PRUNED], session).union(), lambda: PRUNED.named_in({"note"}),
    ]  # fmt: skip

    for read in readers:
        with pytest.raises(XComError, match=r"The task 'sales' left 'note' out of its DataFrame.*clear 'sales'"):
            read()


def test_a_column_that_there_never_was_is_named() -> None:
    with pytest.raises(XComError, match="has no column 'nte'; its columns are day, amount, note"):
        PRUNED[["nte"]]


def test_what_was_left_out_is_part_of_the_reference() -> None:
    assert xcom.decode(xcom.encode([PRUNED], 10_000)) == [PRUNED]
    whole = PRUNED[["day", "amount"]]
    assert json.loads(xcom.encode(whole, 10_000)).keys() == {"__dataframe__", "url", "format", "rows", "bytes", "schema"}


def test_pandas_reads_only_the_columns_of_the_reference(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"day": [1, 2], "a.b": [3, 4], "note": ["x", "y"]}), tmp_path / "part.parquet")
    fields = [{"name": name, "type": "long"} for name in ("day", "a.b")]
    frame = DataFrameReference(url=f"file://{tmp_path}", schema={"type": "struct", "fields": fields}, rows=2, bytes=1)

    assert frame.to_pandas().to_dict("list") == {"day": [1, 2], "a.b": [3, 4]}
    assert frame[["a.b"]].to_pandas().to_dict("list") == {"a.b": [3, 4]}
    assert frame.to_pandas(["day"]).to_dict("list") == {"day": [1, 2]}
