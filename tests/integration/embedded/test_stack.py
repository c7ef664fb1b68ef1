"""The whole stack as a user starts it: `paceline standalone` and `paceline demo`."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import textwrap
from pathlib import Path

import httpx
import psutil
import psycopg2
import pytest
from support.processes import is_running
from support.standalone import START_S, STOP_S, ask, demo, environment_of, standalone
from support.waiting import eventually

from paceline.exceptions import PacelineError
from scheduler.embedded import stack
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Database, Flower

pytestmark = pytest.mark.stack

#: Stands in for the flights pipeline: the same results, without Spark.
FLIGHTS = """
    import os
    from pathlib import Path
    from paceline import dag, task

    @task
    def first(run_id):
        folder = Path(os.environ["PACELINE_HOME"], "data", "flights", run_id)
        folder.mkdir(parents=True)
        {body}
        (folder / "carrier_delays.csv").write_text("carrier,flights,mean_dep_delay_min\\nUA,3,1.5\\n")

    @task
    def second(done):
        print("reported")

    @dag(schedule=None)
    def flights():
        second(first())

    flights()
"""
SLOW = """
    import os, time
    from pathlib import Path
    from datetime import timedelta
    from paceline import dag, task

    @task(retries=3, retry_delay=timedelta(seconds=1))
    def wait():
        home = Path(os.environ["PACELINE_HOME"])
        (home / "begun").write_text("yes")
        while not (home / "go").exists():
            time.sleep(0.05)

    @dag(schedule=None)
    def slow():
        wait()

    slow()
"""


#: The strongest access of a task: its worker's own connection.
CURIOUS = """
    import gc
    from paceline import dag, task

    @task
    def tries():
        from scheduler.store.worker.hot_path import HotPath
        (hot,) = [one for one in gc.get_objects() if isinstance(one, HotPath)]
        said = {}
        for statement in ("delete from dag", "delete from dag_run", "create table mine (x int)", "set role postgres"):
            try:
                hot.read(statement, ())
            except Exception as error:
                said[statement] = type(error).__name__
        said["is"] = hot.read("select current_user", ())[0][0]
        return said

    @dag(schedule=None)
    def curious():
        tries()

    curious()
"""


def write(dags, name, source):
    dags.mkdir(exist_ok=True)
    (dags / name).write_text(textwrap.dedent(source))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_all_in_order_and_leaves_nothing(short_folder, number):
    environment = environment_of(short_folder / "home", short_folder / "dags")
    write(short_folder / "dags", "slow.py", SLOW)
    with standalone(environment) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        second = subprocess.run(
            [*stack.PACELINE, "standalone"], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert second.returncode == 1
        assert f"already runs on {short_folder / 'home'} (process {process.pid})" in second.stderr

        process.send_signal(number)

        assert process.wait(STOP_S) == 0
        assert "Everything has ended." in process.stdout.read()
    assert not any(map(is_running, children))
    assert list((short_folder / "home" / "run").iterdir()) == []


@pytest.mark.long
def test_a_run_completes_after_the_parent_was_killed_with_sigkill(short_folder):
    home = short_folder / "home"
    environment = environment_of(home, short_folder / "dags")
    write(short_folder / "dags", "slow.py", SLOW)
    with standalone(environment) as process:
        children = psutil.Process(process.pid).children(recursive=True)
        eventually(lambda: '"slow"' in ask(environment, "dags", "list", "--json"), timeout=START_S)
        ask(environment, "dags", "trigger", "slow", "--run-id", "one")
        eventually((home / "begun").exists, timeout=START_S)
        process.kill()
    with standalone(environment) as process:
        assert not any(map(is_running, children))
        (home / "go").touch()
        eventually(lambda: _run(environment)["state"] == "success", timeout=START_S, message=lambda: str(_run(environment)))
        assert [(task["state"], task["try_number"]) for task in _run(environment)["tasks"]] == [("success", 2)]
        process.terminate()
        assert process.wait(STOP_S) == 0


def test_the_link_of_standalone_logs_in_once_the_api_runs_a_dag_and_each_role_has_its_own_rights(short_folder):
    home = short_folder / "home"
    environment = environment_of(home, short_folder / "dags")
    write(short_folder / "dags", "curious.py", CURIOUS)
    with standalone(environment) as process:
        (link,) = re.findall(r"http://\S+/auth/link\?key=\S+", "".join(process.output.split("\n ")))
        assert re.search(r"web account +admin +\S{15}", process.output)
        base = link.partition("/auth/")[0]
        with httpx.Client(base_url=base, timeout=30) as http:
            eventually(lambda: _answers(base), timeout=START_S)
            assert http.get(link).status_code == 303
            assert http.get("/api/v2/me").json()["username"] == "admin"
            assert http.get("/api/v2/dags/curious").status_code == 200, "`Ready.` comes after the DAG files were parsed"
            csrf = {"X-CSRF-Token": http.cookies["paceline_csrf"]}
            created = http.post("/api/v2/dags/curious/dagRuns", json={"dag_run_id": "one", "logical_date": None}, headers=csrf)
            assert created.status_code == 200, created.text
            eventually(lambda: http.get("/api/v2/dags/curious/dagRuns/one").json()["state"] == "success", timeout=START_S)
            source = http.get("/api/v2/dagSources/curious", params={"version_number": 1}).json()["content"]
            assert source == (short_folder / "dags" / "curious.py").read_text()
        assert httpx.get(link).status_code == 401
        with contextlib.closing(psycopg2.connect(host=str(home / "run"), user="postgres", dbname="paceline")) as connection:
            with connection.cursor() as cursor:
                cursor.execute("select value from xcom where key = 'return_value'")
                (results,) = cursor.fetchall()
                cursor.execute(
                    "select distinct application_name, usename from pg_stat_activity where application_name ~ '^paceline '"
                )
                roles = dict(cursor.fetchall())
        process.terminate()
        assert process.wait(STOP_S) == 0

    assert results[0].pop("is") == "paceline_worker"
    assert results[0] == dict.fromkeys(
        ("delete from dag", "delete from dag_run", "create table mine (x int)", "set role postgres"), "InsufficientPrivilege"
    )
    # A waiter's connections bear the name of a worker's.
    assert roles["paceline worker"] == "paceline_worker"
    assert roles["paceline scheduler"] == "paceline_scheduler"
    assert roles["paceline web"] == "paceline_web"


def _answers(base):
    try:
        return httpx.get(f"{base}/alive").status_code == 200
    except httpx.HTTPError:
        return False


def test_the_environment_of_each_process_has_no_secrets_of_other_processes(tmp_path):
    own = {"PACELINE_WORKER_DATABASE_URL": "postgresql://w:1@h/d"}
    key = {"PACELINE_CORE_FERNET_KEY": "k"}
    of_web = {"PACELINE_WEB_DATABASE_URL": "postgresql://w:4@h/d", "PACELINE_OIDC_CLIENT_SECRET": "5"}
    both = {"PACELINE_BROKER_URL": "redis://h", "PATH": "/bin"}
    whole = {"PACELINE_DATABASE_URL": "postgresql://s:2@h/d", "PACELINE_SMTP_PASSWORD": "3"} | own | key | both

    commands = stack.stack_commands(
        whole | of_web, schedulers=1, workers=[("default", 1)], waiters=1, flower=True, web=Settings().web
    )
    without_role = stack.stack_commands(
        {"PACELINE_DATABASE_URL": "postgresql://s:2@h/d"}, schedulers=0, workers=[("default", 1)], waiters=1
    )

    assert {command.name: command.environment for command in commands} == {
        "scheduler-1": whole, "worker-1": own | key | both, "waiter-1": own | key | both, "flower": both,
        "web": of_web | key | both,
    }  # fmt: skip
    assert all("PACELINE_DATABASE_URL" in one.environment for one in without_role)


def _run(environment):
    return json.loads(ask(environment, "runs", "show", "slow", "one", "--json", ok=(0, 1)))


def test_the_demo_shows_the_result_and_where_it_is(short_folder):
    home = short_folder / "home"
    write(short_folder / "dags", "flights.py", FLIGHTS.format(body="pass"))

    output = demo(environment_of(home, short_folder / "dags"))

    (result,) = (home / "data" / "flights").iterdir()
    assert "UA       3" in output
    assert f"Report: {result / 'report.html'}" in output
    assert "2 tasks ran in " in output
    assert "1 of them were queued by fast-follow, by the worker that ran the task before it." in output


@pytest.mark.long
def test_a_failed_demo_shows_the_end_of_the_log_and_exits_1(short_folder):
    write(short_folder / "dags", "flights.py", FLIGHTS.format(body="print('reading'); raise ValueError('no such airport')"))

    output = demo(environment_of(short_folder / "home", short_folder / "dags"), ok=1)

    assert "first failed: " in output
    assert "reading" in output
    assert "no such airport" in output


def test_a_demo_whose_dag_file_is_broken_reports_it_immediately(short_folder):
    write(short_folder / "dags", "flights.py", "from paceline import dag\n\ndef broken(:\n")
    environment = environment_of(short_folder / "home", short_folder / "dags")

    done = subprocess.run([*stack.PACELINE, "demo"], env=environment, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 1
    assert "flights.py cannot be read: " in done.stderr


def test_a_taken_port_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        assert stack.free_port("127.0.0.1", wanted) not in (0, wanted)


@pytest.mark.parametrize("section", ["FLOWER", "WEB"])
def test_a_taken_port_that_the_settings_name_is_refused(short_folder, section):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        environment = environment_of(short_folder / "home", short_folder / "dags") | {f"PACELINE_{section}_PORT": str(port)}

        assert f"Port {port} of 127.0.0.1 is taken: set PACELINE_{section}_PORT to another." in refused(environment)

    assert not (short_folder / "home").exists()


def test_a_full_disk_is_named_before_anything_is_started(short_folder):
    # /proc has no free space.
    assert "Nothing can be started: The disk of /proc " in refused(environment_of(Path("/proc/home"), short_folder / "dags"))


def refused(environment):
    """What a stack that does not start says."""
    said = []
    with pytest.raises(PacelineError) as error, stack.running_stack(Settings.load(environment), say=said.append, web=True):
        pass
    return str(error.value)


def test_children_read_exactly_the_parents_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CORE_PARALLELISM", "7")
    settings = Settings(paths=Paths(home=tmp_path), database=Database(pool_size=9), flower=Flower(port=1234))

    found = Settings.load(stack.environment_for(settings))

    assert (found.home, found.dags_folder) == (settings.home, settings.dags_folder)
    assert (found.database_url, found.broker_url) == (settings.database_url, settings.broker_url)
    assert (found.core.parallelism, found.database.pool_size, found.flower.port) == (256, 9, 1234)


@pytest.mark.long
def test_the_stack_of_a_test_runs_its_dags(stack_factory):
    source = FLIGHTS.format(body="pass")
    running = stack_factory({"flights.py": textwrap.dedent(source)}, schedulers=1, workers=[("default", 1)])
    eventually(
        lambda: any(dag["dag_id"] == "flights" for dag in running.json("dags", "list")), timeout=START_S, message=running.logs
    )

    done = running.cli("dags", "trigger", "flights", "--run-id", "one", "--wait", "--timeout", "60")

    assert done.returncode == 0, done.stderr + running.logs()
    running.stop()
    assert not running.supervisor.names()
