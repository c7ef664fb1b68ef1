"""Real Celery worker processes for one test, or one for all tests of a module; the test calls the scheduler's turns."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from support.fork_server import Forked, ForkServer, running_fork_server
from support.scenario import Scenario
from support.servers import PostgresServer, RedisServer, settings_in
from support.waiting import eventually

from scheduler.dagfiles.load import load
from scheduler.serialized.authored import from_dag
from scheduler.settings import Settings, log_paths
from scheduler.store.actions.delete import delete_dag
from scheduler.store.db.database import transact

RUN = """
import sys
from paceline.exceptions import PacelineError
from scheduler.settings import Settings, log_paths
from workers.celery_worker import app
try:
    code = app.run(Settings.load(), queues=sys.argv[1].split(","), concurrency=int(sys.argv[2]), name=sys.argv[3])
except PacelineError as error:
    print(error, file=sys.stderr)
    code = error.exit_code
sys.exit(code)
"""
#: Modules that a worker imports while it starts.
MODULES = (
    "workers.celery_worker.app", "celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log",
    "celery.backends.base",
    "celery.fixups.django", "celery.worker.autoscale", "celery.worker.components", "celery.worker.consumer", "celery.worker.loops",
    "kombu.pidbox", "paceline.decorators.task_decorator", "sqlalchemy.dialects.postgresql.psycopg2",
)  # fmt: skip
#: Records the task instances that are queued for a message.
SENT = """
create table sent (task_instance_id bigint);
create function note_sent() returns trigger language plpgsql security definer as
    'begin insert into sent values (new.id); return null; end';
create trigger note_sent after update of state on task_instance for each row when (new.state = 'queued')
    execute function note_sent();
"""
END_S = 80.0
QUICK = {"PACELINE_WORKER_HEARTBEAT_SEC": "0.3", "PACELINE_WORKER_GRACE_SEC": "20", "PYTHONUNBUFFERED": "1"}


@dataclass
class Worker:
    """A worker process and its output."""

    process: "subprocess.Popen[bytes] | Forked"
    output_path: Path
    #: Where the output of this test begins, in bytes.
    output_from: int = 0

    @property
    def output(self) -> str:
        return self.output_path.read_bytes()[self.output_from :].decode()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = END_S) -> int:
        eventually(lambda: self.process.poll() is not None, timeout=timeout_s, message=lambda: self.output)
        return self.process.wait()


#: The tasks with a try that has begun: the current one, or one that has ended. A start has no event of its own.
BEGUN = """
select i.task_id from task_instance i where i.dag_run_id = %s and (
       i.started_at is not null or exists (select from event e where e.task_instance_id = i.id and e.started_at is not null))
"""


@dataclass
class Bench:
    """The engine of a test with real workers: DAG files, runs, states, logs."""

    settings: Settings
    scenario: Scenario
    folder: Path
    fork_server: ForkServer | None = None
    workers: list[Worker] = field(default_factory=list)

    def worker(
        self, *, queues: str = "default", concurrency: int = 1, ready: bool = True, folder: Path | None = None, **env: str
    ) -> Worker:
        """Start a worker, in the bench's folder or another one; `ready` waits until it takes work."""
        number = len(self.workers)
        output_path = self.folder / f"worker-{number}.txt"
        environment = {
            **os.environ,
            **QUICK,
            "PACELINE_HOME": str(self.settings.home),
            "PACELINE_DAGS_FOLDER": str(self.settings.dags_folder),
            "PACELINE_DATABASE_URL": self.settings.database_url,
            "PACELINE_BROKER_URL": self.settings.broker_url,
            **env,
        }
        worker = Worker(
            self._started([queues, str(concurrency), f"w{number}"], environment, folder or self.folder, output_path), output_path
        )
        self.workers.append(worker)
        if ready:
            eventually(lambda: "takes" in worker.output, timeout=60, message=lambda: worker.output)
        return worker

    def empty(self, folder: Path) -> None:
        """Remove what a test left behind, except its workers, and use this folder."""
        for (dag_id,) in self.scenario.rows("select distinct dag_id from dag_version"):
            transact(self.scenario.engine, delete_dag, dag_id)
        for table in ("variable", "connection"):
            self.scenario.sql(f"delete from {table}")
        for used in (self.settings.dags_folder, self.settings.logs_folder):
            for path in used.glob("*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for worker in self.workers:
            worker.output_from = worker.output_path.stat().st_size
        self.folder = folder

    def _started(
        self, arguments: list[str], environment: dict[str, str], folder: Path, output_path: Path
    ) -> "subprocess.Popen[bytes] | Forked":
        with output_path.open("wb") as output:
            if self.fork_server is not None:
                return self.fork_server.start(RUN, arguments, env=environment, cwd=folder, output=output_path)
            return subprocess.Popen(
                [sys.executable, "-P", "-c", RUN, *arguments],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def dag(self, source: str, name: str = "example.py") -> None:
        """Write a DAG file and store its DAGs as the parser would."""
        (self.settings.dags_folder / name).write_text("from paceline import *\nfrom paceline.operators import *\n" + dedent(source))
        for dag in load(self.settings.dags_folder, name).values():
            self.scenario.add(from_dag(dag, file=name, core=self.settings.core, scheduler=self.settings.scheduler))

    def run(self, source: str, *, until: str = "run", timeout_s: float = 120.0, **tasks: str) -> int:
        """Store one DAG named `d`, trigger it, turn until it ends or the tasks named have these states; its number."""
        self.dag(source)
        run = self.scenario.trigger("d", run_id="r1")
        self.wait(run, timeout_s=timeout_s, **tasks)
        return run

    def wait(self, run: int, *, timeout_s: float = 120.0, interval_s: float | None = None, **tasks: str) -> None:
        """Turn until the run ends, or until each named task has its state.

        `running` is met by a task that has begun: one that ends at once is `running` for less time than lies between two looks.
        """

        def there() -> bool:
            self.scenario.turn()
            if tasks:
                states = self.scenario.states(run)
                begun = {name for (name,) in self.scenario.rows(BEGUN, run)}
                return all(name in begun if state == "running" else states[name] == state for name, state in tasks.items())
            return self.scenario.run_state(run) in {"success", "failed"}

        eventually(there, timeout=timeout_s, interval=interval_s, message=lambda: f"{self.scenario.states(run)}\n{self.output}")

    def log_path(self, task_id: str, number: int = 1, dag_id: str = "d", run_id: str = "r1") -> Path:
        return Path(log_paths.try_path(
            self.settings.logs_folder, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=-1, try_number=number
        ))  # fmt: skip

    def log(self, task_id: str, number: int = 1, run_id: str = "r1") -> str:
        return self.log_path(task_id, number, run_id=run_id).read_text(encoding="utf-8")

    def last_line(self, task_id: str, number: int = 1) -> str:
        return self.log(task_id, number).splitlines()[-1]

    def column(self, task_id: str, name: str) -> object:
        return self.scenario.rows(f"select {name} from task_instance where task_id = %s", task_id)[0][0]

    @property
    def output(self) -> str:
        return "\n".join(worker.output for worker in self.workers)


def wait_for(path: Path) -> str:
    """Source code of a task that waits for a file, for a minute at most."""
    return f"[time.sleep(0.05) for _ in range(1200) if not os.path.exists({str(path)!r})]"


@contextlib.contextmanager
def opened(settings: Settings, folder: Path, fork_server: ForkServer | None = None) -> Iterator[Bench]:
    """A bench whose workers are ended with the block."""
    scenario = Scenario(settings)
    bench = Bench(settings, scenario, folder, fork_server)
    yield bench
    for worker in bench.workers:
        if worker.process.poll() is None:
            worker.signal(signal.SIGQUIT)
    for worker in bench.workers:
        try:
            worker.wait(20)
        except AssertionError:
            worker.process.kill()
            worker.process.wait()
    scenario.close()


@pytest.fixture(scope="session")
def forks_workers() -> Iterator[ForkServer]:
    """Has imported the modules of a worker."""
    with running_fork_server(*MODULES) as server:
        yield server


@pytest.fixture
def bench(settings: Settings, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Workers of this bench are ended with the test. They are forked, unless the test or its file is marked `own_program`."""
    own = request.node.get_closest_marker("own_program") is not None
    with opened(settings, tmp_path, None if own else request.getfixturevalue("forks_workers")) as made:
        yield made


@pytest.fixture(scope="module")
def worker_options() -> dict[str, Any]:
    """The options of the worker of a module; a module has its own by overriding this."""
    return {}


@pytest.fixture(scope="module")
def module_bench(
    postgres_server: PostgresServer,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Bench]:
    """The bench of a module, with its own database and broker."""
    own = request.node.get_closest_marker("own_program") is not None
    folder = tmp_path_factory.mktemp("module")
    with postgres_server.new_database() as url:
        settings = settings_in(folder, url, redis_server.new_database(of_module=True))
        with opened(settings, folder, None if own else request.getfixturevalue("forks_workers")) as made:
            yield made


@pytest.fixture
def shared_bench(module_bench: Bench, worker_options: dict[str, Any], tmp_path: Path) -> Bench:
    """The bench of the module, without DAGs, and with a worker that runs since an earlier test: a start takes up to 1 s of CPU."""
    module_bench.empty(tmp_path)
    if not module_bench.workers or module_bench.workers[-1].process.poll() is not None:
        module_bench.worker(**worker_options)
    return module_bench
