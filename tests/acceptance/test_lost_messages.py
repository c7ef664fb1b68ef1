"""Messages that Redis loses or delivers again, with real processes: every task runs once, and no try is used up."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.faulty import default_times, faulty_stack
from support.ledger import Ledger, ask
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.embedded import stack as stacks
from scheduler.messaging.brokers import client
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import Publisher, broker_lists

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

#: A worker with a visibility timeout of five seconds.
IMPATIENT = """
import sys
from celery.signals import celeryd_init
from scheduler.settings import Settings
from workers.celery_worker import app
@celeryd_init.connect(weak=False)
def shorten(conf, **_):
    conf.broker_transport_options = {**conf.broker_transport_options, "visibility_timeout": 5}
sys.exit(app.run(Settings.load(), queues=["default"], concurrency=1, name=sys.argv[1]))
"""


def one_task(ledger: Ledger, seconds: float = 0.0) -> dict[str, str]:
    body = f"task(task_id='t')(lambda: work({seconds}))()"
    return {"one.py": ledger.dag("one", body, max_active_runs=100)}


@pytest.mark.parametrize("how", ["the list is deleted", pytest.param("all of Redis is emptied", marks=pytest.mark.on_demand)])
def test_50_queued_task_instances_survive_the_loss_of_their_messages(
    stack_factory: StackFactory, ledger: Ledger, tmp_path: Path, how: str
) -> None:
    env = {"PACELINE_SCHEDULER_PREFETCH_WINDOW": "64"}
    with faulty_stack(stack_factory, ledger, tmp_path / "faults", files=one_task(ledger), env=env, workers=[], waiters=0) as faulty:
        faulty.trigger("one", 50, "r")
        queued = "select id, try_number, dispatch_id from task_instance where state = 'queued' order by id"
        broker = client(faulty.stack.settings.broker_url)
        waiting = broker_lists("default")
        eventually(lambda: sum(map(broker.llen, waiting)) == 50, timeout=60, message=faulty.stack.logs)
        before = faulty.rows(queued)

        broker.flushdb() if how == "all of Redis is emptied" else broker.delete(*waiting)

        eventually(lambda: sum(map(broker.llen, waiting)) == 50, message=faulty.stack.logs)
        broker.close()
        assert faulty.rows(queued) == before
        for command in stacks.stack_commands(faulty.stack.env, schedulers=0, workers=[("default", 3)]):
            faulty.stack.supervisor.start(command)
        faulty.settle(timeout=120)
        verdict = ledger.check(faulty.url)
        after = faulty.rows("select id, try_number, dispatch_id from task_instance order by id")
        tries = faulty.rows("select count(*) from task_try")
    assert len(before) == 50
    assert after == before
    assert tries == [(0,)]
    assert verdict.ok and verdict.executions == 50, verdict


@pytest.mark.on_demand
def test_messages_delivered_three_times_and_out_of_order_run_once(
    stack_factory: StackFactory, ledger: Ledger, tmp_path: Path
) -> None:
    with faulty_stack(stack_factory, ledger, tmp_path / "faults", files=one_task(ledger, 0.05), workers=[], waiters=0) as faulty:
        faulty.trigger("one", 20, "r")
        broker = client(faulty.stack.settings.broker_url)
        waiting = broker_lists("default")
        eventually(lambda: sum(map(broker.llen, waiting)) == 20, timeout=60, message=faulty.stack.logs)
        for key in waiting:
            bodies = broker.lrange(key, 0, -1)
            for body in reversed([*bodies, *bodies]):
                broker.lpush(key, body)
        broker.close()
        for command in stacks.stack_commands(faulty.stack.env, schedulers=0, workers=[("default", 3)] * 2):
            faulty.stack.supervisor.start(command)
        faulty.settle(timeout=120)

        def dropped() -> int:
            return sum(faulty.stack.supervisor.log(name).read_text().count("dropped dispatch") for name in ("worker-1", "worker-2"))

        eventually(lambda: dropped() == 40, timeout=20)
        verdict = ledger.check(faulty.url)
    assert verdict.ok and verdict.executions == 20, verdict


@pytest.mark.on_demand
def test_a_task_longer_than_the_visibility_timeout_runs_once(stack_factory: StackFactory, ledger: Ledger, tmp_path: Path) -> None:
    """Redis delivers nothing again, because it keeps no list of unacknowledged messages; a repeated message is dropped."""
    files = one_task(ledger, 20.0)
    with (
        faulty_stack(stack_factory, ledger, tmp_path / "faults", files=files, workers=[], waiters=0) as faulty,
        ExitStack() as undo,
    ):
        for name in ("one", "two"):
            undo.enter_context(impatient_worker(name, faulty.stack.env, tmp_path))
        faulty.trigger("one", 1, "r")
        eventually(lambda: ledger.rows("select 1 from ledger where started_at < clock_timestamp() - interval '11 s'"), timeout=40)
        ti_id, dispatch_id = faulty.rows("select id, dispatch_id::text from task_instance where state = 'running'")[0]
        assert ledger.rows("select count(*) from ledger") == [(1,)]
        publisher = Publisher(faulty.stack.settings)
        publisher.publish([Message(ti_id=ti_id, dispatch_id=dispatch_id, queue="default", dag_id="one", run_id="r", task_id="t")])
        publisher.close()
        logs = [tmp_path / "one.txt", tmp_path / "two.txt"]
        eventually(lambda: any("dropped dispatch" in path.read_text() for path in logs), timeout=20)
        faulty.settle(timeout=40)
        verdict = ledger.check(faulty.url)
    assert verdict.ok and verdict.executions == 1, verdict


@contextmanager
def impatient_worker(name: str, env: Mapping[str, str], folder: Path) -> Iterator[None]:
    command = [sys.executable, "-P", "-c", IMPATIENT, name]
    with (folder / f"{name}.txt").open("w") as log:
        worker = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            worker.send_signal(signal.SIGQUIT)
            worker.wait(30)


CHAIN = """
before = None
for number in range({length}):
    now = task(task_id=f"t{{number:02}}")(lambda: work(0.02))()
    if before is not None:
        before >> now
    before = now
"""
DAGS, LENGTH = 20, 25


@pytest.mark.long
def test_of_three_schedulers_one_is_killed_and_one_has_the_time_zone_of_tokyo(
    stack_factory: StackFactory, ledger: Ledger, tmp_path: Path
) -> None:
    """AIP-15. The scheduler is killed at the worst moment: after it queued, before it sent a message; timeouts are the defaults."""
    files = {f"long_{number}.py": ledger.dag(f"long_{number}", CHAIN.format(length=LENGTH)) for number in range(DAGS)}
    # Without following, all that comes next is up to the schedulers.
    env = {**default_times(), "PACELINE_SCHEDULER_SCHEDULE_AFTER_TASK_EXECUTION": "false"}
    with faulty_stack(stack_factory, ledger, tmp_path / "faults", files=files, env=env, schedulers=2, waiters=0) as faulty:
        tokyo = stacks.stack_commands({**faulty.stack.env, "TZ": "Asia/Tokyo"}, schedulers=3, workers=[])[2]
        faulty.stack.supervisor.start(tokyo)
        eventually(lambda: "started" in faulty.stack.supervisor.log_tail("scheduler-3"), timeout=60)
        faulty.inject("queue.publish=kill@40")
        for number in range(DAGS):
            faulty.trigger(f"long_{number}", 1, "r")
        eventually(faulty.struck, timeout=120, message=faulty.stack.logs)
        killed_at = killed(faulty.folder)
        faulty.settle(timeout=120)
        verdict = ledger.check(faulty.url)
        states = faulty.rows("select distinct state, try_number from task_instance")
        late_s = longest_wait(faulty.url, killed_at)
        queued_by = {row[0] for row in faulty.rows("select distinct queued_by from task_instance")}
    print(
        f"{DAGS * LENGTH} task instances; those that the killed scheduler had queued began within {late_s:.1f} s", file=sys.stderr
    )
    assert states == [("success", 1)]
    assert verdict.ok and not verdict.overtaken, verdict
    assert verdict.executions == DAGS * LENGTH
    assert len(queued_by) >= 3
    assert 0 < late_s < 5


def killed(folder: Path) -> float:
    return float((folder / "struck").read_text().split()[0])


def longest_wait(url: str, killed_at: float) -> float:
    """Seconds from the kill until the last of those began that stood as queued then."""
    ((seconds,),) = ask(
        url,
        """
        select extract(epoch from max(began.at))::float - %s
          from witness queued
          join witness began on began.ti_id = queued.ti_id and began.dispatch_id = queued.dispatch_id and began.after = 'running'
         where queued.after = 'queued' and extract(epoch from queued.at) <= %s and extract(epoch from began.at) > %s
        """,
        killed_at, killed_at, killed_at,
    )  # fmt: skip
    assert seconds < time.time()
    return float(seconds)
