"""Writes of a Spark DataFrame that a repeated run replaces, in the session of the task."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.exceptions import PacelineError
from paceline.tables import interval
from paceline.tables.interval import SOURCE


@dataclass(frozen=True)
class SparkWriter:
    """Writes a Spark DataFrame in its session, whose current catalog has the table."""

    name: str
    frame: Any

    @property
    def quoted(self) -> str:
        """The name for SQL."""
        return ".".join(f"`{part}`" for part in self.name.split("."))

    def append_once(self, source: int) -> None:
        from pyspark.sql import functions as F

        marked = self.frame.withColumn(SOURCE, F.lit(source).cast("bigint"))
        spark = self.frame.sparkSession
        if self._missing():
            marked.writeTo(self.quoted).using("iceberg").create()
            return
        if SOURCE not in spark.table(self.quoted).columns:
            # Spark refuses a frame that reads the table as it was before the change, so its rows are computed before.
            marked = marked.localCheckpoint()
            spark.sql(f"ALTER TABLE {self.quoted} ADD COLUMN {SOURCE} bigint")
        spark.sql(f"DELETE FROM {self.quoted} WHERE {SOURCE} = {source}")
        marked.writeTo(self.quoted).append()

    def overwrite_interval(self, column: str | None, values: Any) -> None:
        from pyspark.sql import functions as F

        spark = self.frame.sparkSession
        missing = self._missing()
        at, transform = (interval.required(column, self.name), "") if missing else self._partition_time(column)
        kind = str(dict(self.frame.dtypes).get(at, ""))
        kinds = {"date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
        low, high = interval.bounds(values, kinds.get(kind, kind), transform or ("" if kind == "date" else "day"))
        bounds = [F.lit(one.isoformat()).cast(kind) for one in (low, high)]
        inside = (F.col(at) >= bounds[0]) & (F.col(at) < bounds[1])
        problem = f"{at!r} of a row is outside of the interval {low} to {high} of this run; filter such rows out: "
        checked = F.when(inside, F.col(at)).otherwise(
            F.raise_error(F.concat(F.lit(problem), F.coalesce(F.col(at).cast("string"), F.lit("null"))))
        )
        rows = self.frame.withColumn(at, checked.cast(kind))
        if missing:
            days = getattr(F, "partitioning", F).days  # its place since Spark 4.0
            rows.writeTo(self.quoted).using("iceberg").partitionedBy(F.col(at) if kind == "date" else days(F.col(at))).create()
            return
        condition = f"`{at}` >= CAST(:low AS {kind}) AND `{at}` < CAST(:high AS {kind})"
        bound = {"low": low.isoformat(), "high": high.isoformat()}
        spark.sql(f"DELETE FROM {self.quoted} WHERE {condition}", args=bound)
        rows.writeTo(self.quoted).append()

    def merge(self, keys: Sequence[str]) -> None:
        spark = self.frame.sparkSession
        if self._missing():
            self.frame.writeTo(self.quoted).using("iceberg").create()
            return
        view = f"paceline_merge_{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"
        self.frame.createOrReplaceTempView(view)
        equal = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in keys)
        spark.sql(
            f"MERGE INTO {self.quoted} t USING {view} s ON {equal} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def _missing(self) -> bool:
        return not self.frame.sparkSession.catalog.tableExists(self.quoted)

    def _partition_time(self, column: str | None) -> tuple[str, str]:
        """As `partition_time`, from the partitions that Spark describes."""
        described = self.frame.sparkSession.sql(f"DESCRIBE TABLE EXTENDED {self.quoted}").collect()
        fields: dict[str, str] = {}
        section = ""
        for row in described:
            name = row["col_name"]
            if name.startswith("# ") and name != "# col_name":
                section = name
            elif section == "# Partition Information" and name and name != "# col_name":  # only identities
                fields[name.strip("`")] = "identity"
            elif section == "# Partitioning" and name.startswith("Part "):
                transform, _, inner = row["data_type"].partition("(")
                fields[(inner.rstrip(")") or transform).strip("`")] = transform.removesuffix("s") if inner else "identity"
        if column is not None:
            return column, fields.get(column, "")
        timed = [name for name in fields if dict(self.frame.dtypes).get(name, "").startswith(("date", "timestamp"))]
        if len(timed) != 1:
            raise PacelineError(
                f"{self.name} is not partitioned by one column with a date or a time; name the column with column=."
            )
        return timed[0], fields[timed[0]]
