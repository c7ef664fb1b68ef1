"""Fixtures every test may use: real servers, a fresh database and broker for each test, stacks of real processes."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from support import folders

if TYPE_CHECKING:
    from support.ledger import Ledger
    from support.servers import PostgresServer, RedisServer
    from support.stacks import StackFactory

    from scheduler.settings import Settings

UNIT = Path(__file__).parent / "unit"
FAILED = pytest.StashKey[bool]()
#: Before 4.2, PySpark leaves the sockets through which it collects to the garbage collector.
OPEN_SOCKETS = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember a failure, so that a stack shows its logs while it is torn down."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_configure() -> None:
    """Set what the processes inherit that the tests start."""
    # A background job of a script ignores Ctrl-C.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Keep the test modules with rewritten assertions, also where PYTHONDONTWRITEBYTECODE is set: that is half of the collection.
    sys.dont_write_bytecode = False
    # The same examples each time, so that a change is judged by what it changes. `make fuzz` and `make test-faults` try new ones.
    if os.environ.get("FAULT_TESTS") != "full":
        hypothesis.settings.load_profile("ci")
    # JVMs live for seconds here, too short a time for the optimizing compiler, which takes half of their CPU.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.hookimpl(trylast=True)  # the chosen tests alone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that start JVMs over the first half: they take longest, and workers of pytest-xdist get files in this order.

    At the end, one of them would run alone; next to each other, they would wait for the processors.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
        if item.get_closest_marker("spark") and version("pyspark").startswith(("3.", "4.0", "4.1")):
            item.add_marker(OPEN_SOCKETS)
    with_jvms = [path for path, own in files.items() if any(one.get_closest_marker("spark") for one in own)]
    order = [path for path in files if path not in with_jvms]
    if with_jvms:
        distance = sum(not path.is_relative_to(UNIT) for path in order) // (2 * len(with_jvms))
        for number, path in enumerate(with_jvms):
            order.insert(number * (distance + 1), path)
    items[:] = [item for path in order for item in files[path]]


@pytest.fixture(autouse=True)
def interruptible() -> None:
    """Undo the handler of SIGINT that PySpark sets where a test, or a fixture of its module, starts a session in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder with a name short enough for Unix sockets."""
    with folders.short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def session_folder() -> Iterator[Path]:
    """A temporary folder of the whole session, with a short name."""
    with folders.short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_server(session_folder: Path) -> Iterator["PostgresServer"]:
    """The session's PostgreSQL."""
    from support.servers import running_postgres

    with running_postgres(session_folder / "postgres") as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(session_folder: Path) -> Iterator["RedisServer"]:
    """The session's Redis."""
    from support.servers import running_redis

    with running_redis(session_folder / "redis") as server:
        yield server


@pytest.fixture
def database_url(postgres_server: "PostgresServer") -> Iterator[str]:
    """The URL of a fresh, migrated database of this test alone."""
    with postgres_server.new_database() as url:
        yield url


@pytest.fixture
def empty_database_url(postgres_server: "PostgresServer") -> Iterator[str]:
    """The URL of a database without any table, of this test alone."""
    with postgres_server.new_database(migrated=False) as url:
        yield url


@pytest.fixture
def ledger(postgres_server: "PostgresServer") -> Iterator["Ledger"]:
    """A ledger in a database of its own on the session's server, which no test stops."""
    from support.ledger import Ledger

    with postgres_server.new_database(migrated=False) as url:
        yield Ledger(url).create()


@pytest.fixture
def broker_url(redis_server: "RedisServer") -> str:
    """The URL of an empty Redis database."""
    return redis_server.new_database()


@pytest.fixture
def settings(database_url: str, broker_url: str, tmp_path: Path) -> "Settings":
    """Settings with this test's database and broker, and a home and DAGs folder of its own."""
    from support.servers import settings_in

    return settings_in(tmp_path, database_url, broker_url)


@pytest.fixture
def stack_factory(settings: "Settings", request: pytest.FixtureRequest) -> Iterator["StackFactory"]:
    """Starts real schedulers and workers against this test's database and broker; ends them with the test.

    `stack_factory(dags={"name.py": source}, schedulers=2, workers=[("default", 4)], env={...})`, see support/stacks.py.
    """
    from support.stacks import StackFactory

    with StackFactory(settings, failed=lambda: request.node.stash.get(FAILED, False)) as factory:
        yield factory
