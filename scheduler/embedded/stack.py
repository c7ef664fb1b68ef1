"""A stack on one machine: the embedded servers, the schema, and schedulers, workers, a waiter, a web process and
Flower as supervised children.
"""

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from paceline.exceptions import ConflictError, PacelineError
from scheduler.embedded import checks, home
from scheduler.embedded.servers import embedded_servers
from scheduler.embedded.supervisor import Command, Supervisor
from scheduler.settings import Settings
from scheduler.settings.environment import is_setting
from scheduler.settings.model import environment_names
from scheduler.settings.sections import Flower, Web
from scheduler.store.accounts import accounts, logins
from scheduler.store.dags import files as dag_files
from scheduler.store.db import database, migrate

#: The `paceline` command. Without -P, a DAG folder as the working directory could shadow Paceline's packages.
PACELINE = (sys.executable, "-P", "-m", "scheduler.cli")
#: Stages of the processes. The embedded servers have the lowest stage, so they are stopped last.
FLOWER_STAGE, SCHEDULER_STAGE, WORKER_STAGE = 1, 2, 3
WEB_STAGE = FLOWER_STAGE
#: Seconds beyond worker.grace_sec in which a worker must exit. A worker needs up to 25 to return the tasks that it cannot finish.
WORKER_MARGIN_S = 30.0
SCHEDULER_GRACE_S = 20.0
#: Seconds beyond web.drain_timeout in which a web process must exit.
WEB_MARGIN_S = 5.0
#: Seconds for which the login link of a stack works, once.
LINK_S = 3600.0
PORTS_TRIED = 50
#: Seconds for which the start of a stack waits until the DAG files have been parsed.
PARSE_LIMIT_S = 60.0
POLL_S = 0.1
#: A second Ctrl-C within this time (seconds) is the same key press, sent by both the terminal and `make`.
SAME_KEY_S = 1.0
#: Removed for processes that run user code, if they have their own database URL, and for Flower, which needs no database.
SCHEDULERS_OWN = ("PACELINE_DATABASE_URL", "PACELINE_SMTP_PASSWORD", "PACELINE_SCHEDULER_PASSWORD")
#: Removed for all processes: only migrations connect as the owner of the tables.
OWNERS_OWN = ("PACELINE_DATABASE_OWNER_URL", "PACELINE_POSTGRES_PASSWORD")
#: Removed for all processes that are no web process: with the first, a task could sign a login.
WEBS_OWN = ("PACELINE_WEB_SIGNING_KEY", "PACELINE_WEB_DATABASE_URL", "PACELINE_WEB_PASSWORD", "PACELINE_OIDC_CLIENT_SECRET")
WORKERS_OWN = ("PACELINE_WORKER_DATABASE_URL", "PACELINE_WORKER_PASSWORD")
ENCRYPTION = ("PACELINE_CORE_FERNET_KEY",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A running stack."""

    settings: Settings
    supervisor: Supervisor
    flower_url: str
    #: user:password; None if the environment configures access to Flower.
    flower_login: str | None
    #: None if the stack runs without a web process. The link logs an administrator in once.
    web_url: str | None
    web_link: str | None
    #: Of the account `admin`, if this start created it.
    web_password: str | None


@contextlib.contextmanager
def running_stack(
    settings: Settings,
    *,
    say: Callable[[str], None],
    workers: Sequence[tuple[str, int]] | None = None,
    waiters: int = 1,
    web: bool = False,
    prepare: Callable[[Settings], None] | None = None,
) -> Iterator[Stack]:
    """Run a stack with two schedulers and Flower until the end of the block, then shut it down cleanly.

    Servers with a configured URL are not started.
    `workers` are pairs of queues and concurrency, by default one worker for the default queue and one for the Spark queues.
    `prepare` is called after the home is locked, before any process starts. ConflictError if another stack runs on the home.
    """
    with contextlib.ExitStack() as undo:
        _refuse_taken_ports(settings, web=web)
        _refuse_full_disk(settings, say)
        lock = undo.enter_context(home.lock(settings.home, say=say))
        if prepare is not None:
            prepare(settings)
        supervisor = undo.enter_context(Supervisor(settings.home / "logs", say=say, lock=lock))
        undo.enter_context(embedded_servers(settings, supervisor))
        password, key = _prepare_database(settings, say, web=web)
        # The processes must exit before the servers, which the context above stops.
        undo.callback(lambda: supervisor.close(lowest_stage=FLOWER_STAGE))
        settings = _with_addresses(settings, web=web)
        environment = environment_for(settings)
        login = flower_login(settings.home, environment)
        for command in stack_commands(
            environment,
            schedulers=2,
            workers=default_workers(settings) if workers is None else workers,
            waiters=waiters,
            flower=True,
            flower_login=login,
            web=settings.web if web else None,
            worker_grace_sec=settings.worker.grace_sec,
        ):
            supervisor.start(command)
        _note_addresses(settings, web=web)
        undo.callback((settings.home / checks.ADDRESSES).unlink, missing_ok=True)
        yield Stack(
            settings=settings,
            supervisor=supervisor,
            flower_url=settings.flower.local_url,
            flower_login=login,
            web_url=settings.web.local_url if web else None,
            web_link=f"{settings.web.local_url}/auth/link?key={key}" if web else None,
            web_password=password,
        )


def _with_addresses(settings: Settings, *, web: bool) -> Settings:
    """Settings with free ports for Flower and the web process, which link to each other."""
    flowers, webs = settings.flower, settings.web
    flowers = flowers.model_copy(update={"port": free_port(flowers.address, flowers.port)})
    if web:
        port = free_port(webs.address, webs.port)
        webs = webs.model_copy(update={"port": port, "flower_url": webs.flower_url or flowers.local_url})
        flowers = flowers.model_copy(update={"pages_url": flowers.pages_url or webs.local_url})
    return settings.model_copy(update={"flower": flowers, "web": webs})


def _refuse_taken_ports(settings: Settings, *, web: bool) -> None:
    """ConflictError if a port that the settings name is in use. A default port moves to the next free one."""
    sections: dict[str, Web | Flower] = {"flower": settings.flower} | ({"web": settings.web} if web else {})
    for name, section in sections.items():
        if "port" in section.model_fields_set and free_port(section.address, section.port) != section.port != 0:
            raise ConflictError(f"Port {section.port} of {section.address} is taken: set PACELINE_{name.upper()}_PORT to another.")


def _refuse_full_disk(settings: Settings, say: Callable[[str], None]) -> None:
    """Say that a disk is nearly full. PacelineError if it is full, because what follows would fail for less clear reasons."""
    for finding in checks.space(settings):
        if not finding.ok:
            say(f"{finding.message} {finding.fix}")
            if " has 0 " in finding.message:
                raise PacelineError(f"Nothing can be started: {finding.message} {finding.fix}")


def _note_addresses(settings: Settings, *, web: bool) -> None:
    """Note the addresses for `paceline doctor`, because a default port may have moved."""
    addresses = {"pid": os.getpid(), "flower": settings.flower.local_url} | ({"web": settings.web.local_url} if web else {})
    (settings.home / checks.ADDRESSES).write_text(json.dumps(addresses), encoding="utf-8")


def wait_for_dags(settings: Settings, files: Sequence[str], *, limit_s: float = PARSE_LIMIT_S) -> int:
    """Wait until each of these DAG files was parsed since its last change. Returns how many were not after `limit_s` seconds."""
    engine = database.create(settings, pool_size=1, application="paceline standalone")
    deadline = time.monotonic() + limit_s
    modified: dict[str, float] = {}
    for file in files:
        with contextlib.suppress(OSError):
            modified[file] = (settings.dags_folder / file).stat().st_mtime
    try:
        while (left := database.transact(engine, dag_files.not_parsed_since, modified)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left
    finally:
        engine.dispose()


def default_workers(settings: Settings, *, workers: int = 1) -> list[tuple[str, int]]:
    """Return `workers` for the default queue and one for both Spark queues, sized for this machine.

    The Spark worker is smaller, because each of its pool processes holds a JVM.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    spark = f"{settings.core.default_spark_queue},{settings.core.heavy_spark_queue}"
    return [(settings.core.default_queue, min(settings.worker.concurrency, 4 * cpus))] * workers + [(spark, max(1, cpus // 2))]


def stack_commands(
    environment: Mapping[str, str],
    *,
    schedulers: int,
    workers: Sequence[tuple[str, int]],
    waiters: int = 0,
    flower: bool = False,
    flower_login: str | None = None,
    web: Web | None = None,
    worker_grace_sec: float = 30.0,
) -> list[Command]:
    """Return the commands of a stack without its servers: scheduler-1, ..., worker-1, ..., waiter-1, ..., flower, web."""
    of_web = _without(environment, OWNERS_OWN + WORKERS_OWN)
    if "PACELINE_WEB_DATABASE_URL" in environment:
        of_web = _without(of_web, SCHEDULERS_OWN)
    environment = _without(environment, OWNERS_OWN + WEBS_OWN)
    of_scheduler: dict[str, Any] = {"stage": SCHEDULER_STAGE, "environment": environment, "grace_sec": SCHEDULER_GRACE_S}
    names = SCHEDULERS_OWN if "PACELINE_WORKER_DATABASE_URL" in environment else ()
    of_worker: dict[str, Any] = {"stage": WORKER_STAGE, "environment": _without(environment, names)}
    commands = [
        Command(name=f"scheduler-{number}", argv=(*PACELINE, "scheduler"), **of_scheduler) for number in range(1, schedulers + 1)
    ]
    for number, (queues, concurrency) in enumerate(workers, start=1):
        name, options = f"worker-{number}", ("-q", queues, "-c", str(concurrency))
        argv = (*PACELINE, "worker", *options, "--name", name)
        commands.append(Command(name=name, argv=argv, **of_worker, grace_sec=worker_grace_sec + WORKER_MARGIN_S))
    for number in range(1, waiters + 1):
        name = f"waiter-{number}"
        commands.append(Command(name=name, argv=(*PACELINE, "waiter", "--name", name), **of_worker))
    if flower:
        of_flower = _without(environment, SCHEDULERS_OWN + WORKERS_OWN + ENCRYPTION)
        if flower_login is not None:
            of_flower["FLOWER_BASIC_AUTH"] = flower_login
        commands.append(Command(name="flower", argv=(*PACELINE, "flower"), stage=FLOWER_STAGE, environment=of_flower))
    if web is not None:
        grace_s = web.drain_timeout + WEB_MARGIN_S
        commands.append(Command(name="web", argv=(*PACELINE, "web"), stage=WEB_STAGE, environment=of_web, grace_sec=grace_s))
    return commands


def _without(environment: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def environment_for(settings: Settings) -> dict[str, str]:
    """Return the environment for a child process. It yields exactly these settings in any working directory."""
    environment = {name: value for name, value in os.environ.items() if not is_setting(name)}
    for name, (section, key) in environment_names().items():
        part = getattr(settings, section)
        if key in part.model_fields_set and getattr(part, key) is not None:
            environment[name] = str(getattr(part, key))
    if settings.worker_database_url != settings.database_url:
        environment["PACELINE_WORKER_DATABASE_URL"] = settings.worker_database_url
    if settings.web_database_url != settings.database_url:
        environment["PACELINE_WEB_DATABASE_URL"] = settings.web_database_url
    # A killed child must not lose buffered output: its log is needed most then.
    environment["PYTHONUNBUFFERED"] = "1"
    return environment | {
        "PACELINE_HOME": str(settings.home),
        "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
        "PACELINE_DATABASE_URL": settings.database_url,
        "PACELINE_BROKER_URL": settings.broker_url,
    }


def free_port(address: str, wanted: int) -> int:
    """Return the first free port from `wanted` on, or any free port if `wanted` is 0 or the next ports are taken."""
    candidates = [] if wanted == 0 else [*range(wanted, min(wanted + PORTS_TRIED, 65536))]
    for port in [*candidates, 0]:
        with contextlib.suppress(OSError), socket.create_server((address, port)) as server:
            return int(server.getsockname()[1])
    return wanted


class _EndedError(BaseException):
    """Unwinds the block of `until_signalled`. It is not an Exception, so that no `except Exception` in the block catches it."""


@contextlib.contextmanager
def until_signalled(say: Callable[[str], None]) -> Iterator[None]:
    """Leave the block at SIGINT, SIGTERM or SIGHUP, so that it shuts down cleanly. A second Ctrl-C exits immediately.

    This is safe: the guardians detect that this process has exited, and kill its children.
    """
    stopped_at: float | None = None

    def end(number: int, _: FrameType | None) -> None:
        nonlocal stopped_at
        if stopped_at is None:
            stopped_at = time.monotonic()
            raise _EndedError
        if number == signal.SIGINT and time.monotonic() - stopped_at > SAME_KEY_S:
            os.write(2, b"\nEnding everything at once.\n")
            os._exit(128 + number)

    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    # An ignored signal (nohup, a background job of a script) stays ignored.
    before = {number: signal.signal(number, end) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    except _EndedError:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if stopped_at is not None:
            say("Everything has ended.")


def _prepare_database(settings: Settings, say: Callable[[str], None], *, web: bool) -> tuple[str | None, str | None]:
    """Migrate the schema.

    With `web`, returns the password of the first account, if this creates it, and the key of a link that logs an administrator in
    once.
    """
    engine = database.create(settings.as_owner(), pool_size=1, application="paceline standalone")
    try:
        database.wait(engine, say)
        migrate.migrate_as_set(engine, settings)
        if not web:
            return None, None
        password = database.transact(engine, accounts.create_first)
        key, _ = database.transact(
            engine, lambda connection: logins.issue(connection, accounts.administrator(connection), "link", lasts_s=LINK_S)
        )
        return password, key
    finally:
        engine.dispose()


FLOWER_USER = "paceline"
#: Flower's own settings of access control. If one is set, Paceline adds no login.
FLOWER_ACCESS = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH", "FLOWER_CONF")


def flower_login(home: Path, environ: Mapping[str, str]) -> str | None:
    """Return user:password of this home's Flower, generated at its first start. None if the environment configures access."""
    if any(environ.get(name) for name in FLOWER_ACCESS):
        return None
    path = home / "flower.password"
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{secrets.token_urlsafe(16)}\n")
    return f"{FLOWER_USER}:{path.read_text(encoding='utf-8').strip()}"
