"""Frames of pandas, Polars, DuckDB and Arrow as Arrow tables, in the types that Iceberg has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.exceptions import PacelineError

if TYPE_CHECKING:
    import pyarrow as pa


def as_arrow(frame: Any) -> pa.Table:
    """A frame of pandas, Polars, DuckDB or Arrow as an Arrow table, in the types that Iceberg has."""
    import pyarrow as pa

    if hasattr(frame, "iloc") and hasattr(frame, "columns"):
        table = pa.Table.from_pandas(frame, preserve_index=False)
    elif isinstance(frame, pa.RecordBatchReader):
        table = frame.read_all()
    elif hasattr(frame, "collect") and not hasattr(frame, "__arrow_c_stream__"):
        table = frame.collect().to_arrow()
    else:
        try:
            table = pa.table(frame)
        except pa.ArrowException:
            raise
        except (TypeError, ValueError):
            raise PacelineError(
                f"A table takes rows of Arrow, pandas, Polars, DuckDB or Spark, not {type(frame).__name__}."
            ) from None
    columns = [_plain(table.column(place)) for place in range(table.num_columns)]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column in a type that Iceberg has: a part of a microsecond is cut off, a moment is in UTC, categories are their values."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        value = _plain_type(column.type.value_type)
        decoded = [
            pa.DictionaryArray.from_arrays(one.indices, one.dictionary.cast(value)).dictionary_decode() for one in column.chunks
        ]
        return pa.chunked_array(decoded, value)
    kind = _plain_type(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)


def _plain_type(kind: Any) -> Any:
    import pyarrow as pa

    is_a, plain = pa.types, kind
    if is_a.is_timestamp(kind):
        plain = pa.timestamp("us", "UTC" if kind.tz else None)
    elif is_a.is_time(kind):
        plain = pa.time64("us")
    elif is_a.is_date64(kind):
        plain = pa.date32()
    elif is_a.is_string_view(kind):
        plain = pa.string()
    elif is_a.is_dictionary(kind):
        plain = _plain_type(kind.value_type)
    elif is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        plain = pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    elif is_a.is_struct(kind):
        plain = pa.struct([one.with_type(_plain_type(one.type)) for one in kind])
    elif is_a.is_map(kind):
        plain = pa.map_(_plain_type(kind.key_type), kind.item_field.with_type(_plain_type(kind.item_type)))
    return plain
