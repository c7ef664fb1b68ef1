"""References to DataFrames: the small XCom value of a task that returns a DataFrame. The next task opens it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

from paceline.exceptions import XComError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


#: The JSON key that marks a reference.
MARK = "__dataframe__"
VERSION = 1
_LOCAL = "file://"
_FIELDS = ("url", "format", "rows", "bytes", "schema")


@dataclass(frozen=True)
class DataFrameReference:
    """The location and schema of a DataFrame that a task returned. `str(reference)` is its URL."""

    url: str
    #: The schema in Spark's JSON form: {"type": "struct", "fields": [...]}.
    schema: Mapping[str, Any]
    rows: int
    bytes: int
    format: str = "parquet"
    #: The columns that its task did not write, because no task took them, and the ID of that task.
    left_out: tuple[str, ...] = ()
    task_id: str = ""

    def __getitem__(self, columns: Sequence[str]) -> DataFrameReference:
        """The reference to some of the columns, as in `reference[["day", "amount"]]`. XComError if one was not written."""
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            raise TypeError(f'A DataFrame takes a list of its columns, such as [["day", "amount"]], not {columns!r}.')
        fields = {field["name"]: field for field in self.schema["fields"]}
        for name in columns:
            if name in self.left_out:
                raise self._not_written([name])
            if name not in fields:
                known = ", ".join([*fields, *self.left_out])
                raise XComError(f"The DataFrame at {self.url} has no column {name!r}; its columns are {known}.")
        return replace(self, schema={**self.schema, "fields": [fields[name] for name in columns]}, left_out=(), task_id="")

    # Python would look for entries by their number.
    __iter__ = None

    def named_in(self, names: Collection[str] | None) -> DataFrameReference:
        """The reference to the columns of which `names` has the name in lower case; None for all. XComError as above."""
        if missing := [name for name in self.left_out if names is None or name.lower() in names]:
            raise self._not_written(missing)
        columns = [name for name in self.columns if names is None or name.lower() in names]
        return self[columns or list(self.columns)[:1]]

    def _not_written(self, columns: Sequence[str]) -> XComError:
        names = ", ".join(map(repr, columns))
        return XComError(
            f"The task {self.task_id!r} left {names} out of its DataFrame, because no task of its DAG took them. If one does now, "
            f"clear {self.task_id!r}. If not, take them there (result[[{names}]]), or take only others here."
        )

    @property
    def columns(self) -> dict[str, str]:
        """The type of each column, by name."""
        return {field["name"]: _type_name(field["type"]) for field in self.schema["fields"]}

    @property
    def path(self) -> str:
        """The path of a local folder; the URL of any other."""
        return self.url.removeprefix(_LOCAL)

    def to_pandas(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """All columns, or the given ones, in the memory of this process.

        No value is rounded: integers with nulls become float64 as usual in pandas, or Int64 if float64 would round one.
        Intervals of days become timedelta64, those of months the number of months.
        """

        if missing := [name for name in columns or () if name in self.left_out]:
            raise self._not_written(missing)
        return read(self.path, self.schema, list(self.named_in(None).columns) if columns is None else columns)

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """A lazy DataFrame of the session; no job runs, since the schema is known."""
        return _open(spark, self.named_in(None).schema, [self.url])

    def to_json(self) -> dict[str, Any]:
        pruned = {"left_out": list(self.left_out), "task_id": self.task_id} if self.left_out else {}
        return {MARK: VERSION} | {name: getattr(self, name) for name in _FIELDS} | pruned

    def __str__(self) -> str:
        return self.url


class DataFrames(Sequence["DataFrame"]):
    """The DataFrames of a mapped task or a list, as an argument of a PySpark task. Each is opened at first access."""

    def __init__(self, references: Sequence[DataFrameReference], spark: SparkSession) -> None:
        self.references = tuple(references)
        self._spark = spark
        self._opened: dict[int, DataFrame] = {}

    def union(self) -> DataFrame:
        """All rows as one DataFrame, in one read; ValueError if the schemas differ, or for no DataFrame at all."""
        if not self.references:
            raise ValueError("There is no DataFrame to read: the list is empty, so the columns are unknown.")
        first = self.references[0]
        for other in self.references:
            other.named_in(None)
            if other.columns != first.columns:
                raise ValueError(
                    f"{other} has the columns {other.columns}, but {first} has {first.columns}; union() needs equal columns."
                )
        return _open(self._spark, first.schema, [reference.url for reference in self.references])

    def __len__(self) -> int:
        return len(self.references)

    @overload
    def __getitem__(self, place: int) -> DataFrame: ...
    @overload
    def __getitem__(self, place: slice) -> DataFrames: ...
    def __getitem__(self, place: int | slice) -> DataFrame | DataFrames:
        if isinstance(place, slice):
            return DataFrames(self.references[place], self._spark)
        place = range(len(self))[place]
        if place not in self._opened:
            self._opened[place] = self.references[place].to_spark(self._spark)
        return self._opened[place]

    def __repr__(self) -> str:
        return f"DataFrames({[reference.url for reference in self.references]!r})"


def revived(value: Any) -> Any:
    """A JSON value in which each object that represents a reference is replaced by one."""
    if isinstance(value, dict):
        if value.get(MARK) == VERSION:
            return _reference(value)
        return {key: revived(item) for key, item in value.items()}
    if isinstance(value, list):
        return [revived(item) for item in value]
    return value


def opened(value: Any, spark: SparkSession) -> Any:
    """An argument of a PySpark task, with the references inside it opened as DataFrames."""
    if isinstance(value, DataFrameReference):
        return value.to_spark(spark)
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, DataFrameReference) for item in value):
            return DataFrames(value, spark)
        return type(value)(opened(item, spark) for item in value) if type(value) in {list, tuple} else value
    if type(value) is dict:
        return {key: opened(item, spark) for key, item in value.items()}
    return value


def _reference(value: Mapping[str, Any]) -> Any:
    """The reference, or the object itself if user code used our key for something else."""
    if not value.keys() >= {*_FIELDS}:
        return dict(value)
    pruned = {"left_out": tuple(value["left_out"]), "task_id": value["task_id"]} if "left_out" in value else {}
    return DataFrameReference(**{name: value[name] for name in _FIELDS}, **pruned)


def _open(spark: SparkSession, schema: Mapping[str, Any], urls: Sequence[str]) -> DataFrame:
    from pyspark.sql.types import StructType

    return spark.read.schema(StructType.fromJson(dict(schema))).parquet(*urls)


def _type_name(kind: Any) -> str:
    """Spark's short name of a type in JSON form: array<long> for `{"type": "array", "elementType": "long", ...}`."""
    if not isinstance(kind, Mapping):
        return str(kind)
    match kind.get("type"):
        case "array":
            return f"array<{_type_name(kind['elementType'])}>"
        case "map":
            return f"map<{_type_name(kind['keyType'])},{_type_name(kind['valueType'])}>"
        case "struct":
            fields = ",".join(f"{field['name']}:{_type_name(field['type'])}" for field in kind["fields"])
            return f"struct<{fields}>"
        case other:
            return str(other)


#: Whole numbers up to this are exact in float64.
EXACT = 2**53


def read(path: str, schema: Mapping[str, Any], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of a folder of Parquet files, whose columns have the types of a Spark schema."""
    import pandas as pd
    import pyarrow as pa
    from fsspec.core import url_to_fs
    from pyarrow import parquet

    files, folder = url_to_fs(path)
    table = parquet.read_table(folder, columns=None if columns is None else list(columns), filesystem=files)
    kinds = {field["name"]: str(field["type"]) for field in schema["fields"]}
    for number, name in enumerate(table.column_names):
        if kinds.get(name, "").startswith("interval") and pa.types.is_int64(table.schema.field(number).type):
            table = table.set_column(number, name, table.column(number).cast(pa.duration("us")))
    frame: pd.DataFrame = table.to_pandas()
    for number, name in enumerate(table.column_names):
        column = table.column(number)
        if _would_be_rounded(column):
            frame[name] = column.to_pandas(types_mapper=_nullable)
        elif any(_would_change_inside(chunk) for chunk in column.chunks):
            frame[name] = pd.Series(column.to_pylist(), dtype=object, index=frame.index)
    return frame


def _would_be_rounded(column: pa.ChunkedArray) -> bool:
    """Whether float64, which pandas uses for integers with nulls, cannot represent all values."""
    import pyarrow as pa
    from pyarrow import compute

    if not (pa.types.is_int64(column.type) and column.null_count):
        return False
    ends = compute.min_max(column).as_py()
    return ends["min"] is not None and (ends["min"] < -EXACT or ends["max"] > EXACT)


def _would_change_inside(array: pa.Array) -> bool:
    """Whether the numpy arrays inside pandas would turn integers into floats, or drop the time zone of times."""
    import pyarrow as pa

    if not pa.types.is_list(array.type):
        return False
    inner = array.flatten()
    if pa.types.is_integer(inner.type):
        return bool(inner.null_count)
    return (pa.types.is_timestamp(inner.type) and inner.type.tz is not None) or _would_change_inside(inner)


def _nullable(_: pa.DataType) -> Any:
    import pandas as pd

    return pd.Int64Dtype()
