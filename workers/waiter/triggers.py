"""One trigger inside a waiter: made again from its row, awaited, and what came of it as one value."""

import asyncio
import contextlib
import importlib
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from scheduler.authoring import deferral, xcom
from scheduler.authoring.external import Counts, Target
from scheduler.dagfiles.load import MODULE_PREFIX, LoadedFiles
from scheduler.exceptions import PacelineError
from scheduler.settings import Settings
from scheduler.store.worker.deferrals import Awaited, Fired
from workers import outcome

#: Answers questions about other runs, all of them in one query.
AskStates = Callable[[Sequence[Target]], Awaitable[Sequence[Counts]]]


class Outside:
    """What triggers ask about other runs: their questions are collected and answered together, once a second."""

    def __init__(self, ask: AskStates, now: datetime) -> None:
        self._ask = ask
        self.set_clock(now)
        self._waiting: list[tuple[Sequence[Target], asyncio.Future[Sequence[Counts]]]] = []

    async def states(self, targets: Sequence[Target]) -> Sequence[Counts]:
        """The answers to the next shared query."""
        answer: asyncio.Future[Sequence[Counts]] = asyncio.get_running_loop().create_future()
        self._waiting.append((targets, answer))
        return await answer

    def now(self) -> datetime:
        """The time on PostgreSQL's clock; between two looks at it time passes as on every machine."""
        return self._clock + timedelta(seconds=time.monotonic() - self._clock_read_at)

    def set_clock(self, now: datetime) -> None:
        """What PostgreSQL's clock shows."""
        self._clock, self._clock_read_at = now, time.monotonic()

    async def answer(self) -> None:
        """Ask the database what all of them wait to know; after an error they go on waiting."""
        waiting = [one for one in self._waiting if not one[1].done()]
        self._waiting = waiting
        if not waiting:
            return
        distinct = list(dict.fromkeys(target for targets, _ in waiting for target in targets))
        found = dict(zip(distinct, await self._ask(distinct), strict=True))
        for targets, answer in waiting:
            if not answer.done():
                answer.set_result([found[target] for target in targets])
        self._waiting = [one for one in self._waiting if not one[1].done()]


class Triggers:
    """Makes triggers from their rows. Classes are loaded in a thread of their own, since DAG files may take their time."""

    def __init__(self, settings: Settings, outside: Outside) -> None:
        self._settings = settings
        self._outside = outside
        self._files = LoadedFiles(settings.dags_folder)
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        if str(settings.dags_folder) not in sys.path:
            sys.path.append(str(settings.dags_folder))

    async def run(self, one: Awaited) -> Fired:
        """Await the trigger; whatever it raises becomes the error that its task sees. Cancelled only from outside."""
        try:
            payload = await self._event(one)
            event = deferral.encode(payload, "contents of the event")
            xcom.encode(event, self._settings.core.max_xcom_bytes, name="event")
            came: dict[str, Any] = {"event": event}
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            came = {"error": outcome.clean(_told(error, one.classpath))}
        return Fired(ti_id=one.ti_id, dispatch_id=one.dispatch_id, outcome=came)

    async def _event(self, one: Awaited) -> Any:
        kind = await self._class(one)
        trigger = kind(**deferral.decode(one.kwargs))
        if isinstance(trigger, deferral.BaseTrigger):
            trigger.outside = self._outside
        try:
            return await deferral.first_event(trigger)
        finally:
            cleanup = getattr(trigger, "cleanup", None)
            if callable(cleanup):
                with contextlib.suppress(Exception):
                    await cleanup()

    async def _class(self, one: Awaited) -> Any:
        if one.file is None and (found := _known(one.classpath)) is not None:
            return found
        limit_s = self._settings.scheduler.dag_file_processor_timeout
        loading = asyncio.get_running_loop().run_in_executor(self._loader, self._load, one.classpath, one.file)
        try:
            return await asyncio.wait_for(loading, limit_s)
        except TimeoutError:
            # The thread is lost to that file; the next class gets another.
            self._loader.shutdown(wait=False)
            self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
            raise PacelineError(f"Its class could not be loaded from {one.file} within {limit_s:g} s.") from None

    def _load(self, classpath: str, file: str | None) -> Any:
        module = None if file is None else self._files.module(file)
        if module is not None and classpath.startswith(MODULE_PREFIX):
            return _attribute(module, classpath.partition(".")[2])
        parts = classpath.split(".")
        for length in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:length])
            try:
                found = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise
                continue
            return _attribute(found, ".".join(parts[length:]))
        raise PacelineError(f"There is no module of the trigger class {classpath} on the waiter's machine.")


def _known(classpath: str) -> Any:
    """A class of a module that is loaded already."""
    module, _, name = classpath.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _attribute(module: Any, path: str) -> Any:
    found = module
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise PacelineError(f"{getattr(module, '__file__', module)} has no trigger class {path} any more.")
    return found


def _told(error: BaseException, classpath: str) -> str:
    """What its task's log shows: the last frames are the trigger's own."""
    text = "".join(traceback.format_exception(error)).strip()
    longest = outcome.MAX_REASON_CHARACTERS - len(classpath) - 10
    return f"{classpath}: {type(error).__name__}: {error}\n{text[-longest // 2 :]}"
