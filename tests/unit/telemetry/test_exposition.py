"""The page /metrics, parsed as Prometheus does."""

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from scheduler.settings import Settings
from scheduler.telemetry.catalog import CATALOG
from scheduler.telemetry.parts import Exposition
from scheduler.telemetry.recorder import MOST_SERIES, Recorder, Sample


def on(settings: Settings, **values: object) -> Settings:
    return settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"prometheus": True, **values})})


def samples(exposition: Exposition) -> dict[tuple[str, ...], float]:
    """Each sample of the page by its name and the values of its labels in order of the names."""
    _, body = exposition.page()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_totals_are_shown_with_the_suffixes_of_prometheus(settings: Settings) -> None:
    recorder = Recorder(on(settings))
    recorder.record("ti.finish", {"dag_id": 'a"b\n', "task_id": "t", "state": "success"}, 2)
    recorder.record("task.duration", {"dag_id": "d", "task_id": "t"}, 0.3)
    recorder.record("task.duration", {"dag_id": "d", "task_id": "t"}, 99_999)
    recorder.record("triggers.running", {"hostname": "h"}, 5)
    found = samples(Exposition(recorder, "airflow", gauges=None, healthy=lambda: {"loop": True, "database": False}))

    assert found["airflow_ti_finish_total", 'a"b\n', "success", "t"] == 2
    assert found["airflow_task_duration_seconds_bucket", "d", "0.25", "t"] == 0
    assert found["airflow_task_duration_seconds_bucket", "d", "0.5", "t"] == 1
    assert found["airflow_task_duration_seconds_bucket", "d", "+Inf", "t"] == 2
    assert found["airflow_task_duration_seconds_count", "d", "t"] == 2
    assert found["airflow_task_duration_seconds_sum", "d", "t"] == 99_999.3
    assert found["airflow_triggers_running", "h"] == 5
    assert (found["paceline_health", "loop"], found["paceline_health", "database"]) == (1, 0)
    assert ("paceline_database_up",) not in found
    assert ("process_resident_memory_bytes",) in found


def test_a_database_that_does_not_answer_costs_only_its_gauges(settings: Settings) -> None:
    def broken() -> Sequence[Sample]:
        raise OSError("away")

    recorder = Recorder(on(settings))
    recorder.record("scheduler_heartbeat", {}, 1)
    found = samples(Exposition(recorder, "airflow", gauges=broken))

    assert (found["paceline_database_up",], found["airflow_scheduler_heartbeat_total",]) == (0, 1)


def test_scrapes_of_the_same_second_share_a_query(settings: Settings) -> None:
    requests = []

    def gauges() -> Sequence[Sample]:
        requests.append(1)
        return [(CATALOG["dagbag_size"], (), 7.0)]

    exposition = Exposition(Recorder(on(settings)), "p", gauges=gauges)

    assert [samples(exposition)["p_dagbag_size",] for _ in range(3)] == [7, 7, 7]
    assert len(requests) == 1


def test_a_metric_with_too_many_label_sets_drops_new_ones_and_counts_them(settings: Settings) -> None:
    recorder = Recorder(on(settings))
    for number in range(MOST_SERIES + 5):
        recorder.record("ti.start", {"dag_id": "d", "task_id": str(number)}, 1)
    recorder.record("ti.start", {"dag_id": "d", "task_id": "0"}, 1)
    found = samples(Exposition(recorder, "airflow", gauges=None))

    assert found["airflow_ti_start_total", "d", "0"] == 2
    assert found["paceline_series_dropped_total", "ti.start"] == 5


def test_without_task_labels_the_tasks_of_a_dag_are_added_up(settings: Settings) -> None:
    recorder = Recorder(on(settings, task_labels=False))
    for task in ("a", "b"):
        recorder.record("ti.start", {"dag_id": "d", "task_id": task}, 1)
    running = CATALOG["ti.running"]

    assert samples(Exposition(recorder, "airflow", gauges=None))["airflow_ti_start_total", "d", "all"] == 2
    assert recorder.summed([(running, ("q", "d", "a"), 1.0), (running, ("q", "d", "b"), 2.0)]) == [
        (running, ("q", "d", "all"), 3.0)
    ]
