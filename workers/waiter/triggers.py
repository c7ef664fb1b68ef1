"""Runs triggers inside a waiter: creates each from its row, awaits it, and returns its event or error as one value."""

import asyncio
import contextlib
import contextvars
import importlib
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from paceline.authoring import deferral, xcom
from paceline.authoring.triggers import Counts, Target
from paceline.exceptions import PacelineError
from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.load import MODULE_PREFIX
from scheduler.dagfiles.loaded_files import LoadedFiles
from scheduler.dagfiles.loaded_versions import LoadedVersions
from scheduler.settings import Settings
from scheduler.store.moves.fire import Fired
from scheduler.store.worker.deferrals import Awaited
from workers.task import outcome

log = logging.getLogger("paceline.waiter")

#: Seconds that `on_kill` of a trigger may take.
ON_KILL_S = 30.0
#: Reads the states of other runs, for all targets in one query.
AskStates = Callable[[Sequence[Target]], Awaitable[Sequence[Counts]]]
R = TypeVar("R")
#: Seconds until a step that must not run yet is tried again.
SOON_S = 0.02


class Lock(Protocol):
    """Is held during a step."""

    def release(self) -> None: ...


#: Begins a step. Returns the lock to release after it, or None if no step may run now.
Enter = Callable[[], Lock | None]
_enter: contextvars.ContextVar[Enter] = contextvars.ContextVar("_enter")


class OtherRuns:
    """The access of triggers to other runs. Their requests are collected and answered together once a second."""

    def __init__(self, ask: AskStates, now: datetime) -> None:
        self._ask = ask
        self.set_clock(now)
        self._waiting: list[tuple[Sequence[Target], asyncio.Future[Sequence[Counts]]]] = []

    async def states(self, targets: Sequence[Target]) -> Sequence[Counts]:
        """Return the states of the targets from the next shared query."""
        answer: asyncio.Future[Sequence[Counts]] = asyncio.get_running_loop().create_future()
        self._waiting.append((targets, answer))
        return await answer

    def now(self) -> datetime:
        """Return the time of PostgreSQL's clock. Between two readings, the monotonic clock is added."""
        return self._clock + timedelta(seconds=time.monotonic() - self._clock_read_at)

    def set_clock(self, now: datetime) -> None:
        """Set the time of PostgreSQL's clock."""
        self._clock, self._clock_read_at = now, time.monotonic()

    async def answer(self) -> None:
        """Answer all waiting requests with one query. After an error they keep waiting."""
        waiting = [request for request in self._waiting if not request[1].done()]
        self._waiting = waiting
        if not waiting:
            return
        distinct = list(dict.fromkeys(target for targets, _ in waiting for target in targets))
        counts = dict(zip(distinct, await self._ask(distinct), strict=True))
        for targets, answer in waiting:
            if not answer.done():
                answer.set_result([counts[target] for target in targets])
        self._waiting = [request for request in self._waiting if not request[1].done()]


class Triggers:
    """Creates and awaits triggers. Their classes are loaded in a separate thread, because DAG files may take long.

    The steps of all triggers of DAG files alternate in one thread. Each step finds the modules of the version of its run.
    """

    def __init__(self, settings: Settings, other_runs: OtherRuns, cache: BundleCache | None = None) -> None:
        """Without `cache`, there are no bundle versions."""
        self._settings = settings
        self._other_runs = other_runs
        self._cache = cache
        #: How many triggers there are of each bundle version.
        self._awaited = Counter[int | None]()
        self._files = LoadedVersions(settings.dags_folder, cache, is_needed=lambda version: self._awaited[version] > 0)
        #: Held while a class is loaded, and during each step of a trigger of a DAG file.
        self._modules = threading.Lock()
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
        #: The classes that are being loaded, by class path, file and version, and the turn of the one that the thread loads.
        self._loading: dict[tuple[str, str | None, int | None], asyncio.Task[Any]] = {}
        self._turn = asyncio.Lock()
        #: The dispatches for which `kill` was called, until their triggers are cancelled.
        self._stopped: set[str] = set()
        if str(settings.dags_folder) not in sys.path:
            sys.path.append(str(settings.dags_folder))

    def kill(self, dispatch_id: str) -> None:
        """Call `on_kill` of a trigger as soon as it is cancelled, because its task was cleared, marked or stopped with its run."""
        self._stopped.add(dispatch_id)

    async def run(self, row: Awaited) -> Fired:
        """Await a trigger. An exception of the trigger becomes the error of its task. Only the waiter can cancel it."""
        try:
            payload = await self._event(row)
            event = deferral.encode(payload, "contents of the event")
            xcom.encode(event, self._settings.core.max_xcom_bytes, name="event")
            result: dict[str, Any] = {"event": event}
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            result = {"error": outcome.clean(_described(error, row.classpath))}
        return Fired(ti_id=row.ti_id, dispatch_id=row.dispatch_id, outcome=result)

    async def _event(self, row: Awaited) -> Any:
        version = row.bundle_version
        self._awaited[version] += 1
        try:
            kind = await self._class(row)
            if row.file is None:
                return await self._first_event(row, kind)
            return await of_version(self._first_event(row, kind), lambda: self._entered(version))
        finally:
            self._awaited[version] -= 1

    def _entered(self, version: int | None) -> Lock | None:
        """The lock, held, with the modules of a version importable; None while a class is loaded."""
        lock = self._modules
        if not lock.acquire(blocking=False):
            return None
        try:
            self._files.of(version)
        except BaseException:
            lock.release()
            raise
        return lock

    async def _first_event(self, row: Awaited, kind: Any) -> Any:
        trigger = kind(**deferral.decode(row.kwargs))
        if isinstance(trigger, deferral.BaseTrigger):
            trigger.other_runs = self._other_runs
        try:
            return await deferral.first_event(trigger)
        except asyncio.CancelledError:
            if row.dispatch_id in self._stopped:
                await _stop(trigger, row)
            raise
        finally:
            self._stopped.discard(row.dispatch_id)
            cleanup = getattr(trigger, "cleanup", None)
            if callable(cleanup):
                with contextlib.suppress(Exception):
                    await cleanup()

    async def _class(self, row: Awaited) -> Any:
        if row.file is None and (known := _known(row.classpath)) is not None:
            return known
        place = row.classpath, row.file, row.bundle_version
        loading = self._loading.get(place)
        if loading is None:
            loading = self._loading[place] = asyncio.create_task(self._load_in_turn(*place), name=f"load {row.classpath}")
            loading.add_done_callback(lambda done: (self._loading.pop(place), done.cancelled() or done.exception()))
        # Another trigger may wait for the same class, so a trigger that is cancelled must not cancel the loading.
        return await asyncio.shield(loading)

    async def _load_in_turn(self, classpath: str, file: str | None, version: int | None) -> Any:
        """Load one class at a time. The time limit starts with its turn: it does not include the files before it.

        Nor does it include the time to fetch its bundle version, which may have to wait for the database.
        """
        async with self._turn:
            loop = asyncio.get_running_loop()
            if version is not None and self._cache is not None:
                await loop.run_in_executor(self._loader, self._cache.path, version)
            limit_s = self._settings.scheduler.dag_file_processor_timeout
            loading = loop.run_in_executor(self._loader, self._load, classpath, file, version)
            await asyncio.wait({loading}, timeout=limit_s)
            if loading.done():
                return loading.result()
            # The file blocks the thread, so the next class needs a new one. Its lock would stay locked.
            loading.add_done_callback(lambda late: late.cancelled() or late.exception())
            self._loader.shutdown(wait=False)
            self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")
            self._modules = threading.Lock()
            raise PacelineError(f"Its class could not be loaded from {file or classpath} within {limit_s:g} s.")

    def _load(self, classpath: str, file: str | None, version: int | None) -> Any:
        with self._modules:
            return self._loaded(classpath, file, self._files.of(version))

    def _loaded(self, classpath: str, file: str | None, files: LoadedFiles) -> Any:
        dag_file = None if file is None else files.module(file)
        if dag_file is not None and classpath.startswith(MODULE_PREFIX):
            return _attribute(dag_file, classpath.partition(".")[2])
        parts = classpath.split(".")
        for length in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:length])
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                    raise
                continue
            return _attribute(module, ".".join(parts[length:]))
        raise PacelineError(f"There is no module of the trigger class {classpath} on the waiter's machine.")


async def _stop(trigger: Any, row: Awaited) -> None:
    """Call `on_kill` of the trigger, which ends the external work of its task. An error is only logged."""
    on_kill = getattr(trigger, "on_kill", None)
    if not callable(on_kill):
        return
    try:
        await asyncio.wait_for(on_kill(), ON_KILL_S)
    except Exception as error:
        log.warning("on_kill() of the trigger %s of %s.%s failed: %r", row.classpath, row.dag_id, row.task_id, error)


def _known(classpath: str) -> Any:
    """Return a class of a module that is already imported, or None."""
    module, _, name = classpath.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def _attribute(module: Any, path: str) -> Any:
    value = module
    for name in path.split("."):
        value = getattr(value, name, None)
    if value is None:
        raise PacelineError(f"{getattr(module, '__file__', module)} has no trigger class {path} any more.")
    return value


def _described(error: BaseException, classpath: str) -> str:
    """Describe an error of a trigger for the log of its task. The last frames are those of the trigger."""
    text = "".join(traceback.format_exception(error)).strip()
    longest = outcome.MAX_REASON_CHARACTERS - len(classpath) - 10
    return f"{classpath}: {type(error).__name__}: {error}\n{text[-longest // 2 :]}"


async def of_version(coroutine: Coroutine[Any, Any, R], enter: Enter) -> R:
    """Await a coroutine. Its steps, and those of the tasks that it creates, run after `enter`."""
    asyncio.get_running_loop().set_task_factory(_task)
    _enter.set(enter)
    result: R = await _Steps(coroutine, enter)
    return result


def _task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
    enter = _enter.get(None)
    return asyncio.Task(coroutine if enter is None else _awaited(_Steps(coroutine, enter)), loop=loop, **options)


async def _awaited(steps: "_Steps") -> Any:
    return await steps


class _Steps:
    """Runs each step of a coroutine with the modules of its version.

    The steps of asyncio tasks alternate in one thread, and sys.modules belongs to all of them. A function that imports a module
    while it runs must get that of its own version.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], enter: Enter) -> None:
        self._coroutine = coroutine
        self._enter = enter

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            lock = self._enter()
            if lock is None:
                step = (yield from self._next(asyncio.sleep(SOON_S).__await__())) or step
                continue
            try:
                awaited = step()
            except StopIteration as ended:
                return ended.value
            finally:
                lock.release()
            step = (yield from self._next(_one(awaited))) or partial(self._coroutine.send, None)

    def _next(self, waiting: Generator[Any, Any, Any]) -> Generator[Any, Any, Callable[[], Any] | None]:
        """Wait. Returns the next step if it is an exception for the coroutine, such as the cancellation of its task."""
        try:
            yield from waiting
        except GeneratorExit:
            self._coroutine.close()
            raise
        except BaseException as error:
            return partial(self._coroutine.throw, error)
        return None


def _one(awaited: Any) -> Generator[Any, Any, Any]:
    return (yield awaited)
