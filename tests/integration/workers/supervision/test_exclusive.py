"""An exclusive task has at most one execution at a time, under any network fault."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chaos.proxy import Link, Proxy
from support.scenario import Scenario
from support.servers import PostgresServer
from support.waiting import eventually

from scheduler.settings import Settings
from workers.supervision.task_stopper import LEASE_ENDED

pytestmark = pytest.mark.own_program

TIMEOUT_S = 4.0
#: The task, and a process of its own session that it starts, write down when they run, by a clock that all processes share.
TICKING = """
import subprocess, sys, time
TICK = '''
import sys, time
with open(sys.argv[1], "a") as ledger:
    while time.monotonic() < float(sys.argv[3]):
        print(sys.argv[2], time.monotonic(), file=ledger, flush=True)
        time.sleep(0.02)
'''
@dag(schedule=None)
def d():
    @task(retries=3, retry_delay=0.1, exclusive=True)
    def t(ti):
        command = [sys.executable, "-S", "-c", TICK, {ledger!r}, str(ti.try_number)]
        subprocess.Popen([*command, str(time.monotonic() + 600)], start_new_session=True)
        subprocess.run([*command, str(time.monotonic() + (600 if ti.try_number == 1 else 0.5))], check=True)
    t()
d()
"""


@dataclass
class Far:
    """A bench with a short timeout, and a worker that reaches PostgreSQL by a link that can be cut."""

    bench: Any
    proxy: Proxy
    link: Link
    worker: Any
    ledger: Path

    def ticks(self, number: int) -> list[float]:
        """When this try ran."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        found = [line.split() for line in lines]
        return [float(one[1]) for one in found if len(one) == 2 and one[0] == str(number)]

    def cut(self) -> None:
        self.proxy.do(self.link.cut)

    def cut_answers(self) -> None:
        self.proxy.do(lambda: self.link.cut(requests=False))

    def stop_the_parent(self) -> None:
        os.kill(self.worker.process.pid, signal.SIGSTOP)

    def restore(self) -> None:
        os.kill(self.worker.process.pid, signal.SIGCONT)
        self.proxy.do(lambda: self.link.restore(reset=False))


@pytest.fixture
def far(bench: Any, settings: Settings, postgres_server: PostgresServer) -> Iterator[Far]:
    patient = settings.model_copy(update={"worker": settings.worker.model_copy(update={"heartbeat_timeout": TIMEOUT_S})})
    bench.scenario.close()
    bench.settings, bench.scenario = patient, Scenario(patient)
    proxy = Proxy()
    link = proxy.link(Path(postgres_server.embedded.run_folder) / ".s.PGSQL.5432")
    name = settings.database_url.split("@/")[1].split("?")[0]
    env = {"PACELINE_WORKER_HEARTBEAT_TIMEOUT": str(TIMEOUT_S)}
    worker = bench.worker(PACELINE_DATABASE_URL=f"postgresql://postgres@127.0.0.1:{link.port}/{name}", **env)
    yield Far(bench, proxy, link, worker, bench.folder / "ledger")
    os.kill(worker.process.pid, signal.SIGCONT)
    proxy.close()


@pytest.mark.long
@pytest.mark.parametrize("fault", [Far.cut, Far.cut_answers, Far.stop_the_parent])
def test_the_next_try_begins_after_all_of_the_one_before_has_ended(far: Far, fault: Callable[[Far], None]) -> None:
    bench = far.bench
    bench.dag(TICKING.format(ledger=str(far.ledger)))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, t="running")
    eventually(lambda: len(far.ticks(1)) > 2, timeout=60, message=lambda: bench.output)

    fault(far)
    bench.worker(PACELINE_WORKER_HEARTBEAT_TIMEOUT=str(TIMEOUT_S))
    bench.wait(run)
    far.restore()

    assert bench.scenario.states(run) == {"t": "success"}
    assert max(far.ticks(1)) < min(far.ticks(2))
    eventually(lambda: LEASE_ENDED in far.worker.output, timeout=20, message=lambda: bench.output)
    # Processes that the successful try had started in the background ended with it.
    last = len(far.ticks(2))
    eventually(lambda: bench.scenario.rows("select count(*) from process where stopped_at is null and name like 'w0@%%'") == [(1,)])
    assert len(far.ticks(2)) == last
