"""The Redis users of config/redis.conf: all of Paceline works with them, and they can do nothing else."""

import contextlib
import json
import signal
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support.processes import free_port
from support.servers import RedisServer, running_redis
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from scheduler.embedded import stack as stacks
from scheduler.messaging import broker_keys
from scheduler.messaging.publisher import broker_lists
from scheduler.settings import Settings
from scheduler.settings.sections import Broker

PASSWORD = "r0le-Pa55word"
DAG = """
from datetime import datetime, timezone
from paceline import DAG, chain, task
from paceline.operators import PythonOperator
from paceline.sensors import DateTimeSensor
with DAG("d", schedule=None):
    @task
    def double(n):
        return 2 * n
    deferred = DateTimeSensor(task_id="deferred", target_time=datetime(2020, 1, 1, tzinfo=timezone.utc), deferrable=True)
    chain(*[PythonOperator(task_id=f"t{n}", python_callable=int) for n in range(3)], deferred, double.expand(n=[1, 2]))
"""
#: Commands that no role needs, as the words of ACL DRYRUN.
FORBIDDEN = [
    "FLUSHALL", "FLUSHDB", "CONFIG GET *", "CONFIG SET dir /tmp", "DEBUG SLEEP 1", "KEYS *", "SCAN 0", "MONITOR", "SHUTDOWN",
    "EVAL x 0", "EVALSHA x 0", "SCRIPT LOAD x", "FUNCTION LOAD x", "FCALL x 0", "ACL LIST", "ACL SETUSER x", "CLIENT LIST",
    "CLIENT KILL ID 1", "CLIENT PAUSE 1", "MODULE LIST", "REPLICAOF x 1", "SAVE", "BGSAVE", "BGREWRITEAOF", "SLOWLOG GET",
    "LATENCY RESET", "RENAME default x", "RESTORE x 0 y", "DUMP default", "MIGRATE h 1 x 0 1", "SWAPDB 0 1", "OBJECT HELP",
    "SET default x", "GET default", "DEL default", "HSET x y z", "EXPIRE default 1", "RPUSH default x", "LPOP default",
    "LTRIM default 0 0", "SORT default", "SUBSCRIBE secrets", "PSUBSCRIBE *", "PUBLISH secrets x",
]  # fmt: skip
#: Commands that only another role needs.
OTHERS = {
    "paceline_scheduler": ["BRPOP default 1", "RPOP default", "PUBLISH /0.celery.pidbox x", "SADD _kombu.binding.x y"],
    "paceline_worker": [
        "LRANGE default 0 -1", "DEL paceline:epoch", "SET paceline:epoch 1", "PUBLISH /0.celery.pidbox x",
        "PSUBSCRIBE /0.celeryev/*", "INFO",
    ],
    "paceline_web": [
        "LPUSH default x", "BRPOP default 1", "LRANGE default 0 -1", "ZPOPMIN paceline:wakeups", "GET paceline:queues",
        "DEL paceline:epoch", "PSUBSCRIBE /0.celery.pidbox", "PUBLISH /0.celery.pidbox x", "INFO",
    ],
    "paceline_flower": [
        "LPUSH default x", "BRPOP default 1", "LRANGE default 0 -1", "ZADD paceline:wakeups 1 x", "ZPOPMIN paceline:wakeups",
        "DEL default", "PSUBSCRIBE /0.celery.pidbox", "PUBLISH /0.celeryev/x y",
    ],
}  # fmt: skip


@pytest.fixture
def server(short_folder: Path) -> Iterator[RedisServer]:
    with running_redis(short_folder / "redis") as running:
        with admin(running) as client:
            for name in broker_keys.ROLES:
                rules = broker_keys.user_line(name, PASSWORD).split(" ", 2)[2]
                words = [part for rule in rules.replace("(", "\0(").replace(")", ")\0").split("\0") for part in split(rule)]
                client.execute_command("ACL", "SETUSER", name, *words)
        yield running


def split(rule: str) -> list[str]:
    return [rule] if rule.startswith("(") else rule.split()


def admin(server: RedisServer) -> "contextlib.closing[redis.Redis]":
    return contextlib.closing(redis.Redis(unix_socket_path=str(server.embedded.socket), decode_responses=True))


def url(server: RedisServer, role: str) -> str:
    return f"redis+socket://paceline_{role}:{PASSWORD}@{urllib.parse.quote(str(server.embedded.socket))}?virtual_host=0"


@pytest.mark.parametrize("role", broker_keys.ROLES)
def test_a_role_may_not(role: str, server: RedisServer) -> None:
    with admin(server) as client:
        answers = {words: str(client.execute_command("ACL", "DRYRUN", role, *words.split())) for words in FORBIDDEN + OTHERS[role]}

    assert [words for words, answer in answers.items() if "permission" not in answer] == []


def test_a_user_without_the_right_to_rename_deletes_a_key_of_another_type(server: RedisServer) -> None:
    with admin(server) as client, contextlib.closing(redis.Redis(
        unix_socket_path=str(server.embedded.socket), username="paceline_worker", password=PASSWORD
    )) as worker:  # fmt: skip
        client.set("paceline:waiters", "x")
        client.set("kept", "x")

        assert broker_keys.put_aside(worker, ["paceline:waiters", "kept"], "zset") == ["paceline:waiters"]

        assert client.keys("*") == ["kept"]


def test_the_user_of_the_embedded_server_may_not() -> None:
    from support.servers import EVERYTHING

    assert "+@all" in EVERYTHING
    allowed = {rule.removeprefix("+") for rule in broker_keys.EMBEDDED if rule.startswith("+")}
    assert allowed.isdisjoint({words.split()[0].lower() for words in FORBIDDEN} - {"publish", "psubscribe", "set", "get", "del"})


@pytest.mark.long
@pytest.mark.stack
def test_everything_works_under_the_roles(settings: Settings, server: RedisServer) -> None:
    port = free_port()
    own = settings.model_copy(update={"broker": Broker(url=url(server, "scheduler"))})
    with admin(server) as client, StackFactory(own) as factory:
        stack = factory({"d.py": DAG}, schedulers=1, workers=[])
        start_others(stack, server, port)
        eventually(lambda: stack.json("dags", "list"), timeout=60, message=stack.logs)
        eventually(lambda: flower(port, "/api/workers?refresh=1"), timeout=60, message=stack.logs)
        for number in range(10):
            run = stack.json("dags", "trigger", "d", "--run-id", f"r{number}", "--wait", "--timeout", "60")
            assert {task["state"] for task in run["tasks"]} == {"success"}
            if len(flower(port, "/api/tasks")) >= len(run["tasks"]):
                break  # Flower turns events on by remote control, so those of the first runs may be missing
        else:
            pytest.fail("Flower saw no events")
        assert stack.json("doctor")["ok"]
        assert stack.cli("doctor", "--deep").returncode == 0
        queues = flower(port, "/api/queues/length")["active_queues"]
        lose_a_message(stack, client)
        refused = {(entry["username"], entry["object"], entry["reason"]) for entry in client.acl_log()}

    assert {queue["name"] for queue in queues} >= {"default"}
    # Optional commands with which redis-py identifies itself when it connects.
    assert {one for one in refused if not one[1].startswith("client|")} == set()


def start_others(stack: Stack, server: RedisServer, port: int) -> None:
    """A worker, a waiter and Flower, each with the URL of its role."""
    env = stack.env | {
        "PACELINE_FLOWER_PORT": str(port), "FLOWER_UNAUTHENTICATED_API": "true", "PACELINE_BROKER_URL": url(server, "worker"),
    }  # fmt: skip
    for command in stacks.stack_commands(env, schedulers=0, workers=[("default", 2)], waiters=1):
        stack.supervisor.start(command)
    env |= {"PACELINE_BROKER_URL": url(server, "flower")}
    for command in stacks.stack_commands(env, schedulers=0, workers=[], flower=True):
        stack.supervisor.start(command)


def lose_a_message(stack: Stack, client: "redis.Redis") -> None:
    """A message that is gone from its queue is sent again."""
    stack.kill("worker-1", signal.SIGSTOP)
    try:
        stack.cli("dags", "trigger", "d", "--run-id", "lost")
        eventually(lambda: any(client.llen(key) for key in broker_lists("default")), timeout=60, message=stack.logs)
        client.delete(*broker_lists("default"))
        eventually(lambda: any(client.llen(key) for key in broker_lists("default")), timeout=60, message=stack.logs)
    finally:
        stack.kill("worker-1", signal.SIGCONT)


def flower(port: int, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return {}
