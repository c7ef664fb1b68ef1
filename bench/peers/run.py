"""Runs a DAG on either system, waits for its end, and reads its times from the system's own database."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bench.measure import calibrate
from bench.peers.airflow import Airflow
from bench.stack import Stack, StackError

#: Seconds that a run may take. Airflow's defaults need 1.1 s for each task of a chain.
LIMIT_S = 600.0
PACELINE_RUN = "select extract(epoch from queued_at), extract(epoch from ended_at), state from dag_run where id = %s"
PACELINE_TASKS = """
    select extract(epoch from started_at), extract(epoch from ended_at), state from task_instance
     where dag_run_id = %s order by started_at
"""
AIRFLOW_RUN = """
    select extract(epoch from queued_at), extract(epoch from end_date), state from dag_run where dag_id = %s and run_id = %s
"""
AIRFLOW_TASKS = """
    select extract(epoch from start_date), extract(epoch from end_date), state from task_instance
     where dag_id = %s and run_id = %s order by start_date
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The times of one run. `tasks` are (started, ended) in the order of their start, in seconds since 1970."""

    queued_at: float
    ended_at: float
    tasks: Sequence[tuple[float, float]]
    #: CPU seconds of the system's processes and of both servers during the run.
    cpu_s: float
    #: `measure.calibrate` just before the run: the speed of the machine.
    calibration_ms: float

    @property
    def makespan_s(self) -> float:
        """Seconds from the creation of the run to its end."""
        return self.ended_at - self.queued_at

    @property
    def hops_ms(self) -> list[float]:
        """For sequential tasks: milliseconds from the start of each to the start of the next, see measure.hops."""
        return [(after[0] - before[0]) * 1e3 for before, after in pairwise(self.tasks)]


def on_paceline(stack: Stack, dag_id: str) -> Run:
    """Run it on the stack's own schedulers and workers."""

    def cpu() -> float:
        return stack.cpu_seconds()["total"]

    def once() -> tuple[Any, ...]:
        (run_id,) = stack.trigger([dag_id])
        stack.wait_closed([run_id], LIMIT_S)
        return (run_id,)

    return _measured(once, cpu, lambda key: (stack.rows(PACELINE_RUN, key), stack.rows(PACELINE_TASKS, key)))


def on_airflow(airflow: Airflow, dag_id: str) -> Run:
    """Run it on Airflow."""

    def cpu() -> float:
        servers = airflow.stack.cpu_seconds()
        return airflow.cpu_seconds() + servers["postgres"] + servers["redis"]

    def once() -> tuple[Any, ...]:
        run_id = airflow.trigger(dag_id)
        airflow.wait_ended(dag_id, run_id, LIMIT_S)
        return dag_id, run_id

    return _measured(once, cpu, lambda key: (airflow.rows(AIRFLOW_RUN, key), airflow.rows(AIRFLOW_TASKS, key)))


def _measured(once: Callable[[], tuple[Any, ...]], cpu: Callable[[], float], read: Callable[[tuple[Any, ...]], Any]) -> Run:
    calibration_ms = calibrate()
    before = cpu()
    key = once()
    used = cpu() - before
    ((queued_at, ended_at, state),), tasks = read(key)
    unwell = [task for task in tasks if task[2] != "success"]
    if state != "success" or unwell:
        raise StackError(f"the run {key} ended as {state}, and {len(unwell)} of its {len(tasks)} tasks did not succeed")
    return Run(
        queued_at=float(queued_at),
        ended_at=float(ended_at),
        tasks=[(float(started), float(ended)) for started, ended, _ in tasks],
        cpu_s=used,
        calibration_ms=calibration_ms,
    )
