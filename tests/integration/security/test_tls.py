"""PostgreSQL and Redis over TLS and with passwords, by their URLs alone. An untrusted server is refused in one sentence."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from support.servers import running_redis
from support.stacks import StackFactory
from support.tls import Certificates, TlsProxy, certificates, postgres_with_tls
from support.waiting import eventually

from paceline.exceptions import CredentialsError
from scheduler.cli import paceline
from scheduler.messaging import publisher, wakeups
from scheduler.messaging.message import Message
from scheduler.services.rescue import dispatch_ids_in_broker
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database

USER, PASSWORD, BROKER_PASSWORD = "paceline_tls", "p%40ss/word".replace("/", "%2F"), "br0ker%2Bpass"
DAG = """
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


def database_url(place: str, ca: Path, *, password: str = PASSWORD, mode: str = "verify-full") -> str:
    return f"postgresql://{USER}:{password}@{place}?sslmode={mode}&sslrootcert={ca}"


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
        stack = factory({"d.py": DAG}, schedulers=1, workers=[("default", 2)], waiters=1)
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

    broker = wakeups.client(good)
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
            wakeups.check(bad)
    assert dispatch_ids_in_broker(broker, {"q"}) == {"x"}
    broker.close()


def test_a_database_that_cannot_be_trusted_ends_the_command_with_4(postgres: str, made: Certificates, tmp_path: Path) -> None:
    def check(url: str) -> tuple[int, str]:
        environment = {"PACELINE_HOME": str(tmp_path), "PACELINE_DATABASE_URL": url}
        done = CliRunner().invoke(paceline, ["db", "check"], env=environment)
        assert "p@ss" not in done.output and PASSWORD not in done.output
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
