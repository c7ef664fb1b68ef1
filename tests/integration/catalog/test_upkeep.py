"""Rollback is one publication, and what dead tries left is deleted, with nothing else."""

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException
from support.tables import SCHEMA, Lake, ids, rows

from paceline.exceptions import ConflictError, NotFoundError
from paceline.states import TaskState
from scheduler.actions import tables
from scheduler.actions.actor import Actor
from scheduler.catalog import gc
from scheduler.store.db.database import transact
from scheduler.store.tables import history
from scheduler.store.worker.claims import Ending


def actor(lake: Lake) -> Actor:
    return Actor(
        settings=lake.scenario.settings, engine=lake.scenario.engine, announce=lambda *_: None, publish=lambda _: None,
        name="cli:ada", made_by="cli",
    )  # fmt: skip


def files(lake: Lake) -> set[str]:
    folder = Path(lake.tables.warehouse.url.removeprefix("file://"))
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_rollback_is_a_publication_and_undone_in_the_same_way(lake: Lake) -> None:
    person = lake.person()
    table = person.create_table("sales.t", SCHEMA)
    table.append(rows(1))
    table.append(rows(2))
    _, reader = lake.attempt()
    assert tables.roll_back(actor(lake), "lake", "sales.t", 2)["publication"] == 4
    assert ids(person.load_table("sales.t")) == [1]
    assert ids(reader.load_table("sales.t")) == [1, 2]
    with pytest.raises(ConflictError):
        tables.roll_back(actor(lake), "lake", "sales.t", 2)
    with pytest.raises(NotFoundError):
        tables.roll_back(actor(lake), "lake", "sales.none", 2)
    tables.roll_back(actor(lake), "lake", "sales.t", 3)
    assert ids(person.load_table("sales.t")) == [1, 2]
    person.load_table("sales.t").append(rows(3))
    assert ids(person.load_table("sales.t")) == [1, 2, 3]
    person.drop_table("sales.t")
    tables.roll_back(actor(lake), "lake", "sales.t", 6)
    assert ids(person.load_table("sales.t")) == [1, 2, 3]
    shown = transact(lake.scenario.engine, history.history, "lake", "sales", "t", 10)
    assert [row["is_dropped"] for row in shown] == [False, True, *[False] * 6]
    assert [row["published_by"] for row in shown[:2]] == ["cli:ada", "ada"]
    (listed,) = transact(lake.scenario.engine, history.tables, "lake", None, 10)
    assert (listed["table"], listed["publication"], listed["total_rows"]) == ("sales.t", 8, 3)


def test_a_try_that_wrote_a_table_conflicts_with_its_rollback(lake: Lake) -> None:
    table = lake.person().create_table("sales.t", SCHEMA, properties={"commit.retry.num-retries": "0"})
    table.append(rows(1))
    table.append(rows(2))
    tables.roll_back(actor(lake), "lake", "sales.t", 2)
    with pytest.raises(CommitFailedException):
        table.append(rows(3))


def test_the_files_of_a_dead_try_are_deleted_and_no_others(lake: Lake) -> None:
    scenario = lake.scenario
    person = lake.person()
    person.create_table("sales.kept", SCHEMA).append(rows(1))
    person.create_table("sales.renamed", SCHEMA).append(rows(1))
    before = files(lake)
    claim, catalog = lake.attempt()
    catalog.load_table("sales.kept").append(rows(2))
    catalog.load_table("sales.kept").overwrite(rows(3))
    catalog.create_table("sales.new", SCHEMA).append(rows(4))
    catalog.rename_table("sales.renamed", "sales.other")
    catalog.load_table("sales.other").append(rows(5))
    catalog.drop_table("sales.new")
    assert gc.collect(scenario.settings, scenario.engine, older_s=0) == gc.Collected(0, 0, 0)
    scenario.follower.report(claim, Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=0, resume={}))
    assert gc.collect(scenario.settings, scenario.engine, older_s=0).tries == 0, "it may continue"
    scenario.sql("update task_instance set state = 'failed', resume = null, due_at = null, ended_at = clock_timestamp()")
    assert gc.collect(scenario.settings, scenario.engine).tries == 0, "it is not old enough"
    done = gc.collect(scenario.settings, scenario.engine, older_s=0)
    assert (done.tries, done.failed) == (1, 0)
    assert files(lake) == before
    assert scenario.rows("select (select count(*) from table_try), (select count(*) from table_pending)") == [(0, 0)]
    assert (ids(person.load_table("sales.kept")), ids(person.load_table("sales.renamed"))) == ([1], [1])
