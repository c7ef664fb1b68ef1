"""SLAs and deadlines: a miss is recorded once, with one notice and one email, and a met deadline is none."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.scenario import Scenario, dag
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.dagfiles import load
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.services.deadlines import Deadlines
from scheduler.services.notify import Notify
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.runs import deadlines

START = datetime(2026, 1, 1, tzinfo=UTC)
SLA = {"sla_s": 3600.0, "email": ("a@example.org",)}


def spec(reference: str, interval_s: float = 60.0, **more: Any) -> dict[str, Any]:
    return {"reference": reference, "interval_s": interval_s, "at": None, "max_runs": None, "min_runs": None, "name": None} | more


def make_run(scenario: Scenario, new: SerializedDag, *, run_type: str = "scheduled", run_id: str = "r") -> int:
    """A run as plan makes it: of the hour that ends now."""
    if not scenario.rows("select 1 from dag where dag_id = %s", new.dag_id):
        scenario.add(new)
    run = scenario.trigger(new.dag_id, run_id=run_id)
    scenario.sql(
        "update dag_run set run_type = %s, logical_date = date_trunc('hour', clock_timestamp()) - make_interval(days => id::int),"
        " data_interval_start = clock_timestamp() - interval '1 h', data_interval_end = clock_timestamp() where id = %s",
        run_type,
        run,
    )
    scenario.sql("delete from deadline")
    transact(scenario.engine, deadlines.plan, new, run)
    return run


def rows(scenario: Scenario) -> list[tuple[Any, ...]]:
    return scenario.rows("select kind, task_no, missed_at is not null from deadline order by kind, task_no, number")


def noted(scenario: Scenario) -> list[tuple[Any, ...]]:
    return scenario.rows("select kind, data->>'task_id' from notice order by id")


def due(scenario: Scenario, *, ago_s: float = 0.0) -> None:
    """Let everything be due now, or some time ago."""
    scenario.sql("update deadline set due_at = clock_timestamp() - make_interval(secs => %s)", ago_s)


def settle(scenario: Scenario) -> int:
    return sum(scheduler.service(Deadlines).settle() for scheduler in scenario.schedulers)


def slas(**options: Any) -> SerializedDag:
    return dag("d", {"a": [], "b": ["a"]}, task=SLA, sla_miss_callback=True, **options)


def test_an_sla_is_due_after_the_end_of_the_interval_and_for_scheduled_runs_only(scenario: Scenario) -> None:
    make_run(scenario, slas())

    assert scenario.rows(
        "select d.task_no, d.due_at - r.data_interval_end from deadline d join dag_run r on r.id = d.dag_run_id order by 1"
    ) == [(0, timedelta(hours=1)), (1, timedelta(hours=1))]
    for run_type in ("manual", "backfill"):
        make_run(scenario, slas(), run_type=run_type, run_id=run_type)
        assert rows(scenario) == []


def test_a_dag_without_any_writes_nothing(scenario: Scenario) -> None:
    make_run(scenario, dag("d", {"a": []}))

    assert rows(scenario) == []
    assert settle(scenario) == 0


def test_a_missed_sla_is_recorded_once_with_one_notice_and_one_email(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=3)
    make_run(scenario, slas())
    assert settle(scenario) == 0
    due(scenario)

    assert settle(scenario) == 2
    assert settle(scenario) == 0

    assert rows(scenario) == [("sla", 0, True), ("sla", 1, True)]
    assert noted(scenario) == [("email_sla", "a"), ("sla_miss", "a"), ("email_sla", "b"), ("sla_miss", "b")]


def test_a_met_deadline_is_no_miss_even_if_no_service_checked_in_time(scenario: Scenario) -> None:
    make_run(scenario, slas())
    scenario.run_to_end()
    scenario.sql("update task_instance set ended_at = ended_at - interval '2 h'")
    due(scenario, ago_s=3600)

    assert settle(scenario) == 0

    assert rows(scenario) == [] and noted(scenario) == []


def test_a_late_end_is_a_miss_even_if_no_service_checked_in_time(scenario: Scenario) -> None:
    make_run(scenario, slas())
    scenario.run_to_end()
    due(scenario, ago_s=3600)

    assert settle(scenario) == 2


def test_a_failure_misses_and_a_skip_does_not(scenario: Scenario) -> None:
    make_run(scenario, dag("d", {"a": [], "b": []}, task=SLA))
    endings = {"a": TaskState.FAILED, "b": TaskState.SKIPPED}
    scenario.run_to_end(outcome=lambda claim: endings[claim.task_id])
    due(scenario, ago_s=-0.5)

    eventually(lambda: settle(scenario))

    assert rows(scenario) == [("sla", 0, True)]
    assert noted(scenario) == [("email_sla", "a")]


def test_a_report_on_its_way_is_waited_for(scenario: Scenario) -> None:
    """The worker has written that it made it, and not committed yet when the SLA is looked at."""
    make_run(scenario, dag("d", {"a": []}, task=SLA))
    scenario.run_to_end()
    scenario.sql("update task_instance set state = 'running', ended_at = null, dispatch_id = gen_random_uuid(), worker = 'w'")
    with database.create(scenario.settings).connect() as worker:
        worker.exec_driver_sql("update task_instance set state = 'success', ended_at = clock_timestamp()")
        due(scenario, ago_s=-0.3)
        found: list[int] = []
        eventually(lambda: scenario.rows("select 1 from deadline where due_at < clock_timestamp()"))
        looking = threading.Thread(target=lambda: found.append(settle(scenario)))
        looking.start()
        eventually(
            lambda: scenario.rows("select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()")
        )
        worker.commit()
        looking.join()
        worker.engine.dispose()

    assert found == [0] and rows(scenario) == []


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (spec("dagrun_logical_date"), "logical_date + interval '60 s'"),
        (spec("dagrun_queued_at", 3600), "queued_at + interval '1 h'"),
        (spec("fixed_datetime", -60, at=START.isoformat()), "timestamptz '2025-12-31 23:59:00+00'"),
    ],
)
def test_a_deadline_counts_from_its_reference(scenario: Scenario, one: dict[str, Any], expected: str) -> None:
    make_run(scenario, dag("d", {"a": []}, deadlines=(one,)), run_type="manual")

    found = scenario.rows(f"select d.due_at = {expected} from deadline d join dag_run r on r.id = d.dag_run_id")

    assert found == [(True,)]


def test_the_average_runtime_is_that_of_the_last_ended_runs(scenario: Scenario) -> None:
    new = dag("d", {"a": []}, deadlines=(spec("average_runtime", 60, max_runs=3, min_runs=2),))
    for number, took_s in enumerate((500, 10, 20, 30)):
        run = make_run(scenario, new, run_id=f"r{number}")
        assert bool(rows(scenario)) == (number >= 2), "two runs must have ended"
        scenario.sql(
            "update dag_run set state = 'success', logical_date = %s, started_at = clock_timestamp(),"
            " ended_at = clock_timestamp() + make_interval(secs => %s) where id = %s",
            START + timedelta(days=number),
            took_s,
            run,
        )

    make_run(scenario, new, run_id="now")

    found = scenario.rows("select d.due_at - r.queued_at from deadline d join dag_run r on r.id = d.dag_run_id")
    assert found == [(timedelta(seconds=20 + 60),)]


def test_a_run_without_a_logical_date_has_no_deadline_counted_from_it(scenario: Scenario) -> None:
    new = scenario.add(dag("d", {"a": []}, deadlines=(spec("dagrun_logical_date"),)))
    run = scenario.trigger("d")
    scenario.sql("update dag_run set logical_date = null")
    scenario.sql("delete from deadline")

    transact(scenario.engine, deadlines.plan, new, run)

    assert rows(scenario) == []


@pytest.mark.parametrize(("ending", "late_s", "misses"), [("success", 60, 0), ("success", -60, 1), ("failed", 60, 1)])
def test_a_run_makes_its_deadline_if_it_succeeds_by_then(scenario: Scenario, ending: str, late_s: int, misses: int) -> None:
    run = make_run(scenario, dag("d", {"a": []}, deadlines=(spec("dagrun_queued_at"),)))
    scenario.run_to_end(outcome=lambda _: TaskState(ending))
    scenario.sql("update dag_run set ended_at = ended_at - interval '1 h'")
    scenario.sql(
        "update deadline set due_at = (select ended_at from dag_run where id = %s) + make_interval(secs => %s)", run, late_s
    )

    assert settle(scenario) == misses

    assert noted(scenario) == [("deadline", None)] * misses


def test_the_deadline_of_a_cleared_run_starts_when_it_is_queued_again(scenario: Scenario) -> None:
    new = dag("d", {"a": []}, deadlines=(spec("dagrun_queued_at", 3600), spec("fixed_datetime", at=START.isoformat())), task=SLA)
    run = make_run(scenario, new)
    due(scenario)
    assert settle(scenario) == 3

    scenario.sql("update dag_run set queued_at = clock_timestamp(), data_interval_end = %s where id = %s", START, run)
    transact(scenario.engine, deadlines.replan, run)

    # Deadlines from the schedule or a fixed moment are decided; only the one that moved may be missed again.
    assert scenario.rows("select kind, number, missed_at is null from deadline order by 1, 2") == [
        ("deadline", 0, True), ("deadline", 1, False), ("sla", 0, False),
    ]  # fmt: skip
    due(scenario)
    assert settle(scenario) == 1


def test_clearing_a_run_of_a_dag_without_any_does_nothing(scenario: Scenario) -> None:
    run = make_run(scenario, dag("d", {"a": []}))

    transact(scenario.engine, deadlines.replan, run)

    assert rows(scenario) == []


def test_the_callbacks_of_a_miss_get_their_context(scenario: Scenario) -> None:
    folder = scenario.settings.dags_folder
    (folder / "d.py").write_text(
        """
import pathlib
from datetime import timedelta
from paceline import DAG, AsyncCallback, DeadlineAlert, DeadlineReference
from paceline.operators import EmptyOperator

told = pathlib.Path(__file__).parent.parent / "told"

def missed(dag, task_list, blocking_task_list, slas, blocking_tis):
    assert slas[0].dag_id == "d" and slas[0].timestamp.tzinfo
    print_(dag.dag_id, task_list.split(" on ")[0], blocking_task_list.count("a on "), [ti.task_id for ti in blocking_tis])

async def late(who, context):
    deadline = context["deadline"]
    print_(who, context["run_id"], deadline.name, deadline.deadline_time.year > 2025, context["dag_run"].run_type)

def print_(*words):
    with told.open("a") as file:
        print(*words, file=file)

with DAG(
    "d",
    sla_miss_callback=missed,
    deadline=[
        DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(days=1), print),
        DeadlineAlert(DeadlineReference.DAGRUN_QUEUED_AT, timedelta(1), AsyncCallback(late, {"who": "me"}), name="a day"),
    ],
):
    EmptyOperator(task_id="a", sla=timedelta(minutes=1))
"""
    )
    core, limits = scenario.settings.core, scenario.settings.scheduler
    make_run(scenario, from_dag(load.load(folder, "d.py")["d"], file="d.py", core=core, scheduler=limits))
    due(scenario)
    assert settle(scenario) == 3

    def over() -> bool:
        scenario.schedulers[0].service(Notify).take()
        return not scenario.rows("select 1 from notice where ended_at is null")

    eventually(over, timeout=20)

    assert scenario.rows("select error from notice where error is not null") == []
    assert sorted((folder.parent / "told").read_text().splitlines()) == ["d a 1 ['a']", "me r a day True scheduled"]
