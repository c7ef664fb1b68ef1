"""Passwords of database, broker and email and the Fernet key appear in no log, message, table, command line or process."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from click.testing import CliRunner
from support.servers import running_redis
from support.stacks import Stack, StackFactory
from support.waiting import eventually

from scheduler.cli import paceline
from scheduler.embedded import stack as stacks
from scheduler.settings import Settings
from scheduler.settings.sections import Broker
from scheduler.store.db import database

DATABASE, BROKER, MAIL, KEY = "Db5ecret-9f", "Br0ker5ecret-7a", "Ma1lSecret-3c", "x7Yk0o5wq0Tn0m1b3uGZb0o2m6mEWW2zq8u3cQm2x1E="
SECRETS = (DATABASE, BROKER, MAIL, KEY)
NOBODY = 65534

DAG = """
import os, subprocess
from datetime import datetime, timedelta, timezone
from paceline import DAG, BaseOperator, task
from paceline.operators import BashOperator, PythonOperator
from paceline.sensors import DateTimeSensor
from paceline.triggers import BaseTrigger, TriggerEvent

def seen(what):
    print(what, dict(os.environ))
    for pid in ("self", os.getppid()):
        try:
            print(open(f"/proc/{pid}/environ").read(), open(f"/proc/{pid}/cmdline").read())
        except OSError as error:
            print(error)
    subprocess.run(["sh", "-c", "env; cat /proc/self/environ /proc/$PPID/environ; ps axww 2>/dev/null; true"])

seen("reading the file")

def told(context):
    seen("callback")
    raise RuntimeError("callback fails: " + str(dict(os.environ)))

def fails():
    seen("task")
    raise ValueError(str(dict(os.environ)))

class Looks(BaseTrigger):
    def serialize(self):
        return f"{type(self).__module__}.{type(self).__qualname__}", {}

    async def run(self):
        seen("in the waiter")
        yield TriggerEvent(str(dict(os.environ)))

class Defers(BaseOperator):
    def execute(self, context):
        self.defer(trigger=Looks(), method_name="resumed")

    def resumed(self, context, event):
        print("trigger", event)

with DAG("d", schedule=None, on_failure_callback=told):
    Defers(task_id="looks")
    PythonOperator(task_id="python", python_callable=fails, on_failure_callback=told)
    BashOperator(task_id="shell", bash_command="env; cat /proc/self/environ /proc/$PPID/environ; exit 1")
    DateTimeSensor(task_id="deferred", target_time=datetime.now(timezone.utc) + timedelta(seconds=2), deferrable=True)
"""
BROKEN = """
import os
from paceline import DAG
raise RuntimeError(str(dict(os.environ)) + open("/proc/self/environ").read() + open(f"/proc/{os.getppid()}/environ").read())
"""


@pytest.fixture
def secretive(settings: Settings, short_folder: Path) -> Iterator[Settings]:
    """Settings with a password in each URL; PostgreSQL here trusts every client on its socket, so it accepts any."""
    with running_redis(short_folder / "redis") as server:
        with contextlib.closing(redis.Redis(unix_socket_path=str(server.embedded.socket))) as client:
            client.config_set("requirepass", BROKER)
        with_password = settings.database_url.replace("postgres@", f"postgres:{DATABASE}@")
        assert DATABASE in with_password
        broker = f"redis+socket://:{BROKER}@{server.embedded.socket}?virtual_host=0"
        yield settings.model_copy(
            update={"database": settings.database.model_copy(update={"url": with_password}), "broker": Broker(url=broker)}
        )


def leaks(texts: dict[str, str]) -> list[tuple[str, str, str]]:
    found = []
    for place, text in texts.items():
        for secret in SECRETS:
            if secret in text:
                at = text.index(secret)
                found.append((place, secret, text[max(0, at - 80) : at + 20]))
    return found


def everything_stored(settings: Settings) -> dict[str, str]:
    """Tables, Redis, and all files under home."""
    texts = {str(path): path.read_text(errors="replace") for path in settings.home.rglob("*") if path.is_file()}
    engine = database.create(settings, pool_size=1)
    with engine.connect() as connection:
        names = connection.exec_driver_sql("select tablename from pg_tables where schemaname = 'public'").scalars().all()
        for name in names:
            texts[name] = "\n".join(connection.exec_driver_sql(f"select t::text from {name} t").scalars())
    engine.dispose()
    with contextlib.closing(
        redis.Redis(unix_socket_path=settings.broker_url.split("@")[1].split("?")[0], password=BROKER)
    ) as client:
        texts |= {f"redis {key!r}": str(client.dump(key)) for key in client.keys("*")}
    return texts


def processes(stack: Stack) -> dict[str, str]:
    """Command line of every process of the stack, and its environment where the kernel lets us read that."""
    texts = {}
    for name in stack.supervisor.names():
        guardian = psutil.Process(stack.pid(name)).parent()
        assert guardian is not None
        for child in [guardian, *guardian.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
                command = child.cmdline()
                environment = ""
                with contextlib.suppress(PermissionError):  # closed to us too, where we may not trace
                    environment = Path(f"/proc/{child.pid}/environ").read_text()
                texts[f"{name}: {command[:6]}"] = str(command) + environment
    return texts


def test_a_stack_shows_its_secrets_nowhere(secretive: Settings, tmp_path: Path) -> None:
    secret_env = {"PACELINE_SMTP_PASSWORD": MAIL, "PACELINE_CORE_FERNET_KEY": KEY, "PACELINE_SMTP_HOST": "127.0.0.1"}
    with StackFactory(secretive) as factory:
        stack = factory(
            {"d.py": DAG, "broken.py": BROKEN},
            schedulers=1,
            workers=[("default", 2)],
            waiters=1,
            env=secret_env | {"MARKER": "seen"},
        )
        eventually(lambda: stack.json("dags", "list"), timeout=60, message=stack.logs)
        run = stack.json("dags", "trigger", "d", "--run-id", "r", "--wait", "--timeout", "60")
        eventually(lambda: len(stack.json("notices", "list")) == 0 or _failed(stack), timeout=60, message=stack.logs)
        eventually(lambda: stack.json("dags", "errors"), timeout=60, message=stack.logs)

        printed_texts = {
            " ".join(arguments): CliRunner().invoke(paceline, arguments, env=stack.env).output
            for arguments in (
                ["config", "show"], ["config", "show", "--json"], ["config", "check"], ["config", "get", "database.url"],
                ["config", "get", "broker.url"], ["config", "get", "smtp.password"], ["config", "get", "core.fernet_key"],
                ["config", "get", "worker.database_url"], ["doctor"], ["doctor", "--json"], ["dags", "errors", "--json"],
                ["runs", "show", "d", "r", "--json"], ["notices", "list", "--json"], ["workers", "list", "--json"],
                ["--debug", "runs", "show", "d", "nothing"],
            )
        }  # fmt: skip
        in_processes = processes(stack)
        logs = stack.logs()

    states = {task["task_id"]: task["state"] for task in run["tasks"]}
    assert states == {"python": "failed", "shell": "failed", "deferred": "success", "looks": "success"}
    stored = everything_stored(secretive)
    printed = "".join(stored.values())
    missing = [what for what in ("reading the file", "callback", "task", "trigger") if f"{what} {{" not in printed]
    assert missing == [], "the author's code did not run"
    assert printed.count("MARKER") > 5
    assert len(in_processes) >= 7
    assert leaks(stored) + leaks(printed_texts) + leaks(in_processes) + leaks({"logs": logs}) == []


def _failed(stack: Stack) -> bool:
    return all(one.get("ended_at") or one.get("error") for one in stack.json("notices", "list"))


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"PACELINE_DATABASE_URL": f"postgresql://ann:{DATABASE}@127.0.0.1:1/x"}, 4),
        ({"PACELINE_DATABASE_URL": f"postgresql://ann:{DATABASE}@nowhere.invalid/x"}, 4),
        ({"PACELINE_DATABASE_URL": f"postgresql://ann:{DATABASE}@127.0.0.1:notaport/x"}, 4),
        ({"PACELINE_DATABASE_URL": f"postgresql://ann:{DATABASE}@127.0.0.1/x?nonsense=1"}, 4),
        ({"PACELINE_DATABASE_URL": f"postgresql://ann:{DATABASE}@[::1/x"}, 2),
        ({"PACELINE_DATABASE_URL": f"mysql://ann:{DATABASE}@127.0.0.1/x"}, 2),
        ({"PACELINE_DATABASE_URL": f"ann:{DATABASE}@127.0.0.1/x"}, 2),
        ({"PACELINE_DATABASE_URL": f"postgresql://127.0.0.1:1/x?user=ann&password={DATABASE}"}, 4),
        ({"PACELINE_BROKER_URL": f"redis://:{BROKER}@127.0.0.1:1/0"}, 0),
        ({"PACELINE_BROKER_URL": f"redis://:{BROKER}@127.0.0.1:notaport/0"}, 0),
        ({"PACELINE_BROKER_URL": f"http://:{BROKER}@127.0.0.1/0"}, 2),
        ({"PACELINE_CORE_FERNET_KEY": KEY[:-3]}, 2),
        ({"PACELINE_SMTP_PASSWORD": MAIL, "PACELINE_SMTP_PORT": "x"}, 2),
        ({"PACELINE_WORKER_DATABASE_URL": f"http://w:{DATABASE}@x/y"}, 2),
    ],
)
def test_errors_about_urls_hold_no_password(wrong: dict[str, str], code: int, settings: Settings) -> None:
    environment = {
        "PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
        "PACELINE_DATABASE_URL": settings.database_url, "PACELINE_BROKER_URL": settings.broker_url,
    } | wrong  # fmt: skip
    for arguments in (["db", "check"], ["doctor"], ["--debug", "doctor"], ["--debug", "db", "check"], ["config", "show"]):
        done = CliRunner().invoke(paceline, arguments, env=environment)

        assert leaks({str(arguments): done.output}) == []
        assert KEY[:-3] not in done.output
        if arguments == ["db", "check"]:
            assert done.exit_code == code
        if "--debug" not in arguments:
            assert "Traceback" not in done.output


#: A DAG file that is being read as long as the test looks.
HOLDS = """
import os, time
from paceline import DAG
while not os.path.exists({done!r}):
    time.sleep(0.05)
"""
#: Root may read every process. Without these capabilities it may read as any user does: its own programs, if they are dumpable.
WITHOUT_PTRACE = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON = 24, 19, 21, 38
if os.geteuid() == 0:
    for capability in (CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
LOOKS = """
import sys
for pid in sys.argv[1:]:
    for what in ("environ", "mem", "fd/0", "fd/1"):
        try:
            open(f"/proc/{pid}/{what}", "rb").close()
        except (PermissionError, FileNotFoundError):
            continue
        print(pid, what)
"""


def without_ptrace(*command: str) -> list[str]:
    return [sys.executable, "-c", WITHOUT_PTRACE, *command]


@pytest.mark.long
@pytest.mark.stack
def test_no_process_of_a_stack_can_be_read_by_a_program_of_its_user(short_folder: Path) -> None:
    """Neither environment nor memory nor pipes, of all processes of a stack and of their supervisors."""
    dags, done, home = short_folder / "dags", short_folder / "done", short_folder / "home"
    dags.mkdir()
    (dags / "holds.py").write_text(HOLDS.format(done=str(done)))
    env = {"PATH": os.environ["PATH"], "PACELINE_HOME": str(home), "PACELINE_DAGS_FOLDER": str(dags), "PACELINE_FLOWER_PORT": "0",
           "PACELINE_WEB_PORT": "0"}  # fmt: skip
    with subprocess.Popen(
        without_ptrace(*stacks.PACELINE, "standalone"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as stack:
        try:
            assert stack.stdout is not None
            lines = list(itertools.takewhile(lambda line: not line.startswith("Ready."), stack.stdout))
            web = next(line.split()[1] for line in lines if re.match(r"web +http", line))
            wanted = {"scheduler", "worker", "waiter", "flower", "web", "guardian.py", "scheduler.dagfiles.fork_server"}
            eventually(lambda: wanted <= set(programs(stack.pid).values()), timeout=60, message=lambda: str(programs(stack.pid)))
            eventually(lambda: answers(f"{web}/alive"), timeout=60)
            eventually(lambda: len(parsers(stack.pid)) >= 2, timeout=60, message=lambda: str(programs(stack.pid)))
            control = subprocess.Popen(without_ptrace("/bin/sleep", "600"), stdin=subprocess.DEVNULL)
            eventually(lambda: Path(f"/proc/{control.pid}/comm").read_text() == "sleep\n")
            readable: dict[int, str] = {}

            def none_of_ours_is_readable() -> bool:
                ours = programs(stack.pid)
                command = without_ptrace(sys.executable, "-c", LOOKS, str(control.pid), *map(str, ours))
                seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[::2]
                assert str(control.pid) in seen, "this test sees nothing at all"
                readable.clear()
                readable.update({int(pid): ours[int(pid)] for pid in seen if int(pid) in ours})
                return not readable

            # A program can be read from its start until it hides itself, so one that has just started is looked at again.
            eventually(none_of_ours_is_readable, timeout=30, message=lambda: str(readable))
            control.kill()
            control.wait()
        finally:
            done.touch()
            stack.terminate()
            stack.communicate(timeout=90)


def answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address) as answer:
        return bool(answer.status == 200)
    return False


def programs(stack: int) -> dict[int, str]:
    """The role of each of our processes, by its ID; servers have other programs."""
    found = {}
    for one in [psutil.Process(stack), *psutil.Process(stack).children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            words = one.cmdline()
            if words and "python" in Path(words[0]).name:
                known = [Path(word).name for word in words if Path(word).name in ROLES]
                found[one.pid] = known[0] if known else " ".join(words)
    return found


ROLES = {"standalone", "scheduler", "worker", "waiter", "flower", "web", "guardian.py", "scheduler.dagfiles.fork_server"}


def parsers(stack: int) -> list[int]:
    """The fork servers and their children."""
    return [pid for pid, role in programs(stack).items() if role == "scheduler.dagfiles.fork_server"]


#: Another user's process as if it had been started by that user: the change of user itself closes it.
AS_NOBODY = f"""
import ctypes, os, sys
from scheduler.process import hardening
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
ctypes.CDLL(None).prctl(hardening.PR_SET_DUMPABLE, 1, 0, 0, 0)
"""
CONCEALED = """
if sys.argv[1] == "closed":
    hardening.close()
if sys.argv[2] == "forget":
    hardening.forget()
print("ready", flush=True)
sys.stdin.read()
"""
PEEK = """
found = []
for what in ("environ", "mem", "maps"):
    try:
        with open(f"/proc/{sys.argv[1]}/{what}", "rb") as file:
            found.append(what + " " + str(b"Db5ecret" in (file.read() if what == "environ" else b"")))
    except PermissionError:
        found.append(what + " refused")
print(found)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of another user")
@pytest.mark.parametrize(
    ("closed", "forget", "expected"),
    [
        ("open", "keep", ["environ True", "mem False", "maps False"]),
        ("open", "forget", ["environ False", "mem False", "maps False"]),
        ("closed", "keep", ["environ refused", "mem refused", "maps refused"]),
    ],
)
def test_a_process_of_the_same_user_sees_neither_environment_nor_memory(closed: str, forget: str, expected: list[str]) -> None:
    environment = {"PACELINE_DATABASE_URL": DATABASE, "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [sys.executable, "-c", AS_NOBODY + CONCEALED, closed, forget],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"

        command = [sys.executable, "-c", AS_NOBODY + PEEK, str(process.pid)]
        peeked = subprocess.run(command, env={}, stdout=subprocess.PIPE, text=True, check=True)

        process.stdin.close()
    assert peeked.stdout.strip() == str(expected)
