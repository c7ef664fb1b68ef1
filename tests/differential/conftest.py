"""Apache Airflow from wheels, in an environment of its own, to compare Paceline with. `make test-airflow` runs these tests.

$TEST_AIRFLOW names an environment that has Airflow already. Otherwise it is that of the benchmark, and is installed once.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers import install
from differential import examples

if not os.environ.get("AIRFLOW_TESTS"):
    collect_ignore_glob = ["test_*.py"]

FIGURES = pytest.StashKey[dict[str, Any]]()
#: Seconds for one test with its fixtures, which run about 90 DAGs in Airflow or install packages.
TEST_S = 3600
#: Seconds for one program in Airflow's environment. Importing Airflow takes several.
PROGRAM_S = 600


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> dict[str, Any]:
    """The counts of the tests, by part. pytest prints them at the end."""
    return pytestconfig.stash.setdefault(FIGURES, {})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test here its limit of time."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_S))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a worker of pytest-xdist send its figures to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["figures"] = json.dumps(session.config.stash.get(FIGURES, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the figures of a worker of pytest-xdist."""
    node.config.stash.setdefault(FIGURES, {}).update(json.loads(getattr(node, "workeroutput", {}).get("figures", "{}")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the figures, one line a part."""
    if counted := config.stash.get(FIGURES, {}):
        terminalreporter.section("compared with Airflow")
        for part, figure in counted.items():
            terminalreporter.write_line(f"{part}: {json.dumps(figure)}")


@pytest.fixture(scope="session")
def airflow_python() -> Path:
    """The interpreter of the environment with Airflow."""
    named = os.environ.get("TEST_AIRFLOW")
    programs = Path(named) / "bin" if named else install.install(install.default_folder(), say=print)
    return programs / "python"


@pytest.fixture(scope="session")
def ask_airflow(airflow_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run a program in Airflow's environment: `ask_airflow(source, argument, ...)` returns the JSON of its last line."""
    home = tmp_path_factory.mktemp("airflow")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
        "PYTHONWARNINGS": "ignore",
    }

    def ask(source: str, *arguments: str) -> Any:
        done = subprocess.run(
            [str(airflow_python), "-P", "-c", source, *arguments],
            env=environment, cwd=home, capture_output=True, text=True, timeout=PROGRAM_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ask


@pytest.fixture(scope="session")
def airflow_home(airflow_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], dict[str, str]]:
    """Makes a home of Airflow with an empty database, and returns the environment for its programs."""
    migrated = tmp_path_factory.mktemp("migrated")

    def environment(home: Path) -> dict[str, str]:
        return {
            "PATH": f"{airflow_python.parent}:{os.environ['PATH']}", "HOME": str(home), "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONWARNINGS": "ignore",
        }  # fmt: skip

    command = [airflow_python, "-m", "airflow", "db", "migrate"]
    subprocess.run(command, env=environment(migrated), check=True, capture_output=True)

    def make() -> dict[str, str]:
        home = tmp_path_factory.mktemp("airflow")
        shutil.copy(migrated / "airflow.db", home)
        return environment(home)

    return make


@pytest.fixture(scope="session")
def airflow_site(ask_airflow: Callable[..., Any]) -> Path:
    """The folder with the packages of Airflow's environment."""
    source = "import importlib.util, json; print(json.dumps(importlib.util.find_spec('airflow').origin))"
    return Path(ask_airflow(source)).parents[1]


@pytest.fixture(scope="session")
def example_folders(airflow_site: Path) -> list[Path]:
    """The folders of Airflow's example DAGs: those of its core and of the providers that come with it."""
    return sorted(
        folder
        for folder in (airflow_site / "airflow").rglob("example_dags")
        if any(examples.is_example(path) for path in folder.glob("*.py"))
    )


@pytest.fixture(scope="module")
def provider_packages(airflow_site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The provider packages that come with Airflow, next to Paceline as by `pip install --no-deps`: without Airflow itself.

    Of one module, since pip would find them there when a later module installs packages of its own.
    """
    beside = tmp_path_factory.mktemp("site")
    (beside / "airflow").mkdir()
    (beside / "airflow" / "providers").symlink_to(airflow_site / "airflow" / "providers")
    # With their metadata, by which their decorators of tasks are found.
    for path in [*map(airflow_site.joinpath, examples.LIBRARIES), *airflow_site.glob("apache_airflow_providers_*.dist-info")]:
        (beside / path.name).symlink_to(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(beside), prepend=os.pathsep)
        yield
