"""A real Prometheus scrapes every role, and StatsD receives every series of Airflow's Helm chart. `make test-metrics` runs it."""

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import airflow_chart
from support.waiting import eventually

from scheduler.embedded import stack as stacks
from scheduler.store.accounts import accounts, logins
from scheduler.store.db import database
from scheduler.store.db.database import transact

pytestmark = [pytest.mark.stack, pytest.mark.on_demand]

TASKS = 20
DAGS = f"""
from paceline import DAG, task
from paceline.operators import EmptyOperator
from datetime import UTC, datetime, timedelta

@task
def good():
    pass

@task(retries=1, retry_delay=timedelta(milliseconds=10))
def flaky(ti=None):
    if ti.try_number == 1:
        raise ValueError("no")

@task
def bad():
    raise ValueError("no")

with DAG("plain", schedule=None):
    for number in range({TASKS}):
        good.override(task_id=f"t{{number}}")()
    flaky()

with DAG("broken", schedule=None):
    bad()

with DAG("often", schedule=timedelta(seconds=2), start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
    good()
"""


@pytest.fixture
def ports() -> dict[str, int]:
    return {name: stacks.free_port("127.0.0.1", 0) for name in ("scheduler", "worker", "waiter", "web", "flower", "prometheus")}


class Statsd:
    """A StatsD server on a Unix socket that records each series with its last value."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[str, str] = {}
        self.counts: dict[str, float] = {}
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._server.bind(str(path))
        self._server.settimeout(0.2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                for line in self._server.recv(1 << 16).decode().split("\n"):
                    name, _, value = line.rpartition(":")
                    self.lines[name] = value
                    if value.endswith("|c"):
                        self.counts[name] = self.counts.get(name, 0) + float(value.partition("|")[0])

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._server.close()


@pytest.fixture
def statsd(short_folder: Path) -> Iterator[Statsd]:
    statsd = Statsd(short_folder / "statsd")
    yield statsd
    statsd.close()


def query(port: int, expression: str) -> list[dict[str, Any]]:
    address = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(address, timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def number(port: int, expression: str) -> float | None:
    with contextlib.suppress(OSError):
        found = query(port, expression)
        return float(found[0]["value"][1]) if found else None
    return None


def test_prometheus_scrapes_every_role_and_statsd_gets_every_series_of_the_chart(
    stack_factory: Any, statsd: Statsd, short_folder: Path, ports: dict[str, int]
) -> None:
    program = shutil.which("prometheus")
    assert program is not None, "Prometheus is not installed: apt-get install prometheus"
    env = {
        "PACELINE_METRICS_PROMETHEUS": "true",
        "PACELINE_METRICS_STATSD": f"unix://{short_folder / 'statsd'}",
        "PACELINE_METRICS_INTERVAL": "1",
        "PACELINE_WEB_PORT": str(ports["web"]),
        "PACELINE_FLOWER_PORT": str(ports["flower"]),
        **{f"PACELINE_{role.upper()}_HEALTH_PORT": str(ports[role]) for role in ("scheduler", "worker", "waiter")},
    }
    stack = stack_factory(
        {"dags.py": DAGS, "wrong.py": "from paceline import DAG\nimport nothing_like_this"}, schedulers=1, waiters=1, env=env
    )
    engine = database.create(stack.settings)
    with contextlib.ExitStack() as ending:
        ending.callback(engine.dispose)
        for role in ("web", "flower"):
            process = subprocess.Popen([*stacks.PACELINE, role], env=stack.env)
            ending.callback(process.wait, 60)
            ending.callback(process.terminate)
        account = transact(engine, accounts.create, "prometheus", "correct horse battery", role="viewer")
        token, _ = transact(engine, logins.issue, account.id, "token", lasts_s=3600.0, name="prometheus")
        _start_prometheus(program, short_folder, ports, token, ending)
        port = ports["prometheus"]
        eventually(lambda: number(port, "count(up == 1)") == 5, timeout=90, message=stack.logs)
        eventually(lambda: number(port, "max(airflow_dagbag_size)") == 3, timeout=60, message=stack.logs)

        assert stack.cli("dags", "trigger", "plain", "--wait").returncode == 0
        assert stack.cli("dags", "trigger", "broken", "--wait").returncode == 1
        finished = 'sum(airflow_ti_finish_total{dag_id="%s", state="%s"})'
        eventually(lambda: number(port, finished % ("plain", "success")) == TASKS + 1, timeout=60, message=stack.logs)
        assert number(port, finished % ("plain", "up_for_retry")) == 1
        eventually(lambda: number(port, finished % ("broken", "failed")) == 1, timeout=30, message=stack.logs)
        eventually(lambda: number(port, "sum(airflow_dagrun_schedule_delay_seconds_count)"), timeout=60, message=stack.logs)
        eventually(lambda: airflow_chart.empty(statsd.lines) == [], timeout=60, message=lambda: str(sorted(statsd.lines)))

        eventually(lambda: number(port, "max(airflow_dag_processing_import_errors)") == 1, timeout=60, message=stack.logs)
        assert number(port, "max(celery_worker_up)") == 1
        # Flower turns the events of workers on when it starts, so it may miss the first runs.
        seen = 'sum(flower_events_total{task="often.good", type="task-succeeded"})'
        eventually(lambda: number(port, seen), timeout=60, message=stack.logs)
        assert number(port, 'min(paceline_health{part!="broker"})') == 1
        assert number(port, "sum(airflow_triggerer_heartbeat_total)")
        assert statsd.counts["airflow.ti.finish.plain.flaky.up_for_retry"] == 1
        assert statsd.counts["airflow.ti.start.broken.bad"] == 1
        assert statsd.counts["airflow.operator_failures_PythonOperator"] >= 2
        assert not any(line.count("|") != 1 for line in statsd.lines.values())


def _start_prometheus(program: str, folder: Path, ports: dict[str, int], token: str, ending: contextlib.ExitStack) -> None:
    (folder / "token").write_text(token)
    roles = [f"127.0.0.1:{ports[role]}" for role in ("scheduler", "worker", "waiter", "flower")]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": [str(Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "paceline", "static_configs": [{"targets": roles}]},
            {
                "job_name": "paceline-web",
                "authorization": {"credentials_file": str(folder / "token")},
                "static_configs": [{"targets": [f"127.0.0.1:{ports['web']}"]}],
            },
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    process = subprocess.Popen(
        [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb", "--log.level=error",
         f"--web.listen-address=127.0.0.1:{ports['prometheus']}"],
    )  # fmt: skip
    ending.callback(process.wait, 30)
    ending.callback(process.terminate)
