"""The triggers, which a waiter process awaits. DAG files import them from `paceline.triggers`."""

import asyncio
import glob
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from paceline.authoring import running
from paceline.authoring.deferral import BaseTrigger, TriggerEvent
from paceline.states import TaskState

#: The number of task instances (or runs) by state; empty for a target that does not exist.
Counts = Mapping[str, int]


class ExternalResult(StrEnum):
    """The result of a condition on all of its targets."""

    WAITING = "waiting"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A run of a DAG, by logical date or by run ID, or one task or task group of it, as the version of that run has it."""

    dag_id: str
    logical_date: datetime | None = None
    run_id: str | None = None
    task_id: str | None = None
    group_id: str | None = None


def judge(
    answers: Sequence[Counts], *, allowed: Collection[str], skipped: Collection[str] = (), failed: Collection[str] = ()
) -> ExternalResult:
    """FAILED or SKIPPED if an instance of any target is in such a state; DONE if all of them are in an allowed state.

    A removed instance will never run, so nothing waits for it.
    """
    for states, verdict in ((failed, ExternalResult.FAILED), (skipped, ExternalResult.SKIPPED)):
        if any(state in states for counts in answers for state in counts):
            return verdict
    done = all(counts and all(state in allowed or state == TaskState.REMOVED for state in counts) for counts in answers)
    return ExternalResult.DONE if done else ExternalResult.WAITING


#: The module in every class path. Rows of deferred tasks hold it, and a waiter of another release imports it.
MODULE = "paceline.triggers"
#: A longer sleep would not notice that the machine's clock was set.
LONGEST_SLEEP_S = 30.0


class BaseEventTrigger(BaseTrigger):
    """The base of triggers for asset watchers, as in Airflow. An AssetWatcher here takes every other trigger too."""


class DateTimeTrigger(BaseTrigger):
    """Fires at `moment`, a datetime with a time zone (else TypeError).

    `end_from_trigger` is accepted as in Airflow and has no effect: a worker always ends the task.
    """

    def __init__(self, moment: datetime, *, end_from_trigger: bool = False) -> None:
        if not isinstance(moment, datetime) or moment.utcoffset() is None:
            raise TypeError(f"DateTimeTrigger takes a datetime with a time zone, not {moment!r}.")
        self.moment = moment.astimezone(UTC)
        self.end_from_trigger = end_from_trigger

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{MODULE}.DateTimeTrigger", {"moment": self.moment}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (remaining_s := (self.moment - self._now()).total_seconds()) > 0:
            await asyncio.sleep(min(remaining_s, LONGEST_SLEEP_S))
        yield TriggerEvent(self.moment)

    def _now(self) -> datetime:
        """The time by PostgreSQL's clock, which is the same for all waiters."""
        now: datetime = datetime.now(UTC) if self.other_runs is None else self.other_runs.now()
        return now


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires `delta` after its creation."""

    def __init__(self, delta: timedelta, *, end_from_trigger: bool = False) -> None:
        # A task creates it on one machine and a waiter awaits it on another: both use PostgreSQL's clock.
        created_at: datetime = running.get_current_context()["ti"].now() if running.is_running() else datetime.now(UTC)
        super().__init__(created_at + delta, end_from_trigger=end_from_trigger)


class FileTrigger(BaseTrigger):
    """Fires once `filepath` (a path or glob) matches a file, or a folder with a file somewhere below it.

    The payload is the path that matched. `recursive` lets `**` match folders at any depth; `poke_interval` is in seconds.
    """

    def __init__(self, filepath: str, *, recursive: bool = False, poke_interval: float = 5.0) -> None:
        self.filepath, self.recursive, self.poke_interval = filepath, recursive, poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"filepath": self.filepath, "recursive": self.recursive, "poke_interval": self.poke_interval}
        return f"{MODULE}.FileTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (found := await asyncio.to_thread(find_file, self.filepath, recursive=self.recursive)) is None:
            await asyncio.sleep(self.poke_interval)
        yield TriggerEvent(found)


class FileDeleteTrigger(BaseEventTrigger):
    """Fires once the file `filepath` exists, after it has deleted the file; the payload is its path.

    `poke_interval` is in seconds. Of several triggers that wait for one file, the one that deletes it fires.
    """

    def __init__(self, filepath: str, poke_interval: float = 5.0) -> None:
        self.filepath, self.poke_interval = filepath, poke_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{MODULE}.FileDeleteTrigger", {"filepath": self.filepath, "poke_interval": self.poke_interval}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while not await asyncio.to_thread(_delete_file, Path(self.filepath)):
            await asyncio.sleep(self.poke_interval)
        yield TriggerEvent(self.filepath)


class DirectoryFileDeleteTrigger(FileDeleteTrigger):
    """As FileDeleteTrigger, for the file `filename` in the folder `directory`. Each one looks for its file on its own."""

    def __init__(self, *, directory: str, filename: str, poke_interval: float = 5.0) -> None:
        super().__init__(str(Path(directory) / filename), poke_interval)
        self.directory, self.filename = directory, filename

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"directory": self.directory, "filename": self.filename, "poke_interval": self.poke_interval}
        return f"{MODULE}.DirectoryFileDeleteTrigger", arguments


class ExternalTrigger(BaseTrigger):
    """Fires once runs or tasks of other DAGs are in `allowed_states`, or one is in `skipped_states` or `failed_states`.

    `targets` are the arguments of `Target` (paceline/authoring/triggers.py). The payload is a dict: `verdict` ("done",
    "skipped" or "failed") and `states`, for each target the number of its task instances or runs by state. All triggers of a
    waiter share one query a second.
    """

    def __init__(
        self,
        targets: Sequence[dict[str, Any]],
        *,
        allowed_states: Sequence[str],
        skipped_states: Sequence[str] = (),
        failed_states: Sequence[str] = (),
    ) -> None:
        self.targets = [Target(**target) for target in targets]
        self.states = {
            "allowed_states": list(allowed_states),
            "skipped_states": list(skipped_states),
            "failed_states": list(failed_states),
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{MODULE}.ExternalTrigger", {"targets": [asdict(target) for target in self.targets], **self.states}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        allowed, skipped, failed = self.states.values()
        while True:
            answers = await self.other_runs.states(self.targets)
            verdict = judge(answers, allowed=allowed, skipped=skipped, failed=failed)
            if verdict is not ExternalResult.WAITING:
                yield TriggerEvent({"verdict": verdict.value, "states": [dict(counts) for counts in answers]})
                return


def _delete_file(path: Path) -> bool:
    """Whether this call deleted the file. A folder, or a file that cannot be deleted, is an OSError."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def find_file(filepath: str, *, recursive: bool = False) -> str | None:
    """The first match that is a file, or a folder with a file somewhere below it; a relative path starts at /."""
    for match in sorted(glob.iglob(str(Path("/") / filepath), recursive=recursive)):  # noqa: PTH207 - it knows **
        path = Path(match)
        if path.is_file() or (path.is_dir() and any(inner.is_file() for inner in path.rglob("*"))):
            return match
    return None
