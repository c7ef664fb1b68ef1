"""Partitions: updates with keys, and the runs that they create."""

from datetime import UTC, datetime
from typing import Any

import pytest
from support.scenario import Scenario, chain

from paceline import (
    AllowedKeyMapper,
    Asset,
    CronPartitionTimetable,
    FixedKeyMapper,
    IdentityMapper,
    PartitionedAssetTimetable,
    RollupMapper,
    SegmentWindow,
    StartOfDayMapper,
)
from paceline.authoring import timetable
from paceline.authoring.timetables.base import Timetable
from paceline.exceptions import PacelineError
from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.services.assets import Assets
from scheduler.services.plan import Plan
from scheduler.store.dags import assets, outlets
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Ending

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B = Asset("a", "s3://a"), Asset("b", "s3://b")


def waits(dag_id: str, table: Timetable, **options: object) -> SerializedDag:
    return chain(dag_id, 1, **{"schedule": table.to_spec(), **options})


def by_partition(mapper: Any = None, *, condition: Any = A, **config: Any) -> Timetable:
    return PartitionedAssetTimetable(assets=condition, default_partition_mapper=mapper or IdentityMapper(), **config)


def update(scenario: Scenario, one: Asset, *keys: str | None) -> None:
    for key in keys:
        transact(scenario.engine, assets.update, one.uri, None, "test", key)


def trigger(scenario: Scenario) -> None:
    for _ in range(2):
        Assets(scenario.engine, scenario.settings, Versions()).run_once(NOW)


def partitions(scenario: Scenario, dag_id: str) -> list[tuple[Any, ...]]:
    return scenario.rows("select partition_key, partition_date from dag_run where dag_id = %s order by id", dag_id)


def test_a_run_for_each_partition_of_all_assets(scenario: Scenario) -> None:
    scenario.add(waits("each", by_partition()))
    scenario.add(waits("both", by_partition(condition=A & B)))

    update(scenario, A, "us", "eu", "us")
    trigger(scenario)
    update(scenario, B, "eu", "apac")
    trigger(scenario)

    assert sorted(partitions(scenario, "each")) == [("eu", None), ("us", None)]
    assert partitions(scenario, "both") == [("eu", None)]
    consumed = "select count(*) from dag_run r join dag_run_asset_event c on c.dag_run_id = r.id where dag_id = %s group by r.id"
    assert sorted(scenario.rows(consumed, "each")) == [(1,), (2,)]
    assert scenario.rows("select partition_key, uri from asset_waiting where dag_id = 'both' order by 1, 2") == [
        ("apac", "s3://b"), ("us", "s3://a"), ("us", "s3://a"),
    ]  # fmt: skip


def test_only_schedules_of_partitions_use_updates_with_a_key_and_only_other_schedules_use_updates_without(
    scenario: Scenario,
) -> None:
    scenario.add(waits("plain", timetable.WhenUpdated(A)))
    scenario.add(waits("each", by_partition()))

    update(scenario, A, "us")
    trigger(scenario)
    assert partitions(scenario, "plain") == [] and len(partitions(scenario, "each")) == 1

    update(scenario, A, None)
    trigger(scenario)
    assert partitions(scenario, "plain") == [(None, None)] and len(partitions(scenario, "each")) == 1


def test_a_roll_up_waits_for_its_window_and_has_its_date(scenario: Scenario) -> None:
    regions = RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=SegmentWindow(["us", "eu"]))
    scenario.add(waits("regions", by_partition(regions)))
    scenario.add(waits("days", by_partition(StartOfDayMapper())))

    update(scenario, A, "us", "2026-03-01T05:00:00")
    trigger(scenario)
    assert partitions(scenario, "regions") == []
    update(scenario, A, "eu")
    trigger(scenario)

    assert partitions(scenario, "regions") == [("all", None)]
    assert partitions(scenario, "days") == [("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC))]


def test_a_key_that_a_mapper_cannot_map_is_logged_and_makes_no_run(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    scenario.add(waits("some", by_partition(AllowedKeyMapper(["us"]))))
    scenario.add(waits("each", by_partition()))

    update(scenario, A, "mars")
    trigger(scenario)

    assert partitions(scenario, "some") == [] and len(partitions(scenario, "each")) == 1
    assert "'mars' of asset 's3://a' creates no run of DAG some: it is not one of the allowed keys" in caplog.text


def test_a_run_passes_its_partition_to_its_updates_unless_its_task_names_partitions(scenario: Scenario) -> None:
    task = {"outlets": (A.uri, B.uri), "notify": ("asset",)}
    scenario.add(chain("maker", 1, task=task))
    scenario.add(waits("user", by_partition(condition=A | B)))
    scenario.trigger("maker", run_id="m", partition_key="us")
    scenario.turn()
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None and claim.partition_key == "us"
    xcoms.push(scenario.hot, claim, outlets.XCOM_KEY, '{"s3://b": {"partitions": ["eu", "us"]}}')
    scenario.follower.report(claim, Ending(TaskState.SUCCESS))

    trigger(scenario)

    found = scenario.rows("select uri, partition_key from asset_event order by 1, 2")
    assert found == [("s3://a", "us"), ("s3://b", "eu"), ("s3://b", "us")]
    assert sorted(partitions(scenario, "user")) == [("eu", None), ("us", None)]


def test_scheduled_runs_have_the_partition_of_their_tick_and_pass_on_its_date(scenario: Scenario) -> None:
    table = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
    scenario.add(waits("daily", table, start_date="2026-03-01T00:00:00+00:00", task={"outlets": (A.uri,), "notify": ("asset",)}))
    scenario.add(waits("user", by_partition()))

    Plan(scenario.engine, scenario.settings, Versions()).plan(NOW)
    scenario.run_to_end()

    expected = ("2026-02-28", datetime(2026, 2, 28, tzinfo=UTC))
    assert partitions(scenario, "daily")[0] == expected
    assert expected in partitions(scenario, "user")


def test_a_dag_without_partitions_any_more_drops_its_collected_updates(scenario: Scenario) -> None:
    scenario.add(waits("d", by_partition(condition=A & B)))
    update(scenario, A, "us")
    trigger(scenario)

    scenario.add(waits("d", timetable.WhenUpdated(A & B)))
    trigger(scenario)

    assert scenario.rows("select * from asset_waiting") == [] and partitions(scenario, "d") == []


def test_a_schedule_can_have_an_asset_of_another_file_by_its_name(scenario: Scenario) -> None:
    scenario.add(chain("maker", 1, task={"outlets": (A.uri,), "notify": ("asset",)}, asset_names={A.uri: A.name}))
    scenario.add(waits("each", by_partition(condition=Asset.ref(name="a"))))
    scenario.add(waits("plain", timetable.WhenUpdated(Asset.ref(name="a") & B)))
    update(scenario, B, None)

    for partition in ("us", None):
        scenario.trigger("maker", partition_key=partition)
        scenario.run_to_end()

    assert partitions(scenario, "each") == [("us", None)] and partitions(scenario, "plain") == [(None, None)]


def test_a_key_must_be_a_short_text(scenario: Scenario) -> None:
    scenario.add(waits("d", by_partition()))

    for wrong in ("", "x" * 251):
        with pytest.raises(PacelineError, match="partition key must have 1 to 250"):
            update(scenario, A, wrong)
        with pytest.raises(PacelineError, match="partition key must have 1 to 250"):
            scenario.trigger("d", partition_key=wrong)
