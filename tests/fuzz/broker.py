"""Garbage in every Redis key that a process reads, and in the mailboxes of workers; after each round a run must succeed."""

import os
import random
from collections.abc import Sequence
from typing import Any

from support.stacks import Stack
from support.waiting import eventually

from scheduler.messaging.broker_keys import REPORT
from scheduler.messaging.brokers import client
from scheduler.messaging.publisher import broker_lists
from scheduler.messaging.wakeups import EPOCH_KEY, KEY, QUEUE_KEY, WAITERS_KEY
from scheduler.services import queue_report
from scheduler.services.rescue import LOCK_KEY

KEYS = (
    KEY, QUEUE_KEY, WAITERS_KEY, EPOCH_KEY, LOCK_KEY, REPORT, queue_report.LOCK_KEY, *broker_lists("default"),
    "_kombu.binding.celery.pidbox",
    "_kombu.binding.reply.celery.pidbox", "_kombu.binding.celeryev", "unacked", "unacked_index", "unacked_mutex",
)  # fmt: skip
KINDS = ("string", "list", "set", "hash", "zset", "stream")
HUGE = 8 << 20


def put(broker: Any, key: str, kind: str, pieces: Sequence[bytes]) -> None:
    """Let `key` hold these bytes as a value of this type."""
    some = [piece or b"-" for piece in pieces] or [b"-"]
    with broker.pipeline() as at_once:  # or another client might create it in between
        at_once.delete(key)
        match kind:
            case "string":
                at_once.set(key, some[0])
            case "list":
                at_once.lpush(key, *some)
            case "set":
                at_once.sadd(key, *some)
            case "hash":
                at_once.hset(key, mapping=dict.fromkeys(some, "x"))
            case "zset":
                at_once.zadd(key, dict.fromkeys(some, 0))
            case "stream":
                at_once.xadd(key, {some[0]: "x"})
        at_once.execute()


def rounds(stack: Stack, *, seed: int, garbage: Sequence[bytes], commands: Sequence[bytes], kinds: Sequence[str | None]) -> int:
    """One round for each of `kinds`: all keys hold that type, or with None each another; the number of values and messages.

    Every process is to live and to work after it: a run of the DAG `good` succeeds.
    """
    chance = random.Random(seed)
    broker: Any = client(stack.settings.broker_url)
    mailbox = f"/{broker.connection_pool.connection_kwargs.get('db', 0)}.celery.pidbox"
    pids = {name: stack.pid(name) for name in stack.supervisor.names()}
    count = 0
    for number, kind in enumerate(kinds):
        for key in KEYS:
            pieces = chance.sample(garbage, min(len(garbage), 5))
            put(broker, key, kind or chance.choice(KINDS), [*pieces, os.urandom(HUGE)] if number == 0 else pieces)
            count += len(pieces)
        for command in chance.sample(commands, min(len(commands), 50)):
            broker.publish(mailbox, command)
            count += 1
        run = stack.json("dags", "trigger", "good", "--run-id", f"broker-{number}", "--wait", "--timeout", "60")
        assert run["state"] == "success", f"after a round of {kind or 'mixed'} keys: {run}\n{stack.logs()}"
    eventually(lambda: not any(broker.llen(key) for key in broker_lists("default")), timeout=60)
    check_processes(stack, pids)
    broker.close()
    return count


def check_processes(stack: Stack, pids: dict[str, int]) -> None:
    """None has ended, and none has logged a stack trace."""
    assert {name: stack.pid(name) for name in pids} == pids, f"a process died: {stack.output}"
    for name in pids:
        log = stack.supervisor.log(name).read_text(errors="replace")
        assert "Traceback" not in log, f"{name}: {log[max(0, log.index('Traceback') - 500) :][:3000]}"
