"""Loading trigger classes from DAG files: a file that hangs or takes long fails only its own triggers, and delays others."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from scheduler.dagfiles.load import LoadedFiles
from scheduler.settings import Settings
from scheduler.store.worker.deferrals import Awaited
from workers.waiter.triggers import OtherRuns, Triggers

FILE = """
import threading
threading.Event().wait({seconds})
from paceline.triggers import BaseTrigger, TriggerEvent
class Fires(BaseTrigger):
    async def run(self):
        yield TriggerEvent("fired")
"""
LIMIT_S = 1.0


def awaited(settings: Settings, seconds: Mapping[str, float], *, triggers_of_each: int = 1) -> list[Awaited]:
    """Triggers of files that take this long to load."""
    found = []
    for name, value in seconds.items():
        path = settings.dags_folder / f"{name}.py"
        path.write_text(FILE.format(seconds=0))
        module = LoadedFiles(settings.dags_folder).module(path.name).__name__
        path.write_text(FILE.format(seconds=value))
        for number in range(triggers_of_each):
            found.append(
                Awaited(
                    ti_id=number, dispatch_id=f"{name}-{number}", classpath=f"{module}.Fires", kwargs={}, file=path.name,
                    dag_id=name, run_id="r", task_id="t",
                )
            )  # fmt: skip
    return found


def errors(settings: Settings, rows: list[Awaited]) -> dict[str, str]:
    """The errors of these triggers by dispatch, when all are awaited at once."""
    limited = settings.scheduler.model_copy(update={"dag_file_processor_timeout": LIMIT_S})

    async def run() -> dict[str, str]:
        async def ask(_: object) -> list[object]:
            return []

        triggers = Triggers(settings.model_copy(update={"scheduler": limited}), OtherRuns(ask, datetime.now(UTC)))  # type: ignore[arg-type]
        fired = await asyncio.gather(*(triggers.run(row) for row in rows))
        return {one.dispatch_id: str(one.outcome["error"]) for one in fired if "error" in one.outcome}

    return asyncio.run(run())


def test_the_time_limit_of_a_file_does_not_include_the_files_before_it(settings: Settings) -> None:
    rows = awaited(settings, dict.fromkeys(("one", "two", "three", "four"), LIMIT_S * 0.4))
    assert errors(settings, rows) == {}


def test_a_file_that_hangs_fails_its_own_triggers_after_one_time_limit(settings: Settings) -> None:
    rows = awaited(settings, {"hangs": 5 * LIMIT_S}, triggers_of_each=20) + awaited(settings, {"quick": 0})
    began = time.monotonic()
    found = errors(settings, rows)
    assert sorted(found) == sorted(f"hangs-{number}" for number in range(20))
    assert all(f"could not be loaded from hangs.py within {LIMIT_S:g} s" in error for error in found.values())
    assert time.monotonic() - began < 5 * LIMIT_S, "each of the 20 triggers took a time limit of its own"
