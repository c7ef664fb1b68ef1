"""The checks of `paceline doctor`, except that of Java. Each yields findings: a good result, or a problem with a fix."""

import contextlib
import importlib.metadata
import json
import os
import platform
import ssl
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from paceline.exceptions import PacelineError, UnreachableError
from scheduler.dagfiles import bundle_files
from scheduler.dagfiles.bundle_files import BundleRefusedError
from scheduler.settings import Settings
from scheduler.settings.model import masked
from scheduler.store.dags import bundle_versions, bundles
from scheduler.store.db import database, migrate, roles
from scheduler.store.db.database import transact
from scheduler.store.db.pooler import PoolerError
from scheduler.store.read import operations, reads
from scheduler.store.secrets import connections, variables
from scheduler.store.upkeep import processes
from scheduler.store.worker import deferrals

#: The file in which a stack on one machine notes its addresses and its process ID.
ADDRESSES = "addresses.json"
#: Libraries whose versions are shown.
LIBRARIES = ("paceline", "celery", "kombu", "redis", "sqlalchemy", "psycopg2-binary", "pyspark", "flower")
OLDEST_POSTGRES = 14
#: Seconds for the web process to answer.
WEB_S = 3.0
#: Seconds to connect with the URLs of other processes.
OTHER_S = 3
OLDEST_REDIS = (6, 2)
#: With less, PostgreSQL soon stops, and logs lose lines.
LEAST_FREE_MIB = 32
LEAST_FREE_INODES = 1000
#: Hosts that are this machine.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
#: Maximum number of import errors and similar problems that are listed one by one.
SPELLED_OUT = 5
#: Converts an error of the database or the broker; None for any other error.
Known = Callable[[Exception], PacelineError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check. If it is not `ok`, `fix` is the instruction to solve the problem."""

    check: str
    ok: bool
    message: str
    fix: str = ""


def good(check: str, message: str) -> Finding:
    return Finding(check=check, ok=True, message=message)


def bad(check: str, message: str, fix: str) -> Finding:
    return Finding(check=check, ok=False, message=message, fix=fix)


def servers(settings: Settings, known: Known) -> list[Finding]:
    """Check the broker, the web process and the database. If the database is unreachable, the checks that need it are skipped."""
    findings = [*_guarded("broker", lambda: _redis(settings), known), *web(settings)]
    engine = database.create(settings, pool_size=1, application="paceline doctor")
    try:
        reachable = list(_guarded("database", lambda: postgres(engine), known))
        findings += reachable
        if all(finding.ok for finding in reachable):
            findings += _guarded("database", lambda: [*server_space(engine, settings), *running(engine, settings)], known)
    finally:
        engine.dispose()
    return [*findings, *poolers(settings)]


def versions() -> dict[str, str]:
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def machine(settings: Settings) -> Iterator[Finding]:
    """Check the folders that this process reads and writes."""
    folder = settings.dags_folder
    if not folder.is_dir():
        yield bad("dags folder", f"{folder} is not a folder.", "Create it, or set PACELINE_DAGS_FOLDER.")
    elif not os.access(folder, os.R_OK | os.X_OK):
        yield bad("dags folder", f"{folder} cannot be read.", "Grant this user read permission.")
    else:
        yield _dags_folder(folder, settings)
    for name, path in {"home": settings.home, "logs folder": settings.logs_folder}.items():
        nearest = next(place for place in (path, *path.parents) if place.exists())
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            yield good(name, str(path))
        else:
            yield bad(name, f"{path} cannot be written.", f"Grant this user write permission on {nearest}, or set another.")
    yield from space(settings)
    if settings.logs.url is not None:
        yield _file_system("log copies", "logs.url", settings.logs.url)
    if settings.bundles.code_url is not None:
        yield _file_system("code", "bundles.code_url", settings.bundles.code_url)


def _dags_folder(folder: Path, settings: Settings) -> Finding:
    """Whether the DAGs folder can be pinned."""
    if settings.bundles.pin_dags_folder:
        try:
            deque(bundle_files.list_folder(folder, settings.bundles), maxlen=0)
        except BundleRefusedError as refused:
            fix = "Correct the folder, or set bundles.pin_dags_folder = false."
            return bad("dags folder", f"Runs execute what {folder} has when a task starts: it is not pinned. {refused}", fix)
    return good("dags folder", str(folder))


def space(settings: Settings) -> Iterator[Finding]:
    """Check the free space and the free inodes of the disks that hold the home, the logs, the data and the embedded PostgreSQL."""
    folders = {"home": settings.home, "logs": settings.logs_folder, "PostgreSQL": settings.home / "postgres"}
    if "://" not in settings.data_url:
        folders["data"] = Path(settings.data_url)
    disks: dict[int, tuple[Path, list[str]]] = {}
    for name, path in folders.items():
        nearest = next(place for place in (path, *path.parents) if place.exists())
        disks.setdefault(nearest.stat().st_dev, (nearest, []))[1].append(name)
    for nearest, names in disks.values():
        yield _free(nearest, ", ".join(names))


def server_space(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Check the disk of a PostgreSQL that is not embedded. SQL cannot tell its free space: the server must be on this machine."""
    if settings.database.url is None:
        return  # `space` checks the disk of the embedded one
    folder = Path(transact(engine, operations.data_directory) or "/nonexistent")
    if (engine.url.host or "/")[0] == "/" or engine.url.host in LOOPBACK:
        try:
            yield _free(folder, "PostgreSQL")
        except OSError:
            # In a container, or the role may not read the setting.
            yield good("free space", "PostgreSQL does not tell the free space of its disk; monitor it there")
    else:
        yield good("free space", f"PostgreSQL does not tell the free space of its disk; monitor it on {engine.url.host}")


def _free(folder: Path, what: str) -> Finding:
    disk = os.statvfs(folder)
    free_mib = disk.f_bavail * disk.f_frsize // 2**20
    if free_mib < LEAST_FREE_MIB:
        message = f"The disk of {folder} ({what}) has {free_mib} MiB left."
        return bad("free space", message, "Delete files there, or `paceline db clean --before TIME --logs` deletes old runs.")
    # Some file systems create inodes as needed, and report none.
    if disk.f_files and disk.f_favail < LEAST_FREE_INODES:
        message = f"The disk of {folder} ({what}) has {disk.f_favail} free inodes, so it soon takes no more files."
        return bad("free space", message, "Delete files there, or `paceline db clean --before TIME --logs` deletes old runs.")
    return good("free space", f"{free_mib:,} MiB on the disk of {folder} ({what})")


def _file_system(name: str, key: str, url: str) -> Finding:
    """Whether fsspec has the file system of a URL on this machine. This sends nothing to its server."""
    import fsspec

    try:
        fsspec.get_filesystem_class(fsspec.utils.get_protocol(url))
    except ImportError as error:
        return bad(name, f"{masked(url)} cannot be used: {error}.", "Install that package here and on all workers.")
    except ValueError:
        return bad(name, f"{masked(url)} has a scheme that fsspec does not know.", f"Set {key} to another URL or a folder.")
    return good(name, masked(url))


def web(settings: Settings) -> Iterator[Finding]:
    """Check the web process of this machine, if one listens."""
    address = running_addresses(settings.home).get("web", settings.web.local_url)
    place = f"{address}/alive"
    try:
        # An own certificate is for browsers elsewhere: here it matters only that the process answers.
        with urllib.request.urlopen(place, timeout=WEB_S, context=ssl._create_unverified_context()) as answer:  # noqa: S310, S323
            ours = _is_ours(answer.read(1000))
    except urllib.error.HTTPError as error:
        # Any other status is from another program.
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            yield bad("web", f"{address} is shutting down.", "Wait for its supervisor, or start it: `paceline web`.")
    except OSError as error:
        if isinstance(error, TimeoutError):
            yield bad("web", f"{place} does not answer within {WEB_S:g} s.", "Restart the web process, and see its log.")
    else:
        if ours:
            yield good("web", address)


def _is_ours(answer: bytes) -> bool:
    """Whether this is the answer of a web process to GET /alive, and not that of another program on its port."""
    try:
        return bool(json.loads(answer)["status"] == "alive")
    except (ValueError, RecursionError, KeyError, TypeError):
        return False


def running_addresses(home: Path) -> dict[str, str]:
    """The addresses of the stack that runs on this home, by name. Empty without a stack."""
    try:
        found = json.loads((home / ADDRESSES).read_text(encoding="utf-8"))
        os.kill(found.pop("pid"), 0)
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return {}
    return {name: address for name, address in found.items() if isinstance(address, str)}


def postgres(engine: Engine) -> Iterator[Finding]:
    """Check the database server and the schema."""
    database.check(engine)
    version = transact(engine, operations.server_version)
    if int(version.split(".")[0].split()[0]) < OLDEST_POSTGRES:
        yield bad("database", f"PostgreSQL {version} is too old.", f"Upgrade it to {OLDEST_POSTGRES} or newer.")
    else:
        yield good("database", f"PostgreSQL {version}")
    migrate.check(engine)
    yield good("schema", migrate.head())


def poolers(settings: Settings) -> Iterator[Finding]:
    """Check the URLs of workers and web processes for poolers. This machine need not reach them otherwise."""
    quick = settings.model_copy(update={"database": settings.database.model_copy(update={"connect_timeout": OTHER_S})})
    for key, others in {"worker.database_url": quick.as_worker(), "web.database_url": quick.as_web()}.items():
        if others.database_url != settings.database_url and (error := _pooler_error(others)) is not None:
            yield bad("database", f"{key}: {error.problem}", error.fix)


def _pooler_error(settings: Settings) -> PoolerError | None:
    try:
        engine = database.create(settings, pool_size=0, application="paceline doctor")
        database.check(engine)
    except PoolerError as error:
        return error
    except (UnreachableError, DBAPIError):
        return None
    return None


def running(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Check the running processes, and find work that cannot continue."""
    yield from _alive(engine, "scheduler", settings.scheduler.scheduler_health_check_threshold)
    yield from _alive(engine, "worker", settings.worker.heartbeat_timeout)
    deferred = transact(engine, deferrals.waiting)
    yield from _alive(engine, "waiter", settings.waiter.heartbeat_timeout, needed=deferred > 0)
    for difference in transact(engine, processes.settings_differences, silent_s=settings.worker.heartbeat_timeout):
        yield bad("settings", f"{difference}.", "Give all processes the same value, and start those with another one again.")
    yield from secrets(engine, settings)
    for role, right, statement in transact(engine, roles.excesses):
        yield bad(
            "roles",
            f"Role {role!r} may {right}, which a worker's role must not.",
            f"Run as the owner of the database: {statement};",
        )
    yield from _without_worker(engine, settings)
    yield from _without_slots(engine)
    yield from _undecidable(engine)
    errors = transact(engine, reads.import_errors)
    for error in errors[:SPELLED_OUT]:
        line = f":{error['line']}" if error["line"] else ""
        yield bad("dag files", f"{error['file']}{line}: {error['message']}", "Correct the file; it is read again at once.")
    if len(errors) > SPELLED_OUT:
        yield bad("dag files", f"{len(errors) - SPELLED_OUT} more cannot be read.", "`paceline dags errors` shows all.")
    for name, problem in transact(engine, bundles.source_problems):
        yield bad(
            "bundles", f"The source of bundle {name} cannot be read: {problem}", "Correct it; the live version stays until then."
        )
    for refused in transact(engine, bundle_versions.refused):
        line = f":{refused.line}" if refused.line else ""
        yield bad(
            "bundles",
            f"Version {refused.number} of bundle {refused.bundle} is refused: {refused.file}{line}: {refused.message}",
            "Correct the file, and deploy again; the live version stays until then.",
        )


def _without_worker(engine: Engine, settings: Settings) -> Iterator[Finding]:
    for queue in transact(engine, operations.queues, silent_after_s=settings.worker.heartbeat_timeout):
        waiting = queue["scheduled"] + queue["queued"]
        if waiting and not queue["workers"]:
            yield bad(
                "queues",
                f"{waiting} {'task instance waits' if waiting == 1 else 'task instances wait'} in queue {queue['queue']!r},"
                " which no live worker listens to.",
                f"Start one: `paceline worker -q {queue['queue']}`.",
            )
    for warning in transact(engine, operations.dag_warnings):
        if warning["warning_type"] == "unknown queue":
            yield bad(
                "dag files", f"{warning['file']}: {warning['message']}", "Correct the name, or start a worker for that queue."
            )


def _without_slots(engine: Engine) -> Iterator[Finding]:
    for pool in transact(engine, operations.missing_pools):
        yield bad(
            "pools",
            f"{_count(pool['task_instances'], 'task instance')} (of {pool['dag_id']} at least) cannot run without the pool"
            f" {pool['pool']!r}, which does not exist.",
            f"Create it: `paceline pools set '{pool['pool']}' SLOTS`.",
        )
    for task in transact(engine, operations.oversized):
        yield bad(
            "pools",
            f"Task {task['task_id']!r} of {task['dag_id']} {task['run_id']} needs {_count(task['pool_slots'], 'slot')} of pool"
            f" {task['pool']!r}, which has {task['slots']}.",
            f"Enlarge it: `paceline pools set '{task['pool']}' {task['pool_slots']}`.",
        )


def _undecidable(engine: Engine) -> Iterator[Finding]:
    undecidable = transact(engine, operations.undecidable)
    for run in undecidable[:SPELLED_OUT]:
        dag_id, run_id = run["dag_id"], run["run_id"]
        yield bad(
            "runs",
            f"Run {run_id} of DAG {dag_id} cannot be decided: {run['scheduling_error']}",
            f"It continues by itself once the cause is gone; otherwise `paceline runs clear {dag_id} '{run_id}' --latest`"
            f" or `paceline runs mark {dag_id} '{run_id}' failed`.",
        )
    if len(undecidable) > SPELLED_OUT:
        yield bad(
            "runs", f"{len(undecidable) - SPELLED_OUT} more cannot be decided.", "`paceline runs list --state running` shows all."
        )


def secrets(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Check that the key of this process can decrypt all stored variables and connections."""
    stored = {"variable": transact(engine, variables.tokens), "connection": transact(engine, connections.tokens)}
    if not any(stored.values()):
        return
    from scheduler.store.secrets.cipher import Cipher

    try:
        cipher = Cipher.of(settings, make=False)
    except PacelineError as error:
        yield bad("secrets", f"{error.problem.rstrip('.:')}, although variables or connections are stored.", sentence(error.fix))
        return
    unreadable = {kind: sorted({name for name, token in found if not cipher.reads(token)}) for kind, found in stored.items()}
    for kind, names in unreadable.items():
        if names:
            some = ", ".join(names[:SPELLED_OUT]) + (f" and {len(names) - SPELLED_OUT} more" if len(names) > SPELLED_OUT else "")
            yield bad(
                "secrets",
                f"{_count(len(names), kind)} cannot be decrypted with this key: {some}.",
                "Add the key that encrypted them to PACELINE_CORE_FERNET_KEY, after a comma, or set them again.",
            )
    if not any(unreadable.values()):
        yield good("secrets", "every variable and connection can be decrypted")


def _alive(engine: Engine, kind: str, silent_after_s: float, *, needed: bool = True) -> Iterator[Finding]:
    rows = transact(engine, operations.processes, kind=kind, silent_after_s=silent_after_s)
    alive = [row for row in rows if row["state"] == "alive"]
    if alive:
        yield good(f"{kind}s", f"{len(alive)} alive: {', '.join(_distinct(alive)[:20])}")
    elif needed:
        yield bad(f"{kind}s", f"No {kind} is alive.", f"Start one: `paceline {kind}`.")
    for row in rows:
        if row["state"] == "silent":
            yield bad(
                f"{kind}s",
                f"{kind} {row['name']} on {row['host']} (process {row['pid']}) has sent no heartbeat"
                f" since {row['heartbeat_at']:%H:%M:%S} UTC.",
                "Check whether it still runs there; a live scheduler takes its work over.",
            )


def _distinct(rows: list[dict[str, Any]]) -> list[str]:
    """The names of processes, with host and process ID where several have the same name."""
    times = Counter(row["name"] for row in rows)
    return [row["name"] if times[row["name"]] == 1 else f"{row['name']} (process {row['pid']} on {row['host']})" for row in rows]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _redis(settings: Settings) -> Iterator[Finding]:
    from scheduler.messaging.brokers import BROKER_ERRORS, Brokers, translate

    with contextlib.closing(Brokers(settings)) as brokers:
        for broker in brokers.all:
            at = "" if brokers.is_single else f" at {broker.name}"
            try:
                version = str(broker.client.info("server")["redis_version"])
            except BROKER_ERRORS as error:
                if brokers.is_single:
                    raise
                found = translate(error, broker.name)
                yield bad("broker", found.problem, sentence(found.fix))
                continue
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_REDIS:
                yield bad("broker", f"Redis {version}{at} is too old.", "Upgrade it to 6.2 or newer.")
            else:
                yield good("broker", f"Redis {version}{at}")


def _guarded(check: str, look: Callable[[], Iterable[Finding]], known: Known) -> list[Finding]:
    """Return the findings of `look`. An error of the database or broker becomes a finding with its own fix."""
    findings: list[Finding] = []
    try:
        findings.extend(look())
    except Exception as error:
        found = known(error)
        if found is None:
            raise
        findings.append(bad(check, f"{found.problem.rstrip('.:')}.", sentence(found.fix)))
    return findings


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
