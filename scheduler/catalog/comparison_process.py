"""A process that compares one reproduction for a scheduler: it reads whole tables, so it gives way to all else on the host.

It is given the settings on standard input, and writes what came of it to standard output, as JSON. See services/comparisons.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from paceline.exceptions import PacelineError
from scheduler.catalog import reproduction
from scheduler.process import extras, fault_points, hardening
from scheduler.settings import Settings
from scheduler.store.db import database

#: The largest niceness: it runs when no other process wants to.
NICENESS = 19
#: If the memory of the host runs out, the kernel ends this process first.
OOM_SCORE = "1000"


def outcome(settings: Settings, dag_run_id: int) -> dict[str, Any]:
    """`is_equal`, which is None if another process compares it; or the `failure`, for people."""
    engine = database.create(settings, pool_size=1, application="paceline-comparison", actor="scheduler")
    try:
        found = reproduction.judge(settings, engine, dag_run_id)
        return {"is_equal": None if found is None else found["is_equal"]}
    except Exception as error:
        known = extras.as_paceline_error(error, "The comparison of tables") if isinstance(error, ImportError) else error
        return {"failure": str(known) if isinstance(known, PacelineError) else f"{type(error).__name__}: {error}"}
    finally:
        engine.dispose()


def main(dag_run_id: int, scheduler: int) -> None:
    """Compare a reproduction, and say what came of it."""
    hardening.close()
    hardening.die_with_parent(scheduler)  # and with the thread that waits for it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    settings = Settings.model_validate_json(sys.stdin.buffer.read())
    fault_points.arm(os.environ, settings.database_url)
    sys.stdout.write(json.dumps(outcome(settings, dag_run_id)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
