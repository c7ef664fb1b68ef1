"""Compares ended reproductions whose result nobody has asked for, in processes of their own, one after the other.

So the result is stored before prune deletes the tables. The scheduler decides meanwhile: the process has the lowest priority, and a
limit of its time. A scheduler that stops ends it; another one begins again.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scheduler.dagfiles import process_tree
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.tables import comparisons
from scheduler.store.tables.comparisons import MOST_TRIES, Due

log = logging.getLogger("paceline.prune")

#: Seconds for which a process may read the tables of one reproduction.
LIMIT_S = 3600.0
#: Seconds between two looks whether the process has ended.
POLL_S = 0.2


def compare_due(engine: Engine, settings: Settings, stop: threading.Event, *, limit_s: float = LIMIT_S) -> None:
    """Compare, one by one, the reproductions that have ended and that nobody has compared, until none is due or `stop`."""
    try:
        while not stop.is_set() and (due := transact(engine, comparisons.take, settings.tables.catalog)) is not None:
            _compare(engine, settings, due, stop, limit_s)
    except OperationalError as error:  # another pass continues
        log.warning("%s", database.translate(error))
    except Exception:
        log.exception("Comparing reproductions failed; another pass continues")


def _compare(engine: Engine, settings: Settings, due: Due, stop: threading.Event, limit_s: float) -> None:
    answer = _answer(settings, due, stop, limit_s)
    if answer is None:
        transact(engine, comparisons.give_back, due, at_once=True)
    elif "failure" in answer:
        transact(engine, comparisons.fail, due, answer["failure"])
        log.warning(
            "The reproduction %s of DAG %s cannot be compared (at most %d tries): %s",
            due.run_id, due.dag_id, MOST_TRIES, answer["failure"],
        )  # fmt: skip
    elif answer["is_equal"] is None:
        transact(engine, comparisons.give_back, due, at_once=False)
    else:
        result = "is equal to" if answer["is_equal"] else "differs from"
        log.info("The reproduction %s of DAG %s %s its original", due.run_id, due.dag_id, result)


def _answer(settings: Settings, due: Due, stop: threading.Event, limit_s: float) -> dict[str, Any] | None:
    """What the process said; None if it was stopped."""
    command = [sys.executable, "-P", "-m", "scheduler.catalog.comparison_process", str(due.id), str(os.getpid())]
    process = process_tree.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + limit_s
        request: bytes | None = settings.model_dump_json().encode()
        while time.monotonic() < deadline and not stop.is_set():
            try:
                said, _ = process.communicate(request, timeout=POLL_S)
            except subprocess.TimeoutExpired:
                request = None
                continue
            return _understood(said, process.returncode)
        return None if stop.is_set() else {"failure": f"It took longer than {limit_s:g} s to read its tables."}
    finally:
        process.kill()
        process.communicate()
        process_tree.ended(process.pid)


def _understood(said: bytes, code: int) -> dict[str, Any]:
    try:
        answer = json.loads(said)
    except (ValueError, RecursionError):
        return {"failure": f"The process that read its tables ended with exit code {code}, perhaps for lack of memory."}
    assert isinstance(answer, dict), "the process is ours"
    return answer
