"""MERGE of Spark on Iceberg tables is that of DuckDB, on random batches: tables, keys with nulls, and clauses with conditions.

`make test-tables` runs 1,000 batches (MERGE_BATCHES).
"""

import os
import random
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from support.spark_tables import Task, jvm, lake, settings
from support.tables import Lake

from workers.spark.sessions.session_pool import WarmJvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["jvm", "lake", "settings"]


BATCHES = int(os.environ.get("MERGE_BATCHES", "6"))
pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(7200 if BATCHES > 25 else 300)]
SEED = int(os.environ.get("MERGE_SEED", "20261128"))
#: Of one table, before the next one begins with other properties.
OF_TABLE = 25
CONDITIONS = ("t.v > s.v", "s.v % 2 = 0", "t.v is null", "s.name < t.name", "t.id % 3 = 1")
OF_SOURCE = ("s.v > 20", "s.name is not null", "s.id % 2 = 0")
OF_TARGET = ("t.v > 25", "t.name is null", "t.id % 4 = 0")
UPDATES = ("v = s.v, name = s.name", "v = coalesce(t.v, 0) + coalesce(s.v, 1)", "name = t.name || s.name")


def value(chance: random.Random, most: int) -> int | None:
    return None if chance.random() < 0.1 else chance.randrange(most)


def row(chance: random.Random, key: int | None) -> tuple[int | None, int | None, str | None]:
    return key, value(chance, 50), None if chance.random() < 0.1 else chance.choice("abcdef")


def source(chance: random.Random) -> list[tuple[Any, ...]]:
    """Rows with different keys, because a row of the target matches one at most; null matches nothing, so there may be several."""
    keys: list[int | None] = [*chance.sample(range(60), chance.randrange(1, 25)), *([None] * chance.randrange(3))]
    return [row(chance, key) for key in keys]


def literal(rows: list[tuple[Any, ...]]) -> str:
    def one(cell: Any) -> str:
        return "null" if cell is None else f"'{cell}'" if isinstance(cell, str) else str(cell)

    values = ", ".join(f"({', '.join(map(one, each))})" for each in rows)
    return f"select cast(id as int) id, cast(v as int) v, cast(name as string) name from (values {values}) s(id, v, name)"


def clauses(chance: random.Random) -> str:
    """Conditions come before those without; the first that applies to a row counts."""
    parts = []
    for condition in [*chance.sample(CONDITIONS, chance.randrange(3)), *([""] if chance.random() < 0.6 else [])]:
        action = "delete" if chance.random() < 0.3 else f"update set {chance.choice(UPDATES)}"
        parts.append(f"when matched {f'and {condition} ' if condition else ''}then {action}")
    for condition in [*chance.sample(OF_SOURCE, chance.randrange(2)), *([""] if chance.random() < 0.6 else [])]:
        parts.append(
            f"when not matched {f'and {condition} ' if condition else ''}then insert (id, v, name) values (s.id, s.v, s.name)"
        )
    for condition in [*chance.sample(OF_TARGET, chance.randrange(2)), *([""] if chance.random() < 0.2 else [])]:
        action = "delete" if chance.random() < 0.5 else "update set v = t.v + 100"
        parts.append(f"when not matched by source {f'and {condition} ' if condition else ''}then {action}")
    return " ".join(parts) or "when not matched then insert (id, v, name) values (s.id, s.v, s.name)"


def tables(chance: random.Random) -> Iterator[str]:
    """The properties and partitions of tables: both ways of Iceberg to write a change."""
    while True:
        mode = chance.choice(("copy-on-write", "merge-on-read"))
        parts = chance.choice(("", "partitioned by (name)", "partitioned by (bucket(3, id))", "partitioned by (truncate(10, v))"))
        yield f"{parts} tblproperties ('write.merge.mode'='{mode}', 'format-version'='2')"


def test_a_merge_of_spark_is_that_of_duckdb(lake: Lake, jvm: WarmJvm) -> None:
    chance = random.Random(SEED)
    layouts = tables(chance)
    done = 0
    while done < BATCHES:
        task = Task(lake, jvm, f"d{done}")
        name, ours = f"sales.m{done}", duckdb.connect()
        start = [row(chance, value(chance, 60)) for _ in range(chance.randrange(1, 40))]
        count = min(OF_TABLE, BATCHES - done)

        def merges(spark: "SparkSession", name: str = name, ours: Any = ours, start: Any = start, count: int = count) -> None:
            spark.sql(f"create table {name} (id int, v int, name string) using iceberg {next(layouts)}")
            spark.sql(f"insert into {name} {literal(start)}")
            ours.sql(f"create table t as {literal(start)}")
            for number in range(count):
                lake.scenario.beat()
                rows, when = literal(source(chance)), clauses(chance)
                spark.sql(f"merge into {name} t using ({rows}) s on t.id = s.id {when}")
                ours.sql(f"merge into t using ({rows}) s on t.id = s.id {when}")
                found, wanted = spark.table(name).collect(), ours.sql("select * from t").fetchall()
                assert ordered(found) == ordered(wanted), f"batch {number} of seed {SEED}: {when}"

        task.run(merges)
        task.ends()
        published = lake.person().load_table(name).scan().to_arrow().to_pylist()
        assert ordered(each.values() for each in published) == ordered(ours.sql("select * from t").fetchall())
        done += count
        print(f"{done} of {BATCHES} batches equal", file=sys.stderr)


def ordered(rows: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(each) for each in rows), key=repr)
