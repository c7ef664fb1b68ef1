"""Variables and connections in a real worker: they reach the task, and their secrets stay out of everything else."""

import json
from typing import Any

import pytest
from cryptography.fernet import Fernet

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.messaging.brokers import client
from scheduler.settings import Settings
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher

pytestmark = pytest.mark.own_program

PASSWORD, TOKEN, KEY, VALUE = "pa55w0rd/with:signs", "extra-token-1234", "variable-secret-99", "not secret at all"
SECRETS = (PASSWORD, TOKEN, KEY)

LEAKY = """
import os, subprocess, sys, logging
@dag(schedule=None, params={"day": Param(1, type="integer")})
def d():
    @task
    def leak(conn=None, var=None, params=None):
        database = conn.db
        print("python", database.password, database.get_uri())
        os.write(1, b"descriptor " + database.password.encode() + b"\\n")
        logging.getLogger("mine").warning("logged %s", database.extra_dejson["api_token"])
        subprocess.run(["sh", "-c", "echo subprocess $S; echo also $S >&2"], env={"S": Variable.get("my_password")}, check=True)
        print("plain", var.value.plain, var.value.get("nothing", "default"), var.json.settings["depth"], params.day)
        return database.host
    shell = BashOperator(
        task_id="shell",
        bash_command="env | grep ^S=; echo templated {{ conn.db.login }} {{ var.json.settings.depth }} {{ params.day }}",
        env={"S": "{{ conn.db.password }}"},
    )
    @task
    def fails():
        raise ValueError(f"cannot log in as {Connection.get('db').password}, {Variable.get('my_password')}")
    @task
    def without():
        print("nothing to hide")
    leak() >> [shell, fails(), without()]
d()
"""


def stored(settings: Settings, engine: Any) -> None:
    cipher = Cipher.of(settings, make=True)
    values = [("my_password", KEY, None), ("plain", VALUE, None), ("settings", '{"depth": 3}', None)]
    transact(engine, variables.set_variables, values, cipher)
    extra = json.dumps({"api_token": TOKEN, "region": "north"})
    connection = Connection(conn_id="db", conn_type="postgres", host="db.example", login="ann", password=PASSWORD, extra=extra)
    transact(engine, connections.add, [connection], cipher)


def test_secrets_reach_the_task_and_nothing_else(shared_bench: Any) -> None:
    stored(shared_bench.settings, shared_bench.scenario.engine)
    shared_bench.run(LEAKY)

    assert shared_bench.scenario.states() == {"leak": "success", "shell": "success", "fails": "failed", "without": "success"}
    log = shared_bench.log("leak")
    assert "python *** postgres://ann:***@db.example/" in log
    assert "descriptor ***\n" in log
    assert "logged ***\n" in log
    assert "subprocess ***\nalso ***\n" in log
    assert f"plain {VALUE} default 3 1\n" in log
    assert log.splitlines()[-1].endswith(" s") and "success after" in log.splitlines()[-1]
    assert "S=***\ntemplated ann 3 1\n" in shared_bench.log("shell")
    assert shared_bench.column("fails", "reason") == "ValueError: cannot log in as ***, ***"
    assert "ValueError: cannot log in as ***, ***" in shared_bench.log("fails")
    assert "nothing to hide\n" in shared_bench.log("without")
    assert "db.example" in dump(shared_bench)
    everything = [path.read_text() for path in shared_bench.settings.logs_folder.rglob("*.log")] + [
        shared_bench.output,
        dump(shared_bench),
        sent(shared_bench),
    ]
    assert [(secret, text) for secret in SECRETS for text in everything if secret in text] == []


def dump(bench: Any) -> str:
    """Every row of every table as text."""
    tables = [row[0] for row in bench.scenario.rows("select tablename from pg_tables where schemaname = 'public'")]
    assert {"variable", "connection", "task_instance"} <= set(tables)
    return "\n".join(str(row) for name in tables for row in bench.scenario.rows(f"select t::text from {name} t"))


def sent(bench: Any) -> str:
    """All that Redis holds."""
    broker: Any = client(bench.settings.broker_url)
    read = {b"list": lambda key: broker.lrange(key, 0, -1), b"hash": broker.hgetall, b"string": broker.get, b"set": broker.smembers}
    return "\n".join(str(read[kind](key)) for key in broker.keys("*") if (kind := broker.type(key)) in read)


def test_the_environment_comes_before_the_store_and_is_not_passed_to_programs(bench: Any) -> None:
    stored(bench.settings, bench.scenario.engine)
    uri = "http://u:from-the-environment@web:80/?a=b"
    bench.worker(PACELINE_VAR_PLAIN="overridden", PACELINE_CONN_DB=uri, PACELINE_CONN_OTHER='{"conn_type": "x", "host": "o"}')

    bench.run("""
        import os
        @dag(schedule=None)
        def d():
            @task
            def t(conn=None, var=None):
                print(var.value.plain, conn.db.host, conn.db.port, conn.db.extra_dejson, conn.other.host, conn.get("none", "no"))
                return sorted(name for name in os.environ if name.startswith(("PACELINE_CONN", "PACELINE_VAR", "PACELINE_CORE_F")))
            t()
        d()
    """)

    assert "overridden web 80 {'a': 'b'} o no\n" in bench.log("t")
    assert bench.scenario.rows("select value from xcom") == [([],)]


def test_a_missing_variable_or_connection_is_one_sentence(shared_bench: Any) -> None:
    stored(shared_bench.settings, shared_bench.scenario.engine)
    shared_bench.run("""
        @dag(schedule=None)
        def d():
            @task
            def variable():
                Variable.get("nothing")
            @task
            def connection(conn=None):
                conn.nothing.host
            @task
            def no_json(var=None):
                var.json.plain
            variable(), connection(), no_json()
        d()
    """)

    reasons = [str(shared_bench.column(name, "reason")) for name in ("variable", "connection", "no_json")]
    assert reasons == [
        "NotFoundError: There is no variable 'nothing'; create it with `paceline variables set nothing VALUE`,"
        " or set PACELINE_VAR_NOTHING.",
        "NotFoundError: There is no connection 'nothing'; create it with"
        " `paceline connections add nothing --conn-uri URI`, or set PACELINE_CONN_NOTHING.",
        "PacelineError: Variable 'plain' is not JSON: read it as a string, or set it to JSON.",
    ]


def test_a_task_can_set_and_delete_variables(shared_bench: Any) -> None:
    shared_bench.run("""
        @dag(schedule=None)
        def d():
            @task
            def t():
                Variable.set("made", {"a": [1]}, serialize_json=True)
                Variable.set("gone", "x")
                Variable.delete("gone")
                return [Variable.get("made", deserialize_json=True), Variable.get("gone", default=None)]
            t()
        d()
    """)

    assert shared_bench.scenario.rows("select value from xcom") == [([{"a": [1]}, None],)]
    assert shared_bench.scenario.rows("select key from variable") == [("made",)]
    assert (shared_bench.settings.home / "fernet.key").stat().st_mode & 0o777 == 0o600


def test_much_output_is_masked_whole_and_the_next_task_has_its_own_log(shared_bench: Any) -> None:
    stored(shared_bench.settings, shared_bench.scenario.engine)
    shared_bench.run("""
        @dag(schedule=None)
        def d():
            @task
            def big(conn=None):
                password = conn.db.password
                for _ in range(20_000):
                    print("0123456789" * 10, password)
            @task
            def after():
                print("the next task has its own log")
            big() >> after()
        d()
    """)

    log = shared_bench.log("big")
    assert log.count("0123456789 ***\n") == 20_000
    assert PASSWORD not in log
    assert "success after" in shared_bench.last_line("big")
    assert "the next task has its own log\n" in shared_bench.log("after")


def with_keys(settings: Settings, keys: str) -> Settings:
    return settings.model_copy(update={"core": settings.core.model_copy(update={"fernet_key": keys})})


def test_keys_are_rotated(bench: Any) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    engine = bench.scenario.engine
    (bench.settings.home / "fernet.key").unlink()
    stored(with_keys(bench.settings, old), engine)

    both = Cipher.of(with_keys(bench.settings, f"{new},{old}"), make=True)
    assert transact(engine, variables.rotate, both) + transact(engine, connections.rotate, both) == 4

    only_new = Cipher.of(with_keys(bench.settings, new), make=False)
    assert transact(engine, variables.variable, "my_password", only_new)["value"] == KEY
    assert transact(engine, connections.connection, "db", only_new).password == PASSWORD
    with pytest.raises(PacelineError, match="Variable 'plain' was encrypted with another key"):
        transact(engine, variables.variable, "plain", Cipher.of(with_keys(bench.settings, old), make=False))
    assert not (bench.settings.home / "fernet.key").exists()
