"""The runtimes have the same names for schedulers and for workers, and a worker reports a task of a runtime that it lacks."""

from dataclasses import replace
from pathlib import Path

from support.conformance import Case, dag_run, parsed

from scheduler.serialized.tasks import TRAITS
from scheduler.settings import Paths, Settings
from scheduler.testing.in_memory.run import MemoryRun
from workers.spark.runtimes import ON_SPARK
from workers.task.execute import RUNTIMES

ONE = Case('task(task_id="one", retries=1)(lambda: 1)()', {})


def test_each_runtime_has_its_traits_and_its_code() -> None:
    assert TRAITS.keys() == RUNTIMES.keys() | ON_SPARK.keys()


def test_a_try_of_a_runtime_of_a_later_release_fails_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    settings = Settings(paths=Paths(home=tmp_path / "home", dags_folder=tmp_path / "dags"))
    dag, plan = parsed(settings, "d", ONE)
    later = replace(plan, tasks=tuple(replace(task, runtime="later") for task in plan.tasks))

    (row,) = MemoryRun(settings, dag, later, dag_run("d")).rows()

    assert (row["state"], row["reason"]) == (
        "failed",
        "PacelineError: This worker has no runtime 'later', which task one needs: upgrade it to the release of the schedulers.",
    )
