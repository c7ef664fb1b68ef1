"""The functions and statements of the store that take a row lock, or update or delete a row, and what overlaps each of them."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scheduler.store.db.prepared import Prepared
from scheduler.store.moves import prepared

STORE = Path(__file__).parents[2] / "scheduler" / "store"
MOVES = STORE / "moves"
LOCKS = re.compile(r"\bfor (no key update|update|share|key share)\b|\bupdate \w+( \w)?\s+set\b|\bdelete from\b", re.IGNORECASE)

#: The functions of SQLAlchemy and of store/worker/hot_path that send the text in their argument `statement`.
SENDERS = ("exec_driver_sql", "run")

#: By statement of the interleavings: the functions that it calls.
COVERED: dict[str, set[str]] = {
    "assets": {"dags/assets.consume", "dags/assets.forget", "dags/assets.lock", "dags/outlets.take_streamed",
               "dags/outlets.take_successes"},
    "cancel a backfill": {"actions/backfills._lock_open", "actions/backfills.cancel"},
    "clear": {"moves/clear.clear", "moves/reset.forget_triggers", "moves/reset.note_results", "moves/stop.stop",
              "actions/clear.in_each_run", "actions/clear.lock_run",
              "runs/selection.lock_instances", "runs/selection.lock_run"},
    "deadlines": {"runs/deadlines.settle"},
    "delete": {"actions/delete._refuse_started", "actions/delete.delete_run"},
    "end a run with teardowns": {"actions/mark.end_run"},
    "fire": {"moves/fire.fire"},
    "lose": {"moves/lose.lose"},
    "mark": {"moves/mark.mark"},
    "notices": {"upkeep/notices.begin", "upkeep/notices.claim", "upkeep/notices.end"},
    "pause if failing": {"dags/dags.pause_if_failing"},
    "plan": {"dags/schedules.plan"},
    "retention": {"upkeep/retention._deleted", "upkeep/retention.delete_runs"},
    "services": {"queueing/capacity.lock_runs",
                 "moves/queue.dispatch_again", "moves/due.due", "moves/queue.queue", "moves/queue.stamp_dispatched",
                 "runs/runs.mark_examined", "upkeep/processes.expire_lost", "upkeep/processes.heartbeat"},
    "timeouts": {"runs/runs.lock_timed_out"},
}  # fmt: skip

#: The statements that are sent as text, by the same names.
TEXTS: dict[str, set[str]] = {
    "claim": {"moves/claim.sql hold", "moves/claim.sql claim"},
    "step": {"moves/report.sql hold_moves", "moves/report.sql step"},
    "steps": {"moves/report.sql hold_steps", "moves/report.sql steps"},
    "report in place": {"moves/report.sql hold_moves", "moves/report.sql report"},
    "report below a join": {"moves/joins.sql lock_joins"},
    "close a run": {"moves/close.sql hold_run", "moves/close.sql close_run"},
    "suspend": {"moves/suspend.sql suspend"},
    "end as requested": {"moves/stop.END_AS_REQUESTED"},
    "write of a task": {"db/fencing.CURRENT"},
    "services": {
        "moves/decide.DECIDE",
        "queueing/capacity.LOCK_WAITING",
        "runs/runs.LOCK",
        "runs/runs.START",
        "runs/runs.STARTABLE",
    },
}

#: Why no change in the meantime can mislead these.
NEEDLESS: dict[str, set[str]] = {
    "The caller holds the task instances of the run, or the row that this changes.": {
        "actions/backfills.end", "actions/backfills.leave_out", "actions/backfills.repeat",
        "actions/backfills.take", "actions/backfills._set_paused", "actions/clear.queue_again",
        "actions/clear._make_way", "runs/deadlines.replan", "moves/stop.end_rest", "moves/expand.expand",
        "runs/integrity.fit", "moves/fit.remove", "moves/fit.restore", "moves/fit.renumber", "moves/fit.delete",
        "runs/manual_runs.replace_conf", "moves/fit.refresh", "moves/first.SCHEDULE", "runs/runs.clear_errors",
        "runs/runs.CLOSE", "moves/expand.replace", "dags/outlets.set_aside", "dags/partitions.forget",
    },
    "It only takes locks; the next statement reads what it decides by.": {
        "actions/backfills.lock", "dags/schedules.LOCK_UNPAUSED", "moves/first.ANNOUNCE",
        "queueing/capacity.lock_dags", "queueing/capacity.LOCKED", "runs/selection.lock_open",
        "runs/selection.lock_all", "worker/deferrals.claim",
    },
    "It decides by nothing but the row that it waits for, or passes rows over that others hold.": {
        "actions/delete.delete_dag", "queueing/pools.delete_pool", "queueing/capacity.park",
        "dags/assets.drop_waiting", "dags/dags.set_favorite", "queueing/capacity.store_depths", "runs/manual_runs.made_for",
        "queueing/parking.park", "queueing/parking.unpark",
        "queueing/capacity.set_passing_on", "runs/deleted_runs.forget", "runs/deleted_runs.take", "runs/runs.store_error",
        "upkeep/heartbeats.RENEW", "upkeep/notices.progress",
        "upkeep/notices.release", "upkeep/notices.release_dead", "upkeep/processes.expire", "upkeep/processes.record_events",
        "moves/claim.claim_undone", "upkeep/processes.stop", "upkeep/retention.delete_events", "upkeep/retention.delete_rows",
        "upkeep/processes._store", "upkeep/retention._empty", "runs/reproductions.create",
        "worker/deferrals.release", "worker/deferrals.still_awaited",
        "moves/claim.CLAIM_AGAIN",
    },
    "The statement is guarded by db/fencing.CURRENT, as the write of a task.": {
        "worker/dispatches.LABEL", "worker/external_jobs.NOTE", "worker/external_jobs.TAKE_ABANDONED",
        "worker/external_jobs.TAKE_OVER", "worker/dispatches.WRITE", "worker/xcoms.DELETE_OF_ASSET",
        "worker/xcoms.DELETE_OF_TASK", "worker/xcoms.CLEAR",
    },
}  # fmt: skip

#: Rows that no run decides by: pointers of tables, which a publication compares under the lock of its counter;
#: accounts, secrets, DAG files, bundles, the version of the schema, what a person edits by its key.
ELSEWHERE = (
    "accounts/",
    "secrets/",
    "dags/files.",
    "dags/current.",
    "dags/bundles.",
    "dags/blobs.",
    "dags/bundle_versions.",
    "dags/dags.reparse",
    "db/migrate.",
    "read/row_versions.",
    "runs/edits.",
    "tables/",
)


def find() -> set[str]:
    """The name of each: `folder/module.function`, `folder/module.CONSTANT` for a statement of its own, or `moves/file.sql name`."""
    prepared_ones = {
        f"moves/{path.name} {one.name}"
        for path in MOVES.glob("*.sql")
        for one in prepared.read(path.stem)
        if LOCKS.search(one.body)
    }
    return prepared_ones | {
        f"{path.relative_to(STORE).with_suffix('')}.{name}"
        for path in STORE.rglob("*.py")
        if "migrations" not in path.parts
        for name, text in _parts(ast.parse(path.read_text(encoding="utf-8")).body)
        if LOCKS.search(text)
    }


def _parts(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for part in body:
        match part:
            case ast.ClassDef():
                yield from _parts(part.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield part.name, _text(part, without=ast.get_docstring(part, clean=False))
            case ast.Assign() | ast.AnnAssign():
                target = part.targets[0] if isinstance(part, ast.Assign) else part.target
                yield ast.unparse(target), _text(part)


def _text(part: ast.AST, without: str | None = None) -> str:
    constants = (node.value for node in ast.walk(part) if isinstance(node, ast.Constant))
    return " ".join(value for value in constants if isinstance(value, str) and value != without)


@contextmanager
def entered() -> Iterator[set[str]]:
    """The functions of the store that this thread enters inside, and the texts that it sends there, named as by `find`."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        name = frame.f_code.co_name
        if frame.f_code.co_filename.startswith(f"{STORE}/"):
            names.add(f"{Path(frame.f_code.co_filename).relative_to(STORE).with_suffix('')}.{name}")
        if name in SENDERS and isinstance(statement := frame.f_locals.get("statement"), str):
            names.update(text for text, parts in texts.items() if all(part in statement for part in parts))

    texts = {text: _parts_of(text) for text in set().union(*TEXTS.values())}
    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)


def _parts_of(text: str) -> list[str]:
    """What a statement with this text has in it: of a prepared one its execution, of a template all but its fields."""
    file, is_prepared, name = text.partition(".sql ")
    if is_prepared:
        assert (STORE / f"{file}.sql").exists(), text
        return [f"execute {name}("]
    module, _, name = text.rpartition(".")
    sent = getattr(importlib.import_module(f"scheduler.store.{module.replace('/', '.')}"), name)
    return [f"execute {sent.name}("] if isinstance(sent, Prepared) else re.split(r"\{\w+\}", sent)
