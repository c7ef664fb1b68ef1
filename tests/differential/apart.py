"""Runs functions in processes of their own, some at a time. It imports only the standard library, for Airflow too."""

import contextlib
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: Many runs wait for most of their time, so more than there are cores.
AT_ONCE = 4


def answers(works: Mapping[str, Callable[[], Any]], *, folder: Path, limit_s: float) -> dict[str, Any]:
    """The JSON that each function returns; None if it raises an error, or has not ended after `limit_s`.

    The output of a function goes to `<name>.log` in the folder.
    """
    waiting, found = dict(works), {}
    #: By a descriptor that is readable once the process has ended: the name, the process and when it is ended.
    running: dict[int, tuple[str, int, float]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name = next(iter(waiting))
            child = _start(name, waiting.pop(name), folder)
            running[os.pidfd_open(child)] = (name, child, time.monotonic() + limit_s)
        first = min(until for *_, until in running.values())
        ended, _, _ = select.select(list(running), [], [], max(0, first - time.monotonic()))
        for one in ended or [number for number, (*_, until) in running.items() if until <= time.monotonic()]:
            name, child, _ = running.pop(one)
            os.close(one)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            written = folder / f"{name}.json"
            found[name] = json.loads(written.read_text()) if written.exists() else None
    return found


def _start(name: str, work: Callable[[], Any], folder: Path) -> int:
    """The process, which leads its group."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        log = os.open(folder / f"{name}.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        for number in (1, 2):
            os.dup2(log, number)
        answer = json.dumps(work())
        # Complete or not there: the process may be ended at any time.
        (folder / f"{name}.part").write_text(answer)
        (folder / f"{name}.part").rename(folder / f"{name}.json")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
