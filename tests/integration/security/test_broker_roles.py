"""Servers with roles and with TLS: what each role may do in Redis, and which certificates processes accept."""

import contextlib
import dataclasses
import json
import signal
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from support.processes import free_port
from support.servers import RedisServer, running_redis
from support.stacks import Stack, StackFactory
from support.tls import Certificates, TlsProxy, certificates, postgres_with_tls
from support.waiting import eventually

from paceline.exceptions import CredentialsError
from scheduler.cli import paceline
from scheduler.embedded import stack as stacks
from scheduler.messaging import broker_keys, connection_tests, publisher, wakeups
from scheduler.messaging.brokers import Brokers, check, client
from scheduler.messaging.connection_tests import Answer
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import broker_lists, dispatch_ids_in_broker
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database
from workers.celery_worker.intake import Intake

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
        "DEL paceline:epoch", "PSUBSCRIBE /0.celery.pidbox", "PUBLISH /0.celery.pidbox x", "INFO", "SET paceline:epoch 1",
        "EXPIRE paceline:epoch 1", "EXPIRE paceline:wakeups 1", "ZPOPMIN paceline:connection-tests:default",
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
    assert allowed.isdisjoint(
        {words.split()[0].lower() for words in FORBIDDEN} - {"publish", "psubscribe", "set", "get", "del", "expire"}
    )


def test_a_worker_may_take_messages_from_one_of_several_brokers_and_give_them_back(server: RedisServer) -> None:
    url = f"redis+socket://paceline_worker:{PASSWORD}@{server.embedded.socket}"
    intake = Intake(Settings(broker=Broker(url=url)), ["given-back"], 1)
    with contextlib.closing(client(url)) as worker:
        assert intake._pop(worker) is None
        worker.lpush("given-back:3", "x")
        found = intake._pop(worker)
        assert found == ("given-back:3", b"x")
        worker.lpush(*found)
        assert intake._wait(worker) == found


def test_a_web_process_asks_a_worker_to_test_a_connection(server: RedisServer) -> None:
    def client_of(role: str) -> "contextlib.closing[Brokers]":
        url = f"redis+socket://{role}:{PASSWORD}@{server.embedded.socket}"
        return contextlib.closing(Brokers(Settings(broker=Broker(url=url))))

    with client_of("paceline_web") as web, client_of("paceline_worker") as worker:
        asked = connection_tests.ask(web, "warehouse", "default")
        assert connection_tests.take(worker, ["spark", "default"]) == asked
        assert connection_tests.take(worker, ["spark", "default"]) is None
        answer = Answer(ok=True, message="It works.", worker="w@h")
        connection_tests.answer(worker, asked, answer)
        assert connection_tests.find(web, asked.token) == (dataclasses.replace(asked, answer=answer), False)


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


USER, TLS_PASSWORD, BROKER_PASSWORD = "paceline_tls", "p%40ss/word".replace("/", "%2F"), "br0ker%2Bpass"
TLS_DAG = """
from paceline import DAG, chain
from paceline.operators import BashOperator, PythonOperator
from paceline.sensors import DateTimeSensor
with DAG("d", schedule=None):
    chain(*[PythonOperator(task_id=f"t{n}", python_callable=int) for n in range(3)],
          DateTimeSensor(task_id="deferred", target_time="2020-01-01T00:00:00+00:00", deferrable=True))
"""


@pytest.fixture
def made(short_folder: Path) -> Certificates:
    short_folder.chmod(0o755)
    return certificates(short_folder / "certificates")


@pytest.fixture
def proxy(short_folder: Path, made: Certificates) -> Iterator[TlsProxy]:
    with running_redis(short_folder / "redis") as server:
        with contextlib.closing(redis.Redis(unix_socket_path=str(server.embedded.socket))) as client:
            client.config_set("requirepass", "br0ker+pass")
        with TlsProxy(server.embedded.socket, made) as running:
            yield running


@pytest.fixture
def postgres(short_folder: Path, made: Certificates) -> Iterator[str]:
    folder = short_folder / "postgres"
    folder.mkdir(mode=0o755)
    with postgres_with_tls(folder, made, user=USER, password="p@ss/word") as place:
        yield place


def broker_url(proxy: TlsProxy, ca: Path | None, *, password: str = BROKER_PASSWORD, scheme: str = "rediss") -> str:
    return f"{scheme}://:{password}@localhost:{proxy.port}/0{'' if ca is None else f'?ssl_ca_certs={ca}'}"


def database_url(place: str, ca: Path, *, password: str = TLS_PASSWORD, mode: str = "verify-full") -> str:
    return f"postgresql://{USER}:{password}@{place}?sslmode={mode}&sslrootcert={ca}"


@pytest.mark.long
def test_a_whole_stack_speaks_tls(postgres: str, proxy: TlsProxy, made: Certificates, tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    settings = Settings(
        paths=Paths(home=tmp_path, dags_folder=tmp_path / "dags"),
        database=Database(url=database_url(postgres, made.ca)),
        broker=Broker(url=broker_url(proxy, made.ca)),
    )
    with StackFactory(settings) as factory:
        environment = {"PACELINE_DATABASE_URL": settings.database_url, "PACELINE_BROKER_URL": settings.broker_url}
        assert CliRunner().invoke(paceline, ["db", "migrate"], env=environment | {"PACELINE_HOME": str(tmp_path)}).exit_code == 0
        stack = factory({"d.py": TLS_DAG}, schedulers=1, workers=[("default", 2)], waiters=1)
        eventually(lambda: stack.json("dags", "list"), timeout=60, message=stack.logs)

        run = stack.json("dags", "trigger", "d", "--run-id", "r", "--wait", "--timeout", "60")
        doctor = {check["check"]: check["ok"] for check in stack.json("doctor")["checks"]}
        engine = database.create(settings, pool_size=1)
        with engine.connect() as connection:
            secure = connection.exec_driver_sql(
                "select s.ssl, a.application_name from pg_stat_ssl s join pg_stat_activity a using (pid)"
                " where a.application_name like 'paceline%%'"
            ).all()
        engine.dispose()

        assert {task["state"] for task in run["tasks"]} == {"success"}, stack.logs()
        assert doctor["database"] and doctor["broker"]
        assert {name for _, name in secure} >= {"paceline scheduler", "paceline worker"}
        assert all(encrypted for encrypted, _ in secure)
    assert proxy.taken > 5 and proxy.refused == 0


def test_publisher_wakeups_and_rescue_check_the_certificate(proxy: TlsProxy, made: Certificates) -> None:
    message = Message(ti_id=1, dispatch_id="x", queue="q", dag_id="d", run_id="r", task_id="t")
    good = Settings(broker=Broker(url=broker_url(proxy, made.ca)))

    publisher.Publisher(good).publish([message])

    broker = client(good.broker_url)
    assert dispatch_ids_in_broker(broker, {"q"}) == {"x"}
    sender = wakeups.Wakeups(good)
    assert sender.wake("queue")
    sender.close()
    no_authority = Settings(broker=Broker(url=broker_url(proxy, None)))
    with pytest.raises(publisher.PUBLISH_ERRORS, match="CERTIFICATE_VERIFY_FAILED"):
        publisher.Publisher(no_authority).publish([message])
    for ca in (made.other_ca, None):
        bad = Settings(broker=Broker(url=broker_url(proxy, ca)))
        with pytest.raises(CredentialsError, match=r"^The connection to Redis is not secure: .*CERTIFICATE_VERIFY_FAILED"):
            check(bad)
    assert dispatch_ids_in_broker(broker, {"q"}) == {"x"}
    broker.close()


def test_a_database_that_cannot_be_trusted_ends_the_command_with_4(postgres: str, made: Certificates, tmp_path: Path) -> None:
    def check(url: str) -> tuple[int, str]:
        environment = {"PACELINE_HOME": str(tmp_path), "PACELINE_DATABASE_URL": url}
        done = CliRunner().invoke(paceline, ["db", "check"], env=environment)
        assert "p@ss" not in done.output and TLS_PASSWORD not in done.output
        return done.exit_code, done.stderr

    unmigrated = check(database_url(postgres, made.ca))
    wrong_ca = check(database_url(postgres, made.other_ca))
    no_file = check(database_url(postgres, tmp_path / "missing.pem"))
    wrong_host = check(database_url(postgres.replace("localhost", "127.0.0.2"), made.ca))
    plain = check(database_url(postgres, made.ca, mode="disable"))
    wrong_password = check(database_url(postgres, made.ca, password="wrong"))

    assert "has no Paceline tables" in unmigrated[1]
    assert wrong_ca[1].startswith("Error: The connection to PostgreSQL is not secure: ") and "verify failed" in wrong_ca[1]
    assert no_file[1].startswith("Error: The connection to PostgreSQL is not secure: ") and "missing.pem" in no_file[1]
    assert plain[1].startswith("Error: PostgreSQL rejects the connection: ") and "no encryption" in plain[1]
    assert wrong_password[1].startswith("Error: PostgreSQL rejects the connection: ")
    all_of_them: list[Any] = [unmigrated, wrong_ca, no_file, wrong_host, plain, wrong_password]
    assert [code for code, _ in all_of_them] == [4] * 6
    assert [text for _, text in all_of_them if text.count("\n") != 1] == []


@pytest.mark.parametrize("command", ["worker", "scheduler", "waiter"])
def test_no_process_waits_for_a_certificate_to_become_right(
    command: str, proxy: TlsProxy, made: Certificates, settings: Settings
) -> None:
    wrong = settings.model_copy(update={"broker": Broker(url=broker_url(proxy, made.other_ca))})
    with StackFactory(wrong) as factory:
        stack = factory(schedulers=0, workers=[])
        done = stack.cli(command, timeout=60)

    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("Error: The connection to Redis is not secure: ")
    assert "Traceback" not in done.stderr
