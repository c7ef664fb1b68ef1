"""The DAGs of Airflow's example files end as in Airflow: every task instance, of a run in memory here and of `dag.test()` there."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.airflow_cases import by_task

from differential import examples
from scheduler.dagfiles.migrate.folder import migrate
from scheduler.settings import Settings

HERE = Path(__file__).parent
#: A run that takes longer has no answer, in neither system. Those that wait for another DAG or a person do; the longest of the
#: others create several virtual environments.
LIMIT_S = 300
WANTED = 70
States = Mapping[str, Any]


@pytest.fixture(scope="module")
def answers(
    example_folders: list[Path],
    provider_packages: None,
    airflow_python: Path,
    airflow_home: Callable[[], dict[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, States], dict[str, States]]:
    """The runs by DAG, here and in Airflow. Both systems run at the same time."""
    copies = tmp_path_factory.mktemp("migrated")
    settings = Settings.load({"PACELINE_HOME": str(tmp_path_factory.mktemp("home"))})
    folders = [_migrated(folder, copies / str(at), settings) for at, folder in enumerate(example_folders)]
    together = tmp_path_factory.mktemp("dags")
    for at, folder in enumerate(example_folders):
        (together / str(at)).symlink_to(folder)

    fixed = str(HERE / "fixed_random")
    environment = {**airflow_home(), "AIRFLOW__CORE__DAGS_FOLDER": str(together), "PYTHONPATH": fixed}
    ours_environment = {
        **os.environ, "PACELINE_HOME": str(settings.home), "PACELINE_CORE_AIRFLOW_IMPORTS": "true",
        "PYTHONPATH": os.pathsep.join((fixed, os.environ["PYTHONPATH"])),
    }  # fmt: skip
    ours: dict[str, States] = {}
    with _started([airflow_python, HERE / "run_in_airflow.py", together, LIMIT_S], environment) as theirs:
        for folder in folders:
            with _started([sys.executable, HERE / "run_here.py", folder, LIMIT_S], ours_environment) as one:
                ours |= one()["runs"]
        return ours, theirs()["runs"]


def test_the_runs_of_examples_end_as_in_airflow(
    answers: tuple[dict[str, States], dict[str, States]], figures: dict[str, Any]
) -> None:
    ours, theirs = answers
    both = sorted((ours.keys() & theirs.keys()) - examples.SLOW)
    different = {dag_id: (ours[dag_id], theirs[dag_id]) for dag_id in both if _shape(ours[dag_id]) != _shape(theirs[dag_id])}
    ran = [dag_id for dag_id in both if ours[dag_id] is not None and theirs[dag_id] is not None]
    unended = {"not ended here": ours, "not ended in Airflow": theirs}
    figures["ends of the examples"] = {
        "DAGs": len(both), "ended in both": len(ran), "equal": len(both) - len(different),
        "different": {dag_id: examples.OTHER_RUNS.get(dag_id, "new") for dag_id in different},
        **{words: sorted(dag_id for dag_id in both if runs[dag_id] is None) for words, runs in unended.items()},
    }  # fmt: skip

    assert len(ran) >= WANTED
    assert different.keys() == examples.OTHER_RUNS.keys(), json.dumps(different, indent=1)


def _shape(run: States | None) -> Any:
    return None if run is None else (run["state"], by_task(run["tasks"]))


def _migrated(folder: Path, copy: Path, settings: Settings) -> Path:
    """A copy of a folder of examples, after `paceline migrate-airflow --write`."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))
    for report in migrate(folder, settings, compare=False):
        if report.is_changed and not report.path.endswith("__init__.py"):
            (copy / report.path).write_bytes(report.rewritten.content)
    return copy


@contextmanager
def _started(command: list[Any], environment: Mapping[str, str]) -> Iterator[Callable[[], Any]]:
    """A process that runs in the block; the function waits for its end, and returns the JSON of its last line."""
    # Files, not pipes: no process reads while the other system runs, and Airflow's log fills a pipe.
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [str(word) for word in command], env=environment, text=True, stdout=output, stderr=log, start_new_session=True
        ) as process,
    ):

        def answer() -> Any:
            ended = process.wait()
            output.seek(0)
            log.seek(0)
            assert ended == 0, log.read()[-5000:]
            return json.loads(output.read().splitlines()[-1])

        try:
            yield answer
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
