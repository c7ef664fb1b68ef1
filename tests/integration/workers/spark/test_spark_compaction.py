"""Compaction and Spark: what pyiceberg has joined, Spark reads; what Spark joins, the report publishes as any compaction."""

import pytest
from support.spark_tables import Task, jvm, lake, settings
from support.tables import SCHEMA, Lake, ids, rows

from scheduler.catalog import compact as by_people
from workers.spark.sessions.session_pool import WarmJvm

__all__ = ["jvm", "lake", "settings"]

pytestmark = pytest.mark.spark

MERGE_ON_READ = "'format-version'='2', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"


def test_files_with_deleted_rows_stay_and_the_others_are_joined(lake: Lake, jvm: WarmJvm) -> None:
    first = Task(lake, jvm, "first")
    first.sql(
        f"create table sales.t (id int, v string, day int) partitioned by (day) tblproperties ({MERGE_ON_READ})",
        *(f"insert into sales.t values ({n}, 'a', 1), ({n + 100}, 'b', 1), ({n + 200}, 'c', 2)" for n in range(6)),
        "delete from sales.t where id = 103",
        "update sales.t set v = 'new' where id = 4",
    )
    first.ends()
    table = lake.person().load_table("sales.t")
    before = sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())
    assert any(task.delete_files for task in table.scan().plan_files())
    done = by_people.compact(lake.scenario.settings, lake.scenario.engine, "sales", "t", most_bytes=1 << 30, by="cli:ada")
    assert (done.files, done.into) == (11, 2), "two of twelve files have deleted rows, and the update has written one more"
    assert sorted(tuple(row.values()) for row in table.refresh().scan().to_arrow().to_pylist()) == before
    second = Task(lake, jvm, "second")
    found = second.sql(
        "delete from sales.t where id = 0",
        "merge into sales.t t using (select 201 as id, 2 as day) u on t.id = u.id and t.day = u.day when matched then delete",
        "select * from sales.t order by id",
    )
    assert found == sorted(row for row in before if row[0] not in {0, 201})
    second.ends()


def test_rewrite_data_files_keeps_what_others_append_and_is_given_up_for_what_they_overwrite(lake: Lake, jvm: WarmJvm) -> None:
    table = lake.person().create_table("sales.t", SCHEMA)
    for number in range(6):
        table.append(rows(number))
    for changes, expected in ((lambda: table.append(rows(6)), list(range(7))), (lambda: table.overwrite(rows(9)), [9])):
        task = Task(lake, jvm, f"rewrites{expected[-1]}")
        (joined,) = task.sql("call lake.system.rewrite_data_files(table => 'sales.t', options => map('rewrite-all', 'true'))")
        assert joined[0] > 0
        changes()
        task.ends()
        assert ids(table.refresh()) == expected
    assert Task(lake, jvm, "reads").sql("select id from sales.t") == [(9,)]
