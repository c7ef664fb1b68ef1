"""Fault points: named steps at which a test kills, stops, delays or fails this process. Outside of tests they do nothing.

`PACELINE_FAULTS="queue.committed=kill@3,report.before=delay:0.5"` kills the third process of the test that reaches
queue.committed, and delays each report by half a second. `@/path` names a file with the same text. It is read again at each
point, so that a test can inject many faults into one stack. `PACELINE_FAULTS_FOLDER` is a folder that counts how often each
point is reached, over all processes (`<point>.count`), and logs the injected faults (`struck`). Without this folder, or with a
database on another machine, no process starts.
"""

import difflib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from paceline.exceptions import SettingsError

FAULTS, FOLDER = "PACELINE_FAULTS", "PACELINE_FAULTS_FOLDER"
NAMES = frozenset({FAULTS, FOLDER})

#: Transactions: <name>.commit is reached before the commit of a transaction with changes, <name>.committed after it.
TRANSACTIONS = {
    "parse": "store the DAG versions and import errors of a DAG file",
    "plan": "create the due runs of a DAG",
    "update": "record asset events for the DAGs scheduled on these assets",
    "asset": "create an asset-triggered run",
    "backfill": "create the next runs of a backfill, or close the backfill",
    "start": "start queued runs",
    "timeout": "end a run that exceeded its dagrun_timeout",
    "due": "move due retries and pokes to scheduled",
    "promote": "examine a run: write the decisions, or close the run",
    "queue": "move scheduled task instances to queued",
    "stamp": "set dispatched_at on the published task instances",
    "expire": "declare expired processes lost, and recover their tasks",
    "deadline": "record missed SLAs and deadlines of a run",
    "notice": "claim a callback or email",
    "delivered": "record the delivery of a callback or email",
    "register": "register a process",
    "heartbeat": "write the heartbeat of a process",
    "lost": "report a pool process that died",
    "await": "claim triggers for a waiter",
    "fire": "move a task instance whose trigger fired to scheduled",
}
#: Steps that are not transactions, or are single statements of the hot path.
STEPS = {
    "queue.publish": "before the messages of an iteration are published",
    "queue.published": "after the messages are published, before dispatched_at is set",
    "rescue.publish": "before lost messages are published again",
    "rescue.published": "after lost messages are published again, before dispatched_at is set",
    "callback.before": "before a callback runs",
    "callback.after": "after a callback returned, before its delivery is recorded",
    "claim.before": "after a pool process received a message, before the claim",
    "claim.after": "after the claim, before the task starts",
    "code.before": "before user code starts",
    "code.after": "after user code ended, before the outcome is reported",
    "report.before": "before the outcome is reported",
    "follow.locked": "after the downstream joins are locked, before they are decided",
    "follow.commit": "after the report and the follow-up decisions are written, before the commit",
    "continue.before": "before a report that may continue with the next task in the same process",
    "continue.after": "after a report that continues in the same process, before the next task starts",
    "report.after": "after the report, before the successor's message is published",
    "follow.published": "after the successor's message is published, before the wakeup",
    "follow.closed": "after a worker has closed the run of its last task, before the wakeup",
    "follow.woken": "after the wakeup",
    "fire.woken": "after a waiter sent a wakeup",
}
#: Steps of tries that use tables.
TABLES = {
    "tables.given": "after a try was given its token, before it uses the catalog",
    "tables.asked": "after the catalog received a commit, before it reads the table",
    "tables.written": "after the catalog wrote the new metadata of a commit, before its pointer is stored",
    "tables.stored": "after the catalog stored the pointer of a commit, before the answer",
    "tables.published": "after the pointers of a streaming query moved, before the commit of the same transaction",
    "publish.before": "before the report of a try that was given access to tables",
    "publish.moved": "after the pointers of its tables moved, before the report in the same transaction",
    "publish.rebase": "before what a try has written is moved onto newer tables",
    "publish.rebased": "after the moved metadata is written, before its pointer is stored",
    "tables.collect": "after the files that a dead try left are known, before the first is deleted",
    "tables.delete": "before a file of a dead try is deleted",
    "tables.collected": "after the files of a dead try are deleted, before the try is forgotten",
}
POINTS: dict[str, str] = (
    {
        name: text
        for step, what in TRANSACTIONS.items()
        for name, text in ((f"{step}.commit", f"before the commit: {what}"), (f"{step}.committed", f"after the commit: {what}"))
    }
    | STEPS
    | TABLES
)

CLAUSE = re.compile(r"(?P<point>[a-z.]+)=(?P<action>kill|stop|raise|delay:(?P<seconds>\d+(\.\d+)?))(@(?P<nth>[1-9]\d*))?")
FORM = "<point>=kill|stop|raise|delay:<seconds>, with @<n> only for the nth time, separated by commas"
LOCAL_HOSTS = re.compile(r"|localhost|127\.\d+\.\d+\.\d+|::1|/.*")


class InjectedError(Exception):
    """The error of the action `raise`. No code handles it specifically."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The action at a point: kill, stop, raise or delay. With `nth` None it applies each time."""

    point: str
    action: str
    seconds: float
    nth: int | None


@dataclass(frozen=True, slots=True)
class _Armed:
    plan: str
    folder: Path

    def reach(self, name: str) -> None:
        times = _count(self.folder / f"{name}.count")
        for fault in parse(_text(self.plan)):
            if fault.point == name and fault.nth in (None, times):
                self._strike(fault, times)

    def _strike(self, fault: Fault, times: int) -> None:
        with (self.folder / "struck").open("a", encoding="utf-8") as struck:
            struck.write(f"{time.time():.6f} {os.getpid()} {fault.point} {fault.action} {times}\n")
        match fault.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise InjectedError(f"fault injected at {fault.point}")
            case _:
                time.sleep(fault.seconds)


#: Marks that the process reached the step with this name. Until a test has armed the points, it does nothing.
point: Callable[[str], object] = bool


def arm(environ: Mapping[str, str], database_url: str) -> None:
    """Read the faults of the environment at the start of a process; without any, nothing fails.

    SettingsError if they are wrong, or outside of a test.
    """
    global point  # noqa: PLW0603 - one per process, like its environment
    plan, folder = environ.get(FAULTS), environ.get(FOLDER)
    if not plan:
        point = bool
        return
    if not folder or not Path(folder).is_dir():
        raise SettingsError(f"{FAULTS} makes processes fail and is for tests only, which set {FOLDER} to a folder; unset it.")
    if not is_local(database_url, environ):
        raise SettingsError(f"{FAULTS} makes processes fail and is refused with a database on another machine; unset it.")
    parse(_text(plan))
    point = _Armed(plan, Path(folder)).reach


def parse(text: str) -> list[Fault]:
    """Return the faults of a plan. SettingsError names an invalid clause."""
    faults = []
    for clause in filter(None, (part.strip() for part in text.split(","))):
        match = CLAUSE.fullmatch(clause)
        if match is None:
            raise SettingsError(f"{FAULTS} holds {clause!r}; write {FORM}.")
        if match["point"] not in POINTS:
            near = difflib.get_close_matches(match["point"], POINTS, 1)
            hint = f"did you mean {near[0]}?" if near else "docs/reference/fault-points.md lists them."
            raise SettingsError(f"{FAULTS} names {match['point']}, which is not a fault point; {hint}")
        action = match["action"].partition(":")[0]
        faults.append(Fault(match["point"], action, float(match["seconds"] or 0), int(match["nth"]) if match["nth"] else None))
    return faults


def is_local(database_url: str, environ: Mapping[str, str]) -> bool:
    """Whether the connection to PostgreSQL uses a Unix socket or the loopback interface."""
    parts = urlsplit(database_url)
    options = dict(parse_qsl(parts.query))
    if "service" in options or environ.get("PGSERVICE"):
        return False
    named = parts.netloc.rpartition("@")[2]
    hosts = [re.sub(r"^\[(.*)\](:\d+)?$|:\d+$", r"\1", host) for host in unquote(named).split(",")] if named else []
    hosts = [host for host in hosts if host] or options.get("host", environ.get("PGHOST", "")).split(",")
    hosts += options.get("hostaddr", environ.get("PGHOSTADDR", "")).split(",")
    return all(LOCAL_HOSTS.fullmatch(host) for host in hosts)


def _text(plan: str) -> str:
    if not plan.startswith("@"):
        return plan
    try:
        return Path(plan[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{FAULTS} names {plan[1:]}, which cannot be read: {error.strerror}.") from None


def _count(path: Path) -> int:
    """How often any process called this with `path`. An append is atomic, and its end offset is the count."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)
