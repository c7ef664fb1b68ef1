"""The pytest plugin: fixtures that run DAGs and tasks without servers. pytest loads it by its entry point.

Modules of Paceline are imported by the fixtures, so that the plugin costs nothing in tests that do not use them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from paceline.authoring.dag import DAG
    from paceline.testing.results import RunResult, TaskResult
    from scheduler.settings import Settings
    from scheduler.testing.folder import DagBag


def pytest_addoption(parser: pytest.Parser) -> None:
    """The folder of DAG files, and the check of all files in it."""
    parser.addini("dag_folder", "The folder of DAG files, relative to the root of the tests (dags).", default="")
    group = parser.getgroup("paceline")
    group.addoption("--dag-folder", default="", help="The folder of DAG files (dags).")
    group.addoption(
        "--check-dags", action="store_true", help="Add a test for each file of the DAGs folder: it loads without an error."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Answer imports of `airflow` before the first one, if core.airflow_imports is set in the environment."""
    if not os.environ.get("PACELINE_CORE_AIRFLOW_IMPORTS"):
        return
    from paceline.exceptions import PacelineError
    from scheduler.dagfiles import load

    try:
        core = _settings(Path.cwd(), Path.cwd()).core
        load.configure(core.default_timezone, airflow_imports=core.airflow_imports)
    except PacelineError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --check-dags: one more test for each DAG file."""
    if not config.getoption("check_dags"):
        return
    from scheduler.testing.folder import files_of

    folder = _folder(config)
    for file in files_of(_settings(folder, folder / ".paceline")):
        items.append(DagFile.from_parent(session, name=f"{folder.name}/{file}", folder=folder, file=folder / file))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the Spark session, which all tests of this process shared."""
    import sys

    if "scheduler.testing.runs" in sys.modules:
        sys.modules["scheduler.testing.runs"].end_spark()


class DagFile(pytest.Item):
    """The test that a DAG file loads, and that its DAGs are valid."""

    def __init__(self, *, folder: Path, file: Path, **others: Any) -> None:
        super().__init__(**others)
        self.folder, self.file = folder, file

    def runtest(self) -> None:
        from scheduler.testing.folder import load_file

        load_file(_settings(self.folder, self.folder / ".paceline"), str(self.file.relative_to(self.folder)))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.file, None, f"DAG file {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        from scheduler.dagfiles import problem

        return problem.of_exception(excinfo.value, self.file, memory_limit_mb=0).with_line


@pytest.fixture(scope="session")
def paceline_settings(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The settings of all runs: those of the environment, with a temporary home and the folder of DAG files."""
    return _settings(_folder(pytestconfig), tmp_path_factory.mktemp("paceline"))


@pytest.fixture(scope="session")
def dag_bag(paceline_settings: Settings) -> DagBag:
    """All DAGs of the DAGs folder: `dag_bag.dags`, `dag_bag.import_errors`, `dag_bag.get_dag("etl")`."""
    from scheduler.testing.folder import load_folder

    return load_folder(paceline_settings)


@pytest.fixture
def dag_maker(run_dag: Any) -> DagMaker:
    """Makes a DAG: `with dag_maker("etl", schedule=None) as dag: ...`, then `dag_maker.run()`."""
    return DagMaker(run_dag)


@pytest.fixture
def run_dag(paceline_settings: Settings, request: pytest.FixtureRequest) -> Any:
    """Runs a DAG to its end: `run_dag(dag, logical_date=..., conf={...}, retries=False)` returns a RunResult.

    `dag` is a DAG, the ID of one in the DAGs folder, or a @dag function without arguments.
    """

    def run(dag: DAG | str | Any, **options: Any) -> RunResult:
        from scheduler.testing import runs

        return runs.run_dag(_dag(request, dag), paceline_settings, **options)

    return run


@pytest.fixture
def run_task(paceline_settings: Settings, request: pytest.FixtureRequest) -> Any:
    """Runs one task as if all tasks upstream of it had succeeded: `run_task(task, xcoms={"extract": [1, 2]})`.

    It returns a TaskResult. The task is an operator, the result of a @task function, or a DAG (or its ID) and a task ID:
    `run_task("etl", "load")`. Further arguments are logical_date, conf and retries.
    """

    def run(*task: Any, **options: Any) -> TaskResult:
        from scheduler.testing import runs

        return runs.run_task(_task(request, task), paceline_settings, **options)

    return run


@pytest.fixture
def render_task(paceline_settings: Settings, request: pytest.FixtureRequest) -> Any:
    """Renders the template fields of a task: `render_task(task, logical_date=...)` returns {field: value}."""

    def render(*task: Any, **options: Any) -> dict[str, Any]:
        from scheduler.testing import runs

        return runs.render_task(_task(request, task), paceline_settings, **options)

    return render


@pytest.fixture
def task_context(paceline_settings: Settings, request: pytest.FixtureRequest) -> Any:
    """Builds the context that a task gets: `task_context(task, conf={...})`, for `operator.execute(context)`."""

    def build(*task: Any, **options: Any) -> dict[str, Any]:
        from scheduler.testing import runs

        return runs.context_of(_task(request, task), paceline_settings, **options)

    return build


@pytest.fixture
def airflow_variables(monkeypatch: pytest.MonkeyPatch, _served_in_tests: None) -> InEnvironment:
    """The variables that tasks and the test read: `airflow_variables({"depth": "3"})`. Other values than text become JSON."""
    return InEnvironment(monkeypatch, "PACELINE_VAR_")


@pytest.fixture
def airflow_connections(monkeypatch: pytest.MonkeyPatch, _served_in_tests: None) -> InEnvironment:
    """The connections that tasks and the test read: `airflow_connections({"db": {"conn_type": "postgres"}})`, or a URI.

    The conn_type is `generic` by default.
    """
    return InEnvironment(monkeypatch, "PACELINE_CONN_", {"conn_type": "generic"})


@pytest.fixture
def _served_in_tests() -> Iterator[None]:
    """Let `Variable.get()` and `Connection.get()` work in the body of a test, as in a task."""
    from paceline.authoring import running
    from scheduler.testing.in_memory.backends import MemoryBackend

    with running.served_outside(MemoryBackend(os.environ, variables={}, check=lambda: None)):
        yield


class DagMaker:
    """Makes DAGs. `dag` is the last one."""

    dag: DAG

    def __init__(self, run_dag: Any) -> None:
        self._run_dag = run_dag

    @contextmanager
    def __call__(self, dag_id: str = "test_dag", **arguments: Any) -> Iterator[DAG]:
        """A new DAG as a `with` block. `schedule` is None by default."""
        from paceline.authoring.dag import DAG

        self.dag = DAG(dag_id, **{"schedule": None, **arguments})
        with self.dag:
            yield self.dag

    def run(self, **options: Any) -> RunResult:
        """Run the last DAG. The options are those of `run_dag`."""
        result: RunResult = self._run_dag(self.dag, **options)
        return result


class InEnvironment(MutableMapping[str, Any]):
    """Values that workers read from the environment, until the end of the test: a function that adds some, and a dict."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: str, defaults: Mapping[str, Any] | None = None) -> None:
        self._monkeypatch, self._prefix, self._defaults = monkeypatch, prefix, defaults

    def __call__(self, values: Mapping[str, Any]) -> None:
        """Add values."""
        self.update(values)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._defaults is not None and isinstance(value, Mapping):
            value = {**self._defaults, **value}
        self._monkeypatch.setenv(self._prefix + name.upper(), value if isinstance(value, str) else json.dumps(value))

    def __getitem__(self, name: str) -> str:
        return os.environ[self._prefix + name.upper()]

    def __delitem__(self, name: str) -> None:
        self._monkeypatch.delenv(self._prefix + name.upper())

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix).lower() for name in list(os.environ) if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _dag(request: pytest.FixtureRequest, dag: Any) -> Any:
    """A DAG by its ID in the DAGs folder, or itself, or the one that a @dag function creates."""
    from paceline.authoring.dag import DAG

    if isinstance(dag, str):
        return request.getfixturevalue("dag_bag").get_dag(dag)
    return dag if isinstance(dag, DAG) or not callable(dag) else dag()


def _task(request: pytest.FixtureRequest, task: tuple[Any, ...]) -> Any:
    if len(task) == 1:
        return task[0]
    dag, task_id = task
    return _dag(request, dag).get_task(task_id)


def _folder(config: pytest.Config) -> Path:
    """The folder that is named, else `dags` in the root of the tests or where pytest was started."""
    started = config.invocation_params.dir
    if named := config.getoption("dag_folder"):
        return Path(started / named)
    if named := config.getini("dag_folder") or os.environ.get("PACELINE_DAGS_FOLDER"):
        return Path(config.rootpath / named)
    return next((folder for folder in (config.rootpath / "dags", started / "dags") if folder.is_dir()), started / "dags")


def _settings(folder: Path, home: Path) -> Settings:
    from scheduler.settings import Settings

    given = {name: value for name, value in os.environ.items() if name.startswith(("PACELINE_CORE_", "PACELINE_SPARK_"))}
    return Settings.load({**given, "PACELINE_HOME": str(home), "PACELINE_DAGS_FOLDER": str(folder)})
