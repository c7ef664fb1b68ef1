"""Writes of a Spark DataFrame that a repeated run replaces, in the session of the frame, whose current catalog has the table."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.exceptions import PacelineError
from paceline.tables.replaced import SOURCE, bounds, required

#: What an error of Spark adds to a text of `raise_error`.
_END = r"(?: SQLSTATE: \w+)?$"


@dataclass(frozen=True)
class SparkWriter:
    """Writes a DataFrame. Its rows are checked while Spark computes them, so that they are computed once."""

    name: str
    frame: Any

    @property
    def quoted(self) -> str:
        return for_spark(self.name)

    def append_once(self, source: int, *, adds: bool = False) -> None:
        from pyspark.sql import functions as F

        marked = self.frame.withColumn(SOURCE, F.lit(source).cast("bigint"))
        if self._missing():
            marked.writeTo(self.quoted).using("iceberg").create()
            return
        fields = self._fields()
        if SOURCE not in {field.name for field in fields}:
            _check_columns(self.frame.columns, fields)
            marked = self._computed(marked)  # Spark refuses a frame that reads the table as it was before the change
            self._add_columns([(SOURCE, "bigint")])
        self._replace(marked, "" if adds else f"{SOURCE} = {source}")

    def overwrite_interval(self, column: str | None, values: Any, *, adds: bool = False) -> None:
        from pyspark.sql import functions as F

        missing = self._missing()
        at, transform = (required(column, self.name), "") if missing else self._partition_time(column)
        kind = {name.lower(): kind for name, kind in self.frame.dtypes}.get(at.lower())
        if kind is None:
            raise PacelineError(f"There is no column {at!r} in the rows; they have {', '.join(self.frame.columns)}.")
        kinds = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
        low, high = bounds(values, kinds.get(kind, kind), transform or ("" if kind == "date" else "day"))
        ends = [F.lit(one.isoformat()).cast(kind) for one in (low, high)]
        time = F.col(_quoted(at))
        problem = F.concat(
            F.lit(f"The rows for {self.name} have "), F.coalesce(time.cast("string"), F.lit("null")),
            F.lit(f" in {at!r}, outside of the interval {low} to {high} of this run; a repeated run could not replace them. Filter"
                  " them out."),
        )  # fmt: skip
        checked = F.when((time >= ends[0]) & (time < ends[1]), time).otherwise(F.raise_error(problem).cast(kind))
        rows = self.frame.withColumn(at, checked)
        with self._refused():
            if missing:
                days = getattr(F, "partitioning", F).days  # its place since Spark 4.0
                rows.writeTo(self.quoted).using("iceberg").partitionedBy(time if kind == "date" else days(time)).create()
                return
            first, last = (f"CAST('{one.isoformat()}' AS {kind})" for one in (low, high))
            self._replace(rows, "" if adds else f"{_quoted(at)} >= {first} AND {_quoted(at)} < {last}")

    def merge(self, keys: Sequence[str]) -> None:
        spark, rows = self.frame.sparkSession, self._with_unique(keys)
        with self._refused():
            if self._missing():
                rows.writeTo(self.quoted).using("iceberg").create()
                return
            own = [name for name in self.frame.columns if name.lower() not in {key.lower() for key in keys}]
            view = f"paceline_merge_{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"
            self._aligned(rows).createOrReplaceTempView(view)
            equal = " AND ".join(f"t.{_quoted(key)} = s.{_quoted(key)}" for key in keys)
            changes = ", ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in own)
            update = f"WHEN MATCHED THEN UPDATE SET {changes}" if own else ""
            spark.sql(f"MERGE INTO {self.quoted} t USING {view} s ON {equal} {update} WHEN NOT MATCHED THEN INSERT *")

    def widen(self) -> None:
        """Give the table, if there is one, the columns of the frame that it does not have."""
        if not self._missing():
            known = {field.name.lower() for field in self._fields()}
            self._add_columns([(name, kind) for name, kind in self.frame.dtypes if name.lower() not in known])

    def _add_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        if columns:
            added = ", ".join(f"{_quoted(name)} {kind}" for name, kind in columns)
            self.frame.sparkSession.sql(f"ALTER TABLE {self.quoted} ADD COLUMNS ({added})")

    def _with_unique(self, keys: Sequence[str]) -> Any:
        """The rows, which fail if a key is null, or is there twice."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        names = {name.lower() for name in self.frame.columns}
        if missing := [key for key in keys if key.lower() not in names]:
            raise PacelineError(f"There is no column {missing[0]!r} to merge by; the rows have {', '.join(self.frame.columns)}.")

        def refused(problem: str) -> Any:
            return F.raise_error(F.lit(f"The rows for {self.name} have {problem}.")).cast("boolean")

        copies, columns = "paceline_copies", [F.col(_quoted(key)) for key in keys]
        check = F.when(F.col(copies) > 1, refused(f"a key ({', '.join(keys)}) twice; keep one of each"))
        for key, column in zip(keys, columns, strict=True):
            check = check.when(column.isNull(), refused(f"null in the key {key!r}; filter them out"))
        counted = self.frame.withColumn(copies, F.count(F.lit(1)).over(Window.partitionBy(*columns)))
        return counted.where(check.otherwise(F.lit(True))).drop(copies)

    def _replace(self, rows: Any, old: str) -> None:
        """Delete the rows that the condition `old` selects, if there is one, and append `rows`; after an error, delete nothing."""
        spark, rows = self.frame.sparkSession, self._aligned(rows)
        before = self._snapshot() if old else None
        if before is not None:
            rows = self._computed(rows)  # Spark would compute them after it has deleted the old ones
            spark.sql(f"DELETE FROM {self.quoted} WHERE {old}")
        try:
            rows.writeTo(self.quoted).append()
        except Exception:
            if before is not None:
                name = self.quoted.replace("'", r"\'")
                spark.sql(f"CALL system.rollback_to_snapshot(table => '{name}', snapshot_id => {before})")
            raise

    def _snapshot(self) -> int | None:
        """The current snapshot of the table; None if it has none."""
        found = self.frame.sparkSession.table(f"{self.quoted}.refs").where("name = 'main'").select("snapshot_id").collect()
        return found[0][0] if found else None

    def _is_read(self) -> bool:
        """Whether the frame reads the table, according to its plan; also if it may be another table of that name."""
        classic = hasattr(self.frame, "_jdf")
        plan = self.frame._jdf.queryExecution().analyzed().toString() if classic else self.frame._explain_string(extended=True)
        return re.search(rf"\.`?{re.escape(self.name.rpartition('.')[2])}`?(?!\w)", plan) is not None

    def _computed(self, rows: Any) -> Any:
        """The rows as they are before the table changes, if the frame reads it."""
        if not self._is_read():
            return rows
        if not hasattr(rows, "localCheckpoint"):  # on a Connect server before 4.0
            raise PacelineError(f"The frame reads {self.name}, which it changes: write it into another table first.")
        return rows.localCheckpoint()

    def _aligned(self, rows: Any) -> Any:
        """The rows with the columns of the table, in its order; missing columns are null."""
        from pyspark.sql import functions as F

        fields = self._fields()
        _check_columns(rows.columns, fields)
        names = {name.lower(): name for name in rows.columns}
        return rows.select(*(
            (F.col(_quoted(names[field.name.lower()])) if field.name.lower() in names else F.lit(None).cast(field.dataType))
            .alias(field.name)
            for field in fields
        ))  # fmt: skip

    def _fields(self) -> list[Any]:
        """The columns of the table."""
        fields: list[Any] = self.frame.sparkSession.table(self.quoted).schema.fields
        return fields

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise what a check of the rows found as a PacelineError."""
        try:
            yield
        except PacelineError:
            raise
        except Exception as error:
            found = re.search(rf"(The rows for {re.escape(self.name)} have .*?){_END}", str(error), re.MULTILINE)
            if found is None:
                raise
            raise PacelineError(found[1]) from error

    def _missing(self) -> bool:
        return not self.frame.sparkSession.catalog.tableExists(self.quoted)

    def _partition_time(self, column: str | None) -> tuple[str, str]:
        """As `writes.partition_time`, from the partitions that Spark describes."""
        described = self.frame.sparkSession.sql(f"DESCRIBE TABLE EXTENDED {self.quoted}").collect()
        fields: dict[str, str] = {}
        columns: list[str] = []
        section = ""
        for row in described:
            name = row["col_name"]
            if name.startswith("# ") and name != "# col_name":
                section = name
            elif not section and name:
                columns.append(name)
            elif section == "# Partition Information" and name and name != "# col_name":  # only identities
                fields[name.strip("`")] = "identity"
            elif section == "# Partitioning" and name.startswith("Part "):
                transform, _, inner = row["data_type"].partition("(")
                fields[(inner.rstrip(")") or transform).strip("`")] = transform.removesuffix("s") if inner else "identity"
        if column is not None:
            if column.lower() not in {name.lower() for name in columns}:
                raise PacelineError(f"There is no column {column!r} in the table; it has {', '.join(columns)}.")
            return column, {name.lower(): kind for name, kind in fields.items()}.get(column.lower(), "")
        timed = [name for name in fields if dict(self.frame.dtypes).get(name, "").startswith(("date", "timestamp"))]
        if len(timed) != 1:
            raise PacelineError(
                f"{self.name} is not partitioned by one column with a date or a time; name the column with column=."
            )
        return timed[0], fields[timed[0]]


def _check_columns(columns: Sequence[str], fields: Sequence[Any]) -> None:
    known = {field.name.lower() for field in fields}
    if unknown := [name for name in columns if name.lower() not in known]:
        names = ", ".join(field.name for field in fields)
        raise PacelineError(f"The table has no column {unknown[0]!r}; add it first, or leave it out. It has {names}.")


def for_spark(name: str) -> str:
    """The name of a table for Spark, whose methods parse it like SQL. A name with backticks is quoted already."""
    return name if "`" in name else ".".join(map(_quoted, name.split(".")))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
