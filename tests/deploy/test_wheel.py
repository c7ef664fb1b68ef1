"""The wheel in an empty folder: its content, and that it works without a checkout and beside modules of the same names."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support import wheels
from support.waiting import eventually

# One process of xdist runs all, so that the wheel is built and installed once.
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
#: Modules of a user that have the names of ours.
HOSTILE = ("paceline.py", "scheduler.py", "workers/__init__.py", "config/__init__.py", "dags/scheduler.py", "dags/workers.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment into which pip installs the wheel with the extra `standalone`, as in docs/how-to/install.md."""
    folder = tmp_path_factory.mktemp("environment")
    wheels.install_from_index(wheel, folder, extras="standalone", packages=["pytest"])
    return folder


def test_the_wheel_holds_the_pages_the_examples_and_the_project_but_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {"scheduler/examples/flights.py", "scheduler/examples/hello.py", "scheduler/cli/project/compose.yml.in",
            "scheduler/api/static/index.html", "scheduler/py.typed", "paceline/py.typed", "scheduler/store/moves/claim.sql",
            "scheduler/store/moves/report.sql", "scheduler/store/moves/joins.sql",
            "scheduler/store/moves/suspend.sql"} <= set(names)  # fmt: skip
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"paceline", "scheduler", "workers"}
    assert len(names) == len(set(names))
    assert not [name for name in names if name.endswith(".pyc") or "/tests/" in name]


def test_the_source_distribution_holds_the_files_that_the_deployment_pages_use(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(wheel.parent / "source")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (found,) = tmp_path.glob("paceline-*.tar.gz")
    with tarfile.open(found) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    # The dependencies for work on the repository itself.
    left_out = (".ci/", ".github/", ".pre-commit", ".gitattributes")
    assert {name for name in tracked if not name.startswith(left_out)} <= names
    assert "scheduler/api/static/index.html" in names
    assert not [name for name in names if "node_modules" in name or name.endswith(".pyc")]


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PACELINE_HOME": str(folder / "home"),
                   "PACELINE_WEB_PORT": "0", "PACELINE_FLOWER_PORT": "0"}  # fmt: skip
    return subprocess.run([str(installed / "bin" / "paceline"), *arguments], cwd=folder, env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip


def test_an_empty_folder_gets_a_project_whose_dag_runs(installed: Path, tmp_path: Path) -> None:
    created = run(installed, tmp_path, "init", "sales")
    assert created.returncode == 0, created.stderr

    done = run(installed, tmp_path / "sales", "dags", "test", "hello", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "success"


def test_a_new_project_passes_its_tests_and_standalone_runs_its_dag(installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "init", "sales")
    project = tmp_path / "sales"
    environment = {
        "PATH": f"{installed / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "PACELINE_HOME": str(tmp_path / "home"),
        "PACELINE_WEB_PORT": "0", "PACELINE_FLOWER_PORT": "0",
    }  # fmt: skip
    tests = subprocess.run([installed / "bin" / "python", "-m", "pytest", "-q"], cwd=project, env=environment, capture_output=True,
                           text=True, check=False)  # fmt: skip
    assert tests.returncode == 0, tests.stdout

    def runs() -> list[dict[str, str]]:
        done = subprocess.run([installed / "bin" / "paceline", "runs", "list", "--dag", "hello", "--json"], cwd=project,
                              env=environment, capture_output=True, text=True, check=False)  # fmt: skip
        return json.loads(done.stdout) if done.returncode == 0 else []

    log = tmp_path / "standalone.log"
    with log.open("w") as output:
        standalone = subprocess.Popen([installed / "bin" / "paceline", "standalone"], cwd=project, env=environment, stdout=output,
                                      stderr=subprocess.STDOUT)  # fmt: skip
    try:
        eventually(
            lambda: [one["state"] for one in runs()] == ["success"], timeout=120, interval=1, message=lambda: log.read_text()
        )
    finally:
        standalone.terminate()
        ended = standalone.wait(60)
    assert ended == 0


def test_modules_of_a_user_with_our_names_are_not_imported(installed: Path, tmp_path: Path) -> None:
    run(installed, tmp_path, "init", "sales")
    for name in HOSTILE:
        path = tmp_path / "sales" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit('the module of the user was imported instead')\n")

    done = run(installed, tmp_path / "sales", "dags", "test", "hello", "--json")

    assert done.returncode == 0, done.stderr


def test_the_distribution_scheduler_is_reported(installed: Path, tmp_path: Path) -> None:
    (packages,) = installed.glob("lib/python*/site-packages")
    other = packages / "scheduler-0.8.8.dist-info"
    other.mkdir()
    try:
        done = run(installed, tmp_path, "version")
    finally:
        other.rmdir()

    assert done.returncode == 1
    assert "pip uninstall scheduler" in done.stderr


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment into which pip installs the wheel without extras."""
    folder = tmp_path_factory.mktemp("bare")
    wheels.install_from_index(wheel, folder, extras="", packages=[])
    return folder


def test_without_extras_no_package_of_another_role_is_installed(bare: Path) -> None:
    packages = {one.name.partition("-")[0].lower() for one in bare.glob("lib/python*/site-packages/*.dist-info")}

    assert "celery" in packages
    assert packages.isdisjoint({"pyspark", "pandas", "numpy", "pyarrow", "fastapi", "uvicorn", "flower", "tornado", "libcst"})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["web"], r"This command needs the package \w+: pip install 'paceline\[web\]'\."),
        (["flower"], r"This command needs the package \w+: pip install 'paceline\[flower\]'\."),
        (["migrate-airflow", "."], r"This command needs the package libcst: pip install 'paceline\[airflow\]'\."),
        (["standalone"], r"The embedded servers are not installed: run `pip install 'paceline\[standalone\]'`"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_role_without_its_extra_says_which_one_it_needs(bare: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = run(bare, tmp_path, *arguments)

    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) <= 2
    assert re.search(sentence, done.stderr), done.stderr


OF_SPARK_AND_PYTHON = """
from paceline import DAG, task

with DAG("plain"):
    @task
    def one(): return 1
    @task
    def two(number): return number + 1
    two(one())

with DAG("heavy"):
    @task.pyspark
    def rows(spark): return spark.range(3).count()
    rows()
"""


def test_without_extras_a_scheduler_and_a_worker_run_a_python_dag(
    bare: Path, database_url: str, broker_url: str, tmp_path: Path
) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "d.py").write_text(OF_SPARK_AND_PYTHON)
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "PACELINE_HOME": str(tmp_path / "home"),
        "PACELINE_DAGS_FOLDER": str(tmp_path / "dags"), "PACELINE_DATABASE_URL": database_url, "PACELINE_BROKER_URL": broker_url,
    }  # fmt: skip
    log = tmp_path / "processes.log"
    with contextlib.ExitStack() as processes, log.open("w") as output:
        for arguments in (["scheduler"], ["worker", "-q", "default,spark", "-c", "1"]):
            process = subprocess.Popen([bare / "bin" / "paceline", *arguments], cwd=tmp_path, env=environment, stderr=output)
            processes.callback(process.wait, 60)
            processes.callback(process.terminate)

        def trigger(dag_id: str) -> tuple[int, dict[str, Any]]:
            done = subprocess.run([bare / "bin" / "paceline", "dags", "trigger", dag_id, "--wait", "--timeout", "90", "--json"],
                                  cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)  # fmt: skip
            return done.returncode, json.loads(done.stdout or "{}")

        eventually(lambda: trigger("plain")[1].get("state") == "success", timeout=120, message=lambda: log.read_text())
        code, failed = trigger("heavy")

    assert code == 1
    assert "A Spark task needs the package pyspark: pip install 'paceline[spark]'." in failed["tasks"][0]["reason"], log.read_text()
