"""Spark does not read a table in which two schemas have one number, and reads it after the repair."""

import json

import pytest
from pyspark.errors import PySparkException
from support.spark_tables import Task, jvm, lake, settings
from support.tables import SCHEMA, Lake, rows

from scheduler.catalog import repair as repairs
from scheduler.catalog.repair import Repaired
from workers.spark.sessions.session_pool import WarmJvm

__all__ = ["jvm", "lake", "settings"]

pytestmark = pytest.mark.spark


def test_a_repaired_table_is_read(lake: Lake, jvm: WarmJvm) -> None:
    lake.person().create_table("sales.t", SCHEMA).append(rows(1))
    found = lake.tables.warehouse.metadata(lake.person().load_table("sales.t").metadata_location)
    text = json.loads(found.text)
    newer = {"id": 3, "name": "newer", "type": "long", "required": False}
    text["schemas"].append({**text["schemas"][0], "fields": [*text["schemas"][0]["fields"], newer]})
    text["last-column-id"] = 3
    location = f"{found.location.removesuffix('.metadata.json')}-doubled.metadata.json"
    lake.tables.warehouse.write_copy(location, json.dumps(text))
    lake.scenario.sql("update iceberg_tables set metadata_location = %s", location)
    lake.scenario.sql("update table_version set metadata_location = %s where publication = 2", location)
    with pytest.raises(PySparkException, match="Multiple entries with same key: 0="):
        Task(lake, jvm, "before").sql("select * from lake.sales.t")

    assert repairs.repair(lake.scenario.settings, lake.scenario.engine, "sales", "t", by="cli:ada") == Repaired(1, 0)

    task = Task(lake, jvm, "after")
    found_rows = task.sql("insert into lake.sales.t values (2, 'b', 7)", "select * from lake.sales.t order by id")
    assert found_rows == [(1, "", None), (2, "b", 7)]
    task.ends()
