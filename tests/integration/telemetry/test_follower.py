"""Metrics of events and gauges of a scenario on real PostgreSQL: each event is counted once by any number of readers."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.scenario import Scenario, chain, dag

from paceline.states import TaskState
from scheduler.process import measures
from scheduler.services.deadlines import Deadlines
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.read import event_feed
from scheduler.store.read.event_feed import EventFeed
from scheduler.store.worker.claims import Claim, Ending
from scheduler.telemetry.catalog import CATALOG, Kind
from scheduler.telemetry.event_metrics import EventMetrics, read_gauges
from scheduler.telemetry.follower import Follower
from scheduler.telemetry.recorder import Recorder


class Reader:
    """A follower that the test runs by hand, with the totals of its process."""

    def __init__(self, settings: Settings) -> None:
        on = settings.metrics.model_copy(update={"prometheus": True})
        settings = settings.model_copy(update={"metrics": on})
        self.recorder = Recorder(settings)
        self.follower = Follower(settings, [EventMetrics(settings, self.recorder)])

    def read(self) -> None:
        while self.follower.read_once():
            pass

    def leave(self) -> None:
        self.follower._leave()

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter, or the number of durations of a timer, over all series with these labels."""
        assert self.recorder.totals is not None
        metric = CATALOG[name]
        total = f"{metric.prometheus('airflow')}_{'count' if metric.kind is Kind.TIMER else 'total'}"
        samples = [sample for family in self.recorder.totals.registry.collect() for sample in family.samples]
        return sum(one.value for one in samples if one.name == total and labels.items() <= one.labels.items())


@pytest.fixture
def make_reader(settings: Settings) -> Iterator[Callable[[], Reader]]:
    made: list[Reader] = []

    def make() -> Reader:
        made.append(Reader(settings))
        return made[-1]

    yield make
    for reader in made:
        reader.leave()


def failing_once(claim: Claim) -> TaskState | Ending:
    failed: Any = Ending(TaskState.UP_FOR_RETRY, delay_s=0.0, reason="ValueError: no")
    return failed if claim.task_id == "t001" and claim.try_number == 1 else TaskState.SUCCESS


def test_each_try_and_run_is_counted_once(scenario: Scenario, make_reader: Callable[[], Reader]) -> None:
    reader = make_reader()
    reader.read()
    scenario.triggered(chain("c", 3, task={"retries": 1}))
    scenario.run_to_end(outcome=failing_once)
    reader.read()
    reader.read()

    expected = {
        "ti.start": 4, "ti.finish": 4, "ti_successes": 3, "ti_failures": 1, "operator_successes": 3, "operator_failures": 1,
        "task.duration": 4, "task.queued_duration": 4, "dagrun.duration.success": 1, "dagrun.duration.failed": 0,
        "dagrun.first_task_start_delay": 1, "task_instance_created": 3, "celery_task_started": 4, "celery_task_succeeded": 3,
        "celery_task_retried": 1, "celery_task_failed": 0, "celery_task_runtime": 4, "celery.execute_command.failure": 1,
    }  # fmt: skip
    assert {name: reader.total(name) for name in expected} == expected
    assert reader.total("ti.finish", dag_id="c", task_id="t001", state="up_for_retry") == 1
    assert reader.total("operator_successes", operator="EmptyOperator") == 3


def test_deadlines_are_counted_when_they_are_created_and_when_they_are_met_or_missed(
    scenario: Scenario, make_reader: Callable[[], Reader]
) -> None:
    reader = make_reader()
    reader.read()
    late: dict[str, Any] = {"interval_s": 3600.0, "at": None, "max_runs": 5, "min_runs": 3, "name": None}
    specs = tuple(late | {"reference": reference} for reference in ("dagrun_queued_at", "dagrun_queued_at", "average_runtime"))
    scenario.add(dag("d", {"a": []}, task={"sla_s": 3600.0}, deadlines=specs))
    scenario.trigger("d")  # SLAs are for scheduled runs
    scenario.run_to_end()
    reader.read()
    scenario.sql("update dag_run set ended_at = ended_at - interval '1 h'")
    scenario.sql("update deadline d set due_at = r.ended_at + make_interval(mins => 1 - 2 * d.number) from dag_run r")
    measures.record_with(reader.recorder)
    try:
        assert scenario.schedulers[0].service(Deadlines).settle() == 1
    finally:
        measures.record_with(None)

    counted = {name: reader.total(f"deadline_alerts.deadline_{name}") for name in ("created", "not_missed", "missed")}
    assert counted == {"created": 2, "not_missed": 1, "missed": 1}


def test_a_start_counts_while_the_try_runs_and_not_again_at_its_end(scenario: Scenario, make_reader: Callable[[], Reader]) -> None:
    reader = make_reader()
    reader.read()
    scenario.start(chain("c", 1))
    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None
    reader.read()
    assert (reader.total("ti.start"), reader.total("ti.finish")) == (1, 0)

    scenario.follower.report(claim, Ending(TaskState.SUCCESS))
    reader.read()
    reader.read()

    assert (reader.total("ti.start"), reader.total("ti.finish")) == (1, 1)


def test_one_scheduler_reads_and_the_next_one_continues_where_it_stopped(
    scenario: Scenario, make_reader: Callable[[], Reader]
) -> None:
    first, second = make_reader(), make_reader()
    first.read()
    scenario.finish(chain("c", 2))
    second.read()
    assert second.total("ti.finish") == 0, "it reads beside the first one"
    first.read()
    assert first.total("ti.finish") == 2

    scenario.trigger("c")
    scenario.run_to_end()
    first.recorder.record("paceline.events_behind_seconds", {}, 300)
    first.leave()
    assert first.total("paceline.events_behind_seconds") == 0, "it looks late although another one reads"
    second.read()

    assert (second.total("ti.start"), second.total("ti.finish"), second.total("dagrun.duration.success")) == (2, 2, 1)


def test_an_event_that_becomes_visible_late_is_read_once(scenario: Scenario) -> None:
    feed = EventFeed()
    transact(scenario.engine, feed.read)
    scenario.triggered(chain("c", 1))
    insert = "insert into event (dag_run_id, to_state, actor, reason) select id, 'running', 'late', %s from dag_run"
    with scenario.engine.connect() as late:
        late.exec_driver_sql(insert, ("late",))
        scenario.sql(insert, "early")
        found = [event.reason for event in transact(scenario.engine, feed.read)]
        late.commit()
    found += [event.reason for event in transact(scenario.engine, feed.read)]
    found += [event.reason for event in transact(scenario.engine, feed.read)]

    assert sorted(reason for reason in found if reason in {"early", "late"}) == ["early", "late"]


def test_an_event_of_the_newest_transaction_is_read(scenario: Scenario) -> None:
    """No transaction ends after it began, so that no snapshot lists it as open."""
    run = scenario.triggered(chain("c", 1))
    feed = EventFeed()
    transact(scenario.engine, feed.read)
    with scenario.engine.connect() as late:
        late.exec_driver_sql("update dag_run set state = 'failed', ended_at = clock_timestamp() where id = %s", (run,))
        assert [transact(scenario.engine, feed.read) for _ in range(3)] == [[], [], []]
        late.commit()

    assert [event.to_state for event in transact(scenario.engine, feed.read)] == ["failed"]


def test_a_reader_that_was_stopped_reads_in_bounded_batches(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "BATCH_S", 1.0)
    scenario.finish(chain("c", 1))
    (now,) = scenario.rows("select extract(epoch from clock_timestamp())::float8")[0]
    feed = EventFeed(since=now - 20, until=now - 20)

    batches = 0
    found = []
    while feed.now == 0.0 or feed.is_behind:
        found += transact(scenario.engine, feed.read)
        batches += 1

    assert batches > 10
    assert len(found) == scenario.rows("select count(*) from event")[0][0]


def test_the_gauges_agree_with_the_tables(scenario: Scenario) -> None:
    scenario.pool("small", 1)
    scenario.start(dag("d", {"a": (), "b": (), "c": ()}, task={"pool": "small"}))
    (message,) = scenario.messages()
    assert scenario.claim(message) is not None

    with scenario.engine.connect() as connection:
        found = {(metric.name, *labels): value for metric, labels, value in read_gauges(connection, scenario.settings)}

    assert {key: found[key] for key in (
        ("pool.open_slots", "small"), ("pool.running_slots", "small"), ("pool.scheduled_slots", "small"),
        ("pool.starving_tasks", "small"), ("pool.used_slots", "small"), ("scheduler.tasks.starving",),
        ("executor.running_tasks",), ("executor.queued_tasks",), ("executor.open_slots",), ("scheduler.dagruns.running",),
        ("dagbag_size",), ("paceline.processes", "worker", "alive"), ("celery_worker_up", "w"),
        ("celery_worker_tasks_active", "w"), ("celery_active_process_count", "default"),
    )} == {
        ("pool.open_slots", "small"): 0, ("pool.running_slots", "small"): 1, ("pool.scheduled_slots", "small"): 2,
        ("pool.starving_tasks", "small"): 2, ("pool.used_slots", "small"): 1, ("scheduler.tasks.starving",): 2,
        ("executor.running_tasks",): 1, ("executor.queued_tasks",): 0, ("executor.open_slots",): 63,
        ("scheduler.dagruns.running",): 1, ("dagbag_size",): 1, ("paceline.processes", "worker", "alive"): 1,
        ("celery_worker_up", "w"): 1, ("celery_worker_tasks_active", "w"): 1, ("celery_active_process_count", "default"): 64,
    }  # fmt: skip
    assert found["paceline.queue.oldest_waiting_seconds", "default"] >= 0
    assert all(len(key) - 1 == len(CATALOG[key[0]].labels) for key in found)


def test_nothing_is_counted_before_the_first_batch(scenario: Scenario, make_reader: Callable[[], Reader]) -> None:
    scenario.finish(chain("c", 2))
    reader = make_reader()
    reader.read()
    reader.read()

    assert reader.total("ti.finish") == reader.total("ti.start") == 0


def test_a_reader_in_a_thread_ends_and_gives_its_place_up(settings: Settings, make_reader: Callable[[], Reader]) -> None:
    reader, other = make_reader(), make_reader()
    reader.follower.start()
    reader.follower.end()

    assert not any(thread.name == "telemetry" for thread in threading.enumerate())
    other.read()
    assert other.follower._connection is not None
