"""A running Airflow on the servers of a Stack: four processes, its own database and Redis number, and runs created by its API."""

import contextlib
import json
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from bench.peers import profiles, servers
from bench.peers.profiles import Profile
from bench.stack import Stack, StackError, logs_in_memory
from scheduler.embedded.stack import free_port
from scheduler.embedded.supervisor import Command, Supervisor

DATABASE = "airflow"
#: Number 0 has Paceline's messages.
REDIS_NUMBER = 1
START_S = 180.0
#: Seconds in which an Airflow process must end before it is killed.
GRACE_S = 20.0
ANSWER_S = 60.0
#: Seconds between two checks whether a run has ended. The measured times are those in the database.
POLL_S = 0.25


@dataclass(slots=True)
class Airflow:
    """A running Airflow that has parsed all DAG files. `processes` are its API server, DAG processor, scheduler and worker."""

    stack: Stack
    processes: Supervisor
    connection: Connection
    url: str

    def rows(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """The rows that a statement returns from Airflow's database."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall()

    def trigger(self, dag_id: str) -> str:
        """Create a manual run, and return its run ID."""
        token = _ask(f"{self.url}/auth/token")["access_token"]
        run = _ask(f"{self.url}/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None}, {"Authorization": f"Bearer {token}"})
        return str(run["dag_run_id"])

    def wait_ended(self, dag_id: str, run_id: str, timeout_s: float) -> None:
        """Wait until this run has ended."""
        ended = "select count(*) from dag_run where dag_id = %s and run_id = %s and state in ('success', 'failed')"
        self.stack.wait(lambda: self.rows(ended, (dag_id, run_id))[0][0] == 1, timeout_s, f"Airflow's run of {dag_id}", POLL_S)

    def cpu_seconds(self) -> float:
        """CPU seconds of all its processes since their start, including ended children but not the servers."""
        return servers.cpu_seconds(self.processes)


@contextlib.contextmanager
def running(stack: Stack, profile: Profile, *, programs: Path, files: Mapping[str, str]) -> Iterator[Airflow]:
    """Run Airflow on the stack's servers with these DAG files (text by name) during the block, and then delete its data."""
    with contextlib.ExitStack() as undo:
        home = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="airflow-", ignore_cleanup_errors=True)))
        (home / "dags").mkdir()
        logs_in_memory(home, undo)
        for name, text in files.items():
            (home / "dags" / name).write_text(text, encoding="utf-8")
        url = undo.enter_context(servers.database(stack, DATABASE))
        broker = undo.enter_context(servers.redis_number(stack, REDIS_NUMBER))
        port = free_port("127.0.0.1", 0)
        environment = profiles.environment(profile, home=home, database_url=url, broker_url=broker, port=port)
        _migrate(programs, environment)
        processes = undo.enter_context(Supervisor(home / "process-logs", say=stack.messages.append))
        connection = undo.enter_context(contextlib.closing(psycopg2.connect(url)))
        connection.autocommit = True
        airflow = Airflow(stack, processes, connection, f"http://127.0.0.1:{port}")
        try:
            _start(airflow, profile, programs, environment, len(files))
            yield airflow
        except BaseException:
            stack.messages += [f"--- {name}\n{processes.log_tail(name)}" for name in processes.names()]
            raise


def _start(airflow: Airflow, profile: Profile, programs: Path, environment: Mapping[str, str], dags: int) -> None:
    def command(name: str, stage: int, *arguments: str) -> Command:
        argv = (str(programs / "airflow"), *arguments)
        return Command(name=name, argv=argv, stage=stage, environment=environment, folder=programs.parent, grace_sec=GRACE_S)

    processes = airflow.processes

    def wait(ready: Callable[[], bool], what: str) -> None:
        airflow.stack.wait(lambda: _alive(processes) and ready(), START_S, what, POLL_S)

    processes.start(command("airflow-api", 1, "api-server"))
    wait(lambda: _answers(f"{airflow.url}/api/v2/version"), "Airflow's API server")
    airflow.rows("update slot_pool set slots = %s where pool = 'default_pool' returning slots", (profile.pool_slots,))
    processes.start(command("airflow-dag-processor", 2, "dag-processor"))
    # These two would serve logs to the web pages, which nothing reads here.
    processes.start(command("airflow-scheduler", 2, "scheduler", "--skip-serve-logs"))
    processes.start(command("airflow-worker", 3, "celery", "worker", "--skip-serve-logs"))
    read = "select count(*) from dag where not is_paused and not is_stale"
    wait(lambda: airflow.rows(read)[0][0] == dags, f"Airflow to read {dags} DAG files")
    log = processes.log("airflow-worker")
    wait(lambda: " ready." in log.read_text(encoding="utf-8", errors="replace"), "Airflow's worker")


def _alive(processes: Supervisor) -> bool:
    """Raise StackError if a process has ended: with the same settings it would end again."""
    for name in processes.names():
        if not processes.alive(name):
            raise StackError(f"{name} has ended:\n{processes.log_tail(name, 40)}")
    return True


def _migrate(programs: Path, environment: Mapping[str, str]) -> None:
    command = [str(programs / "airflow"), "db", "migrate"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise StackError(f"airflow db migrate failed: {done.stderr}")


def _ask(url: str, body: object = None, headers: Mapping[str, str] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})  # noqa: S310
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310
        return json.load(answer)


def _answers(url: str) -> bool:
    try:
        _ask(url)
    except OSError:
        return False
    return True
