"""The DAGs of Airflow's example files end as in Airflow: every task instance, of a run in memory here and of `dag.test()` there."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.airflow_cases import by_task

from differential import examples
from scheduler.migrate.folder import migrate
from scheduler.settings import Settings

HERE = Path(__file__).parent
#: A run that takes longer has no answer, in neither system. One that waits for another DAG waits longer.
LIMIT_S = 60
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
    theirs = _start([airflow_python, HERE / "run_in_airflow.py", together, LIMIT_S], environment)
    ours_environment = {
        **os.environ, "PACELINE_HOME": str(settings.home), "PACELINE_CORE_AIRFLOW_IMPORTS": "true",
        "PYTHONPATH": os.pathsep.join((fixed, os.environ["PYTHONPATH"])),
    }  # fmt: skip
    ours: dict[str, States] = {}
    for folder in folders:
        ours |= _answer(_start([sys.executable, HERE / "run_here.py", folder, LIMIT_S], ours_environment))["runs"]
    return ours, _answer(theirs)["runs"]


def test_the_runs_of_examples_end_as_in_airflow(answers: tuple[dict[str, States], dict[str, States]]) -> None:
    ours, theirs = answers
    both = sorted(ours.keys() & theirs.keys())
    different = {dag_id: (ours[dag_id], theirs[dag_id]) for dag_id in both if _shape(ours[dag_id]) != _shape(theirs[dag_id])}
    ran = [dag_id for dag_id in both if ours[dag_id] is not None and theirs[dag_id] is not None]
    print(json.dumps({"DAGs": len(both), "ran in both": len(ran), "equal": len(both) - len(different), "different": different}))

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


def _start(command: list[Any], environment: Mapping[str, str]) -> "tuple[subprocess.Popen[str], Any]":
    # A file, not a pipe: nobody reads while the other system runs, and Airflow's log fills a pipe.
    output = tempfile.TemporaryFile("w+")  # noqa: SIM115
    return subprocess.Popen([str(word) for word in command], env=environment, text=True, stdout=output), output


def _answer(started: "tuple[subprocess.Popen[str], Any]") -> Any:
    process, output = started
    with output:
        assert process.wait() == 0
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])
