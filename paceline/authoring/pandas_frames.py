"""Spark's Parquet files as a pandas DataFrame, without the conversions that change a value or its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

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
