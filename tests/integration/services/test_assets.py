"""Assets: updates by tasks and people, and the runs that they create."""

import json
import random
import string
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.scenario import Scenario, chain, dag

from paceline.authoring import asset, timetable
from paceline.authoring.asset import ADDED, Asset, Condition
from paceline.exceptions import NotFoundError, PacelineError
from paceline.states import TaskState
from scheduler.serialized.dag import SerializedDag
from scheduler.services.assets import Assets
from scheduler.services.plan import Plan
from scheduler.store.dags import assets, dags, outlets
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.worker import xcoms
from scheduler.store.worker.claims import Ending

NOW = datetime(2026, 3, 1, tzinfo=UTC)
A, B, C = Asset("a", "s3://a"), Asset("b", "s3://b"), Asset("c", "s3://c")


def waits(dag_id: str, condition: Condition, **options: object) -> SerializedDag:
    return chain(dag_id, 1, **{"schedule": timetable.WhenUpdated(condition).to_spec(), **options})


def updates(dag_id: str, *outlets: Asset) -> SerializedDag:
    return chain(dag_id, 1, task={"outlets": tuple(outlet.uri for outlet in outlets), "notify": ("asset",)})


def service(scenario: Scenario) -> Assets:
    return Assets(scenario.engine, scenario.settings, Versions())


def triggered(scenario: Scenario, dag_id: str) -> int:
    return scenario.rows("select count(*) from dag_run where dag_id = %s and run_type = 'asset_triggered'", dag_id)[0][0]


@pytest.mark.parametrize(
    ("condition", "updated", "runs"),
    [
        (A, [A], 1),
        (A & B, [A], 0),
        (A & B, [A, A], 0),
        (A & B, [A, B], 1),
        (A | B, [B], 1),
        ((A & B) | C, [C], 1),
        ((A & B) | C, [B], 0),
        (A & (B | C), [A, C], 1),
        (A & (B | C), [B, C], 0),
    ],
)
def test_a_run_is_made_once_the_condition_is_true(
    scenario: Scenario, condition: Condition, updated: list[Asset], runs: int
) -> None:
    scenario.add(waits("d", condition))

    for one in updated:
        transact(scenario.engine, assets.update, one.uri)
    for _ in range(3):
        service(scenario).run_once(NOW)

    assert triggered(scenario, "d") == runs


def test_a_task_that_succeeds_updates_its_outlets_and_is_named_as_the_source(scenario: Scenario) -> None:
    scenario.add(updates("maker", A, B))
    scenario.add(waits("user", A & B))
    maker = scenario.trigger("maker", run_id="m1")

    scenario.run_to_end()

    assert scenario.run_state(maker) == "success"
    assert triggered(scenario, "user") == 1
    events = scenario.rows("select uri, dag_id, run_id, task_id, map_index, created_by from asset_event order by uri")
    assert events == [("s3://a", "maker", "m1", "t000", -1, "task"), ("s3://b", "maker", "m1", "t000", -1, "task")]
    run = scenario.rows("select run_id, logical_date, data_interval_start, state from dag_run where dag_id = 'user'")[0]
    assert run[0].startswith("asset_triggered__2") and run[1:] == (None, None, "success")


def test_a_task_that_fails_updates_nothing(scenario: Scenario) -> None:
    from paceline.states import TaskState

    scenario.add(updates("maker", A))
    scenario.add(waits("user", A))
    scenario.trigger("maker")

    scenario.run_to_end(outcome=lambda claim: TaskState.FAILED)

    assert scenario.rows("select 1 from asset_event") == []
    assert triggered(scenario, "user") == 0


def test_the_extra_a_task_gives_is_part_of_the_event(scenario: Scenario) -> None:
    scenario.start(updates("maker", A, B))
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    xcoms.push(scenario.hot, claim, "outlet_events", '{"s3://a": {"extra": {"rows": 7}}, "s3://elsewhere": {"extra": {}}, "x": 3}')
    from paceline.states import TaskState
    from workers.task.follow import Ending

    scenario.follower.report(claim, Ending(TaskState.SUCCESS))
    service(scenario).run_once(NOW)

    assert scenario.rows("select uri, extra from asset_event order by uri") == [("s3://a", {"rows": 7}), ("s3://b", {})]


def test_a_run_consumes_every_update_so_far_and_the_next_run_waits_for_new_ones(scenario: Scenario) -> None:
    scenario.add(waits("d", A & B))
    for one in (A, A, B):
        transact(scenario.engine, assets.update, one.uri)
    service(scenario).run_once(NOW)
    transact(scenario.engine, assets.update, A.uri)
    service(scenario).run_once(NOW)

    assert triggered(scenario, "d") == 1
    consumed = scenario.rows("select e.uri from dag_run_asset_event c join asset_event e on e.id = c.event_id order by e.id")
    assert consumed == [("s3://a",), ("s3://a",), ("s3://b",)]
    assert scenario.rows("select uri from asset_waiting") == [("s3://a",)]

    transact(scenario.engine, assets.update, B.uri)
    service(scenario).run_once(NOW)
    assert triggered(scenario, "d") == 2


def test_a_paused_dag_collects_updates_and_runs_once_it_is_unpaused(scenario: Scenario) -> None:
    scenario.add(waits("d", A))
    transact(scenario.engine, dags.pause, "d")
    for _ in range(3):
        transact(scenario.engine, assets.update, A.uri)
        service(scenario).run_once(NOW)
    assert triggered(scenario, "d") == 0

    transact(scenario.engine, dags.unpause, "d")
    service(scenario).run_once(NOW)

    assert triggered(scenario, "d") == 1
    assert scenario.rows("select count(*) from dag_run_asset_event") == [(3,)]


def test_racing_schedulers_make_one_run_for_each_round_of_updates(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    for number in range(5):
        scenario.add(waits(f"d{number}", A & B))
    barrier = threading.Barrier(3)
    rounds, failures = 6, []

    def race() -> None:
        mine = service(scenario)
        try:
            for _ in range(rounds):
                barrier.wait(30)
                mine.run_once(NOW)
                mine.run_once(NOW)
                barrier.wait(30)
        except Exception as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for done in range(rounds):
        for one in (A, B):
            transact(scenario.engine, assets.update, one.uri)
        barrier.wait(30)
        barrier.wait(30)
        service(scenario).run_once(NOW)
        assert [triggered(scenario, f"d{number}") for number in range(5)] == [done + 1] * 5
    for thread in threads:
        thread.join(30)

    assert failures == []
    assert scenario.rows("select 1 from asset_waiting") == []


def test_racing_schedulers_pass_each_success_on_once(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    scenario.start(dag("maker", {f"t{n}": [] for n in range(40)}, task={"outlets": (A.uri,), "notify": ("asset",)}))
    assert scenario.work() == 40

    threads = [threading.Thread(target=lambda: service(scenario).run_once(NOW)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    service(scenario).run_once(NOW)

    assert scenario.rows("select count(*), count(distinct task_id) from asset_event") == [(40, 40)]
    assert scenario.rows("select count(*) from notice where ended_at is null") == [(0,)]


def test_runs_made_by_assets_wait_for_max_active_runs(scenario: Scenario) -> None:
    scenario.add(waits("d", A, max_active_runs=1))
    for _ in range(3):
        transact(scenario.engine, assets.update, A.uri)
        scenario.turn()

    assert scenario.rows("select state, count(*) from dag_run group by 1 order by 1") == [("queued", 2), ("running", 1)]
    scenario.run_to_end()
    assert scenario.rows("select distinct state from dag_run") == [("success",)]


def test_an_asset_or_time_schedule_runs_by_both(scenario: Scenario) -> None:
    table = timetable.UpdatedOrTime(timetable.Cron("0 * * * *"), A)
    scenario.add(chain("d", 1, schedule=table.to_spec(), start_date=NOW.isoformat()))

    Plan(scenario.engine, scenario.settings, Versions()).plan(NOW + timedelta(minutes=5))
    transact(scenario.engine, assets.update, A.uri)
    service(scenario).run_once(NOW)

    assert scenario.rows("select run_type from dag_run order by id") == [("scheduled",), ("asset_triggered",)]


def test_a_dag_that_does_not_take_such_runs_gets_none(scenario: Scenario) -> None:
    scenario.add(waits("d", A, allowed_run_types=("manual",)))

    transact(scenario.engine, assets.update, A.uri)
    service(scenario).run_once(NOW)

    assert triggered(scenario, "d") == 0


def test_updates_of_assets_the_schedule_no_longer_names_are_forgotten(scenario: Scenario) -> None:
    scenario.add(waits("d", A & B))
    transact(scenario.engine, assets.update, A.uri)
    scenario.add(waits("d", B & C))
    service(scenario).run_once(NOW)
    assert scenario.rows("select 1 from asset_waiting") == []

    for one in (B, C):
        transact(scenario.engine, assets.update, one.uri)
    service(scenario).run_once(NOW)

    assert scenario.rows("select e.uri from dag_run_asset_event c join asset_event e on e.id = c.event_id order by 1") == [
        ("s3://b",),
        ("s3://c",),
    ]


def test_a_dag_that_cannot_be_run_stops_no_other(scenario: Scenario) -> None:
    scenario.add(waits("bad", A))
    scenario.add(waits("good", A))
    transact(scenario.engine, assets.update, A.uri)
    scenario.sql("update dag_version set data = jsonb_set(data, '{schedule,kind}', '\"from the future\"') where dag_id = 'bad'")

    done = service(scenario).run_once(NOW)

    assert [line.partition(":")[0] for _, line in done.log] == ["DAG bad cannot be run for its assets"]
    assert triggered(scenario, "good") == 1


def test_an_update_names_the_asset_by_uri_or_name_and_an_unknown_asset_is_refused(scenario: Scenario) -> None:
    scenario.add(waits("d", A & B))
    scenario.add(updates("maker", A))

    event = transact(scenario.engine, assets.update, "a", {"rows": 1}, "ada")
    assert (event["uri"], event["extra"], event["created_by"]) == ("s3://a", {"rows": 1}, "ada")
    with pytest.raises(NotFoundError, match="did you mean 's3://a'"):
        transact(scenario.engine, assets.update, "s3://aa")
    with pytest.raises(PacelineError, match="extra cannot be stored"):
        transact(scenario.engine, assets.update, "a", {"key": "a\0b"})

    listed = transact(scenario.engine, assets.assets)
    assert [(row["name"], row["updated_by"], row["waited_for_by"], row["updated_at"] is None) for row in listed] == [
        ("a", ["maker.t000"], ["d"], False),
        ("b", [], ["d"], True),
    ]


def test_a_condition_survives_its_spec() -> None:
    condition = (A & B) | C

    assert asset.from_spec(condition.to_spec()) == condition
    assert condition.uris == ["s3://a", "s3://b", "s3://c"]
    assert condition.summary == "(a and b) or c"


def broken_version(scenario: Scenario) -> None:
    scenario.sql("update dag_version set data = '{}' where dag_id = 'broken'")


def no_such_content(scenario: Scenario) -> None:
    """The XCom that a task can push by itself: added assets without an extra."""
    stored = {A.uri: {"extra": {"x": 1}}, "alias:x": {"extra": {ADDED: [{"uri": 7}, "not an asset"]}}}
    scenario.sql(
        "update xcom x set value = %s::jsonb from task_instance t join dag_run r on r.id = t.dag_run_id"
        " where x.task_instance_id = t.id and x.key = %s and r.dag_id = 'broken'",
        json.dumps(stored), outlets.XCOM_KEY,
    )  # fmt: skip
    scenario.sql(
        "update dag_version set data = jsonb_set(data, '{tasks,0,outlets}', %s::jsonb) where dag_id = 'broken'",
        json.dumps([A.uri, "alias:x"]),
    )


def too_long(scenario: Scenario) -> None:
    """A URI that an index cannot hold."""
    uri = "s3://" + "".join(random.Random(1).choices(string.ascii_letters, k=20_000))
    scenario.sql(
        "update dag_version set data = jsonb_set(data, '{tasks,0,outlets}', %s::jsonb) where dag_id = 'broken'", json.dumps([uri])
    )


@pytest.mark.parametrize("break_it", [broken_version, no_such_content, too_long])
def test_an_update_that_cannot_be_stored_stops_no_other(scenario: Scenario, break_it: Callable[[Scenario], None]) -> None:
    scenario.add(updates("broken", A))
    scenario.add(updates("fine", B))
    scenario.add(waits("d", B))
    for dag_id in ("broken", "fine"):
        scenario.trigger(dag_id, run_id="r")
    scenario.turn()
    for message in scenario.messages():
        claim = scenario.claim(message)
        assert claim is not None
        xcoms.push(scenario.hot, claim, outlets.XCOM_KEY, "{}")
        assert scenario.follower.report(claim, Ending(TaskState.SUCCESS)).is_stored
    (version,) = scenario.rows("select data::text from dag_version where dag_id = 'broken'")
    break_it(scenario)

    first = service(scenario).run_once(NOW)

    assert triggered(scenario, "d") == 1
    assert ["broken.t000" in message for _, message in first.log] == [True]
    # It waits, and is stored as soon as it can be.
    assert not pending(scenario)
    scenario.sql("update dag_version set data = %s::jsonb where dag_id = 'broken'", *version)
    scenario.sql("update xcom set value = '{}' where key = %s", outlets.XCOM_KEY)
    scenario.sql("update notice set claimed_until = clock_timestamp() where claimed_until is not null")
    assert pending(scenario)
    service(scenario).run_once(NOW)
    assert scenario.rows("select dag_id from asset_event where uri = %s", A.uri) == [("broken",)]


def pending(scenario: Scenario) -> bool:
    """Whether the service looks for updates."""
    return bool(scenario.rows(f"select {assets.PENDING}")[0][0])


def test_a_renamed_asset_triggers_the_dags_that_know_it_by_its_new_name(scenario: Scenario) -> None:
    """Its URI stays the same, and its earlier updates were stored under the old name."""
    scenario.add(replace(updates("source", A), asset_names={A.uri: A.name}))
    scenario.trigger("source")
    scenario.run_to_end()
    scenario.add(replace(updates("source", A), asset_names={A.uri: "new"}, description="renamed"))
    scenario.add(waits("waits", asset.AssetRef("new")))
    scenario.trigger("source")
    for _ in range(4):
        scenario.turn()
        scenario.work()

    assert triggered(scenario, "waits") == 1
    assert scenario.rows("select uri, name from asset") == [(A.uri, "new")]


def test_an_asset_that_moved_to_another_uri_is_updated_there_by_its_name(scenario: Scenario) -> None:
    moved = Asset("a", "s3://moved")
    transact(scenario.engine, assets.store, [assets.Update(uri=A.uri)], {A.uri: A.name})
    scenario.add(waits("waits", moved))

    transact(scenario.engine, assets.update, "a")
    service(scenario).run_once(NOW)

    assert triggered(scenario, "waits") == 1
