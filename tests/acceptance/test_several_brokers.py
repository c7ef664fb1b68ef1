"""Two brokers under real schedulers and workers: one is killed under load, a worker starts without it, and it returns."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faulty import faulty_stack
from support.ledger import Ledger
from support.servers import RedisServer
from support.several_brokers import kill, queues_of, running_two, with_brokers
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.messaging.brokers import Brokers
from scheduler.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

#: A task in each queue, and one below it, which the worker of the first one queues.
BODY = """
@task
def first():
    work(0.02)

@task
def below():
    work(0.02)

first.override(task_id="first_a", queue={a!r})() >> below.override(task_id="below_b", queue={b!r})()
first.override(task_id="first_b", queue={b!r})() >> below.override(task_id="below_a", queue={a!r})()
"""
RUNS = 50
UNENDED = "select count(*) from dag_run where state <> 'success'"
QUEUED = "select id from task_instance where state = 'queued' and queue = '{queue}'"


@pytest.fixture
def two(short_folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    with running_two(short_folder) as servers:
        yield servers


@pytest.mark.parametrize("index", [0, 1], ids=["with-remote-control", "without"])
def test_a_broker_killed_under_load_loses_nothing_and_its_queues_move(
    index: int, two: tuple[RedisServer, RedisServer], settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    both = with_brokers(settings, *two)
    a, b = queues_of(both)
    moved = (a, b)[index]
    files = {"load.py": ledger.dag("load", BODY.format(a=a, b=b), max_active_runs=1000)}
    workers = [(f"{a},{b}", 2)] * 2
    with (
        StackFactory(both) as factory,
        faulty_stack(factory, ledger, tmp_path / "faults", files=files, workers=workers, waiters=0,
                     env={"PACELINE_WORKER_IN_PLACE_SECONDS": "0", "PACELINE_SCHEDULER_TASK_QUEUED_TIMEOUT": "2"}) as faulty,
        contextlib.closing(Brokers(both)) as brokers,
    ):  # fmt: skip
        faulty.trigger("load", RUNS, "before")
        eventually(lambda: len(ledger.rows("select 1 from ledger")) >= 40, timeout=120, message=faulty.stack.logs)
        started = faulty.rows("select distinct queue from task_instance where started_at is not null")

        kill(two[index])
        began = time.monotonic()
        # Their messages were lost, except those that workers had taken.
        lost = [str(number) for (number,) in faulty.rows(QUEUED.format(queue=moved))]
        left = f"select count(*) from task_instance where state = 'queued' and id = any('{{{','.join(lost)}}}')"
        eventually(lambda: faulty.rows(left) == [(0,)], timeout=60, interval=0.02, message=faulty.stack.logs)
        took_s = time.monotonic() - began
        faulty.settle(timeout=120)
        faulty.trigger("load", RUNS, "without")
        faulty.settle(timeout=120)

        two[index].embedded.start()
        returned = brokers.all[index].client

        def is_used() -> object:
            """A process asks a broker that was down again after up to 30 s."""
            faulty.trigger("load", 1, "after")
            return returned.info("commandstats").get("cmdstat_lpush")

        eventually(is_used, timeout=60, interval=0.5, message=faulty.stack.logs)
        faulty.settle(timeout=120)
        verdict = ledger.check(faulty.url)
        tries = faulty.rows("select distinct state, try_number from task_instance")
        logs = faulty.stack.logs()

    print(f"\n{len(lost)} task instances were queued in the killed broker; all had started after {took_s:.1f} s")
    assert {queue for (queue,) in started} == {a, b}, "each broker has brought messages"
    assert tries == [("success", 1)], logs
    assert verdict.ok and verdict.executions == faulty.made * 4 and faulty.made > 2 * RUNS and not verdict.overtaken, verdict
    assert f"The broker {two[index].embedded.socket} does not answer" in logs


def test_a_broker_that_hangs_under_load_holds_the_work_up_for_seconds_once(
    two: tuple[RedisServer, RedisServer], settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    both = with_brokers(settings, *two)
    a, b = queues_of(both)
    files = {"load.py": ledger.dag("load", BODY.format(a=a, b=b), max_active_runs=1000)}
    pid = two[0].embedded.supervisor.pid("redis")
    with (
        StackFactory(both) as factory,
        faulty_stack(factory, ledger, tmp_path / "faults", files=files, workers=[(f"{a},{b}", 2)] * 2, waiters=0,
                     env={"PACELINE_WORKER_IN_PLACE_SECONDS": "0", "PACELINE_SCHEDULER_TASK_QUEUED_TIMEOUT": "2"}) as faulty,
    ):  # fmt: skip
        faulty.trigger("load", RUNS, "before")
        eventually(lambda: len(ledger.rows("select 1 from ledger")) >= 40, timeout=120, message=faulty.stack.logs)
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            eventually(lambda: faulty.rows(UNENDED) == [(0,)], timeout=100, message=faulty.stack.logs)
            took_s = time.monotonic() - began
        finally:
            os.kill(pid, signal.SIGCONT)
        faulty.trigger("load", 5, "after")
        faulty.settle(timeout=120)
        verdict = ledger.check(faulty.url)
        tries = faulty.rows("select distinct state, try_number from task_instance")
    print(f"\nthe runs ended {took_s:.1f} s after the broker stopped")
    assert tries == [("success", 1)]
    assert verdict.ok and verdict.executions == (RUNS + 5) * 4, verdict


def test_a_worker_starts_while_a_broker_is_down_and_takes_from_it_when_it_returns(
    two: tuple[RedisServer, RedisServer], settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    both = with_brokers(settings, *two)
    a, b = queues_of(both)
    files = {"load.py": ledger.dag("load", BODY.format(a=a, b=b), max_active_runs=1000)}
    kill(two[0])
    with (
        StackFactory(both) as factory,
        faulty_stack(factory, ledger, tmp_path / "faults", files=files, workers=[(f"{a},{b}", 2)], waiters=0) as faulty,
    ):
        faulty.trigger("load", 5, "without")
        faulty.settle(timeout=120)

        two[0].embedded.start()
        with contextlib.closing(Brokers(both)) as brokers:
            # A worker asks both for messages again.
            eventually(
                lambda: any(client["cmd"] == "brpop" for client in brokers.all[0].client.client_list()),
                timeout=60, message=faulty.stack.logs,
            )  # fmt: skip
        faulty.trigger("load", 5, "with")
        faulty.settle(timeout=120)
        verdict = ledger.check(faulty.url)
        tries = faulty.rows("select distinct state, try_number from task_instance")
    assert tries == [("success", 1)]
    assert verdict.ok and verdict.executions == 10 * 4, verdict
