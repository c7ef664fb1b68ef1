"""PostgreSQL fails over to a standby, or Redis to a replica that lags, under load: nothing is lost and nothing runs twice."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest
import redis
from support.faulty import faulty_stack
from support.ledger import Ledger
from support.replica import client, running_pair
from support.servers import TEMPLATE, running_postgres
from support.stacks import StackFactory
from support.standby import PRIMARY, lose, promote, running_standby
from support.waiting import eventually

from scheduler.messaging.publisher import broker_lists
from scheduler.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

#: Longer than the failover takes, so that each ends on the new primary.
LONG_S = 4.0
BODY = f"""
@task
def long(n):
    work({LONG_S})
    return n

@task
def after(given, ti=None):
    work()
    ti.xcom_push("seen", given)

for number in range(2):
    after.override(task_id=f"after{{number}}")(long.override(task_id=f"long{{number}}")(number))
"""


@pytest.mark.long
def test_tasks_that_run_while_a_standby_is_promoted_succeed_in_their_first_try(
    short_folder: Path, settings: Settings, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_folder.chmod(0o755)
    with running_postgres(short_folder / "a", PRIMARY) as primary:
        primary._make_template()
        primary.execute(f"create database work template {TEMPLATE} strategy file_copy")
        (short_folder / "b").mkdir()
        (short_folder / "b").chmod(0o755)
        with running_standby(primary, short_folder / "b") as standby:
            # The standby comes first, as a former primary does after a failover: each process has to ask for a server that takes
            # writes. For the test's own connections the environment does.
            monkeypatch.setenv("PGTARGETSESSIONATTRS", "read-write")
            hosts = f"{standby.embedded.run_folder},{primary.embedded.run_folder}"
            database = settings.database.model_copy(update={"url": f"postgresql://postgres@/work?host={hosts}"})
            files = {
                "long.py": ledger.dag("long", BODY),
                "short.py": ledger.dag("short", "work_task = task(task_id='t')(lambda: work())()"),
            }
            options = {
                "files": files, "workers": [("default", 2)] * 2, "waiters": 1, "env": {"PGTARGETSESSIONATTRS": "any"},
            }  # fmt: skip
            with (
                StackFactory(settings.model_copy(update={"database": database})) as factory,
                faulty_stack(factory, ledger, tmp_path / "faults", **options) as faulty,
            ):
                faulty.trigger("long", 1, "r")
                faulty.trigger("short", 8, "before")
                eventually(
                    lambda: len(ledger.rows("select 1 from ledger where task_id like 'long%'")) == 2,
                    timeout=120,
                    message=faulty.stack.logs,
                )

                lose(primary)
                monkeypatch.delenv("PGTARGETSESSIONATTRS")
                promote(standby)
                faulty.engine.dispose()

                triggered = faulty.stack.cli("dags", "trigger", "short")
                faulty.settle(timeout=120)
                verdict = ledger.check(faulty.url)
                tries = faulty.rows("select distinct state, try_number from task_instance")
                seen = faulty.rows("select value #>> '{}' from xcom where key = 'seen' order by 1")
    assert triggered.returncode == 0, triggered.stderr
    assert tries == [("success", 1)]
    assert seen == [("0",), ("1",)]
    assert verdict.ok and verdict.executions == 4 + 8 + 1 and not verdict.overtaken, verdict


@pytest.mark.long
def test_a_promoted_replica_that_lags_gets_missing_messages_again_and_old_ones_are_dropped(
    short_folder: Path, settings: Settings, ledger: Ledger, tmp_path: Path
) -> None:
    """Messages that the replica lacks are published again, and messages delivered since it lags arrive again. Both run once."""
    files = {"one.py": ledger.dag("one", "task(task_id='t')(lambda: work(0.2))()", max_active_runs=1000)}
    with running_pair(short_folder) as pair:
        broker = settings.broker.model_copy(update={"url": pair.url})
        with (
            StackFactory(settings.model_copy(update={"broker": broker})) as factory,
            faulty_stack(factory, ledger, tmp_path / "faults", files=files, workers=[("default", 2)] * 2, waiters=0) as faulty,
        ):
            faulty.trigger("one", 60, "before")
            waiting = broker_lists("default")
            with client(pair.replica) as replica:
                eventually(lambda: sum(map(replica.llen, waiting)) >= 4, timeout=60, message=faulty.stack.logs)
                pair.cut_off()
                kept = messages(replica, waiting)
            faulty.trigger("one", 60, "after")
            with client(pair.primary) as primary:
                eventually(lambda: not kept & messages(primary, waiting), timeout=60, message=faulty.stack.logs)
                eventually(lambda: sum(map(primary.llen, waiting)) >= 4, timeout=60, message=faulty.stack.logs)
                missing = messages(primary, waiting)

            pair.fail_over()

            faulty.settle(timeout=120)
            verdict = ledger.check(faulty.url)
            tries = faulty.rows("select distinct state, try_number from task_instance")
            dropped = sum(
                faulty.stack.supervisor.log(name).read_text().count("dropped dispatch") for name in ("worker-1", "worker-2")
            )
    assert kept and missing
    assert tries == [("success", 1)]
    assert verdict.ok and verdict.executions == 120 and not verdict.overtaken, verdict
    assert dropped >= len(kept), "the replica had messages that the primary had delivered"


def messages(server: "redis.Redis", keys: Collection[str]) -> set[str]:
    """The dispatch IDs of the messages that wait."""
    return {json.loads(body)["headers"]["id"] for key in keys for body in server.lrange(key, 0, -1)}
