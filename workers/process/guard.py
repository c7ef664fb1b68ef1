"""The guard around user code: it interrupts user code and restores the state of the process afterwards.

Each part of the state is read again after it was restored. If it still differs, the process must not run another task. The
attributes of modules are not checked: a task that replaces functions of a library changes them for later tasks of its process.
"""

import _signal  # type: ignore[import-not-found]
import asyncio
import builtins
import concurrent.futures.thread
import contextlib
import contextvars
import decimal
import gc
import locale
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from operator import is_, itemgetter, setitem
from types import FrameType
from typing import Any, TypeVar

from paceline.exceptions import FailTask, SkipTask, TaskStopped, TaskTimeout
from workers.process.logs import LoggerStates, worker_log

#: Seconds in which threads that are just ending may do so.
ENDING_S = 0.05
PAUSE_S = 0.005
#: The packages whose threads run only code of their own, or of a task while its frames are on their stack.
OURS = ("workers.", "scheduler.", "paceline.")
LIBRARIES = ("py4j.", "pyspark.")
_STDLIB = sysconfig.get_path("stdlib")
_IDLE_WORKER = concurrent.futures.thread.__file__


class Threads:
    """The threads of this process at the start of a task."""

    def __init__(self) -> None:
        self._known = set(threading.enumerate())
        self._idents = set(_frames())

    def left(self, ending_s: float = ENDING_S) -> list[str]:
        """The names of threads that started since then and may still run code of the task after `ending_s` seconds."""
        deadline = time.monotonic() + ending_s
        while (names := self._busy()) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return names

    def _busy(self) -> list[str]:
        every, frames = threading.enumerate(), _frames()
        if self._known.issuperset(every) and self._idents.issuperset(frames):
            return []  # as after most tasks
        new = [thread for thread in every if thread not in self._known and not isinstance(thread, threading._DummyThread)]
        # Threads of the module _thread, which has no objects for them.
        mine = {thread.ident for thread in every if not isinstance(thread, threading._DummyThread)}
        raw = [ident for ident in frames if ident not in mine and ident not in self._idents]
        busy = [thread.name for thread in new if not _is_harmless(thread, frames.get(thread.ident or 0))]
        return [*busy, *(f"thread {ident}" for ident in raw)]


def _frames() -> dict[int, FrameType]:
    """The current frame of each thread, by its ident.

    A collection of garbage during this call could wait forever for a lock that the call holds (CPython issue 106883).
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if is_enabled:
            gc.enable()


def _is_harmless(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Whether a thread belongs to Paceline, or to a library that gives it no work of the task any more."""
    if frame is None:  # it has not started, or has just ended
        return not thread.is_alive()
    owner = _owner(thread)
    if owner.startswith(OURS):
        return True
    if owner.startswith(LIBRARIES):
        return _only_library_code(frame)
    return _is_idle_executor(frame) or _is_idle_loop(thread, frame)


def _owner(thread: threading.Thread) -> str:
    """The module of the code of a thread: of its class, or of the function that it calls, and of its object."""
    kind = type(thread).__module__
    if kind != "threading":
        return f"{kind}."
    function = getattr(thread, "function", None) or getattr(thread, "_target", None)
    target: Any = getattr(function, "__self__", None)
    module = type(target).__module__ if target is not None else getattr(function, "__module__", None)
    return f"{module or ''}."


def _only_library_code(frame: FrameType | None) -> bool:
    """Whether no function of a task is on the stack, such as a callback that the JVM calls."""
    while frame is not None:
        file = frame.f_code.co_filename
        in_library = f"{frame.f_globals.get('__name__', '')}.".startswith((*OURS, *LIBRARIES))
        if not in_library and (not file.startswith(_STDLIB) or "site-packages" in file):
            return False
        frame = frame.f_back
    return True


def _is_idle_executor(frame: FrameType) -> bool:
    """Whether a thread of concurrent.futures waits, with nothing in its queue. Only other code could give it work."""
    if frame.f_code.co_filename != _IDLE_WORKER or frame.f_code.co_name != "_worker":
        return False
    queue = frame.f_locals.get("work_queue")
    return queue is not None and bool(queue.empty())


def _is_idle_loop(thread: threading.Thread, frame: FrameType) -> bool:
    """Whether it is the event loop of fsspec, which lives as long as the process, without tasks."""
    fsspec = sys.modules.get("fsspec.asyn")
    if fsspec is None or thread not in fsspec.iothread or frame.f_code.co_name != "select":
        return False
    return not any(asyncio.all_tasks(loop) for loop in fsspec.loop if loop is not None)


R = TypeVar("R")

#: The signals whose handlers a task may change. The others cannot be caught.
SIGNALS = tuple(sorted(int(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))
#: The timers that send a signal when they expire.
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: The length of a seed of random numbers.
SEED_BYTES = 16
#: The working folder of tasks if that of the worker was deleted.
FALLBACK_FOLDER = "/"
#: The functions of the module signal convert each result to an enum member, which takes ten times as long.
handler_of: Callable[[int], Any] = _signal.getsignal
set_handler: Callable[[int, Any], Any] = _signal.signal
set_mask: Callable[[int, Collection[int]], set[int]] = _signal.pthread_sigmask


class Guard:
    """Runs user code in the main thread of a pool process. Each pool process creates one before its first task."""

    def __init__(self, *, own_process: bool = False) -> None:
        """`own_process`: the process only runs tasks. A person who tests a DAG keeps the seed of random numbers."""
        self._own_process = own_process
        self._inside = False
        self._interruption: BaseException | None = None
        self._timeout_s: float | None = None
        self._pid = os.getpid()
        self._why_stop: Callable[[], str | None] = lambda: None
        self._environment = os.environ.copy()
        self._variables = dict(_variables())
        self._handlers: dict[int, Any] = {}
        #: Of the first task of a process that only runs tasks: each leaves it as it was, and nothing changes it in between.
        self._state: ProcessState | None = None
        self._blocked: set[int] = set()
        self._logging = LoggerStates()
        self._folder = _working_folder()
        #: Why this process must not run another task; None if all changes of the last task were undone.
        self.unfit: str | None = None
        self._umask = os.umask(0o022)
        os.umask(self._umask)

    def run(self, work: Callable[[], R], *, timeout_s: float | None, why_stop: Callable[[], str | None]) -> R:
        """Return `work()`. TaskTimeout is raised inside it after `timeout_s` seconds, TaskStopped on SIGTERM.

        `why_stop()` returns the reason for a SIGTERM, or None to ignore it.
        """
        pid = self._pid = os.getpid()
        self._timeout_s, self._why_stop = timeout_s, why_stop
        try:
            with self._restored():
                set_handler(signal.SIGTERM, self._on_term)
                if timeout_s is not None:
                    set_handler(signal.SIGALRM, self._on_alarm)
                    signal.setitimer(signal.ITIMER_REAL, timeout_s)
                self._interruption, self._inside = None, True
                try:
                    # In a copy, so that the values of context variables end with the task.
                    return contextvars.copy_context().run(_with_own_decimals, work)
                except (SkipTask, FailTask):
                    raise
                except BaseException as error:
                    # Libraries such as py4j wrap the interruption, but it is what ended the task.
                    if self._interruption is None or error is self._interruption:
                        raise
                    raise self._interruption from error
                finally:
                    # A signal before this line still raises an exception, which the caller handles. Later signals do not.
                    self._inside = False
        finally:
            if os.getpid() != pid:  # a process that user code forked must not report for its parent
                _leave()

    def _on_alarm(self, _signum: int, _frame: FrameType | None) -> None:
        if self._inside:
            self._interrupt(TaskTimeout(f"It ran longer than its execution_timeout of {self._timeout_s:g} s."))

    def _on_term(self, _signum: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # In a process that user code forked, an exception may be lost while it starts, and it would never end.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        reason = self._why_stop()
        if self._inside and reason is not None:
            self._interrupt(TaskStopped(reason))

    def _interrupt(self, interruption: BaseException) -> None:
        """Interrupt user code only once, so that its cleanup is not interrupted again."""
        self._inside, self._interruption = False, interruption
        raise interruption

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the state of the process after the block. `unfit` is set if that fails."""
        if not self._handlers:
            # Not earlier, because the pool changes the handlers of its processes after the fork.
            self._handlers = {number: handler_of(number) for number in SIGNALS}
            self._blocked = set_mask(signal.SIG_BLOCK, ())
        # Those of a process in which a person tests a DAG stay.
        timers = TIMERS if self._own_process else [timer for timer in TIMERS if not signal.getitimer(timer)[0]]
        self._logging.note_new()
        self._go_home()
        state, threads = self._state or ProcessState(), Threads()
        self._state = state if self._own_process else None
        try:
            yield
        finally:
            for timer in timers:
                signal.setitimer(timer, 0)
            if set_mask(signal.SIG_BLOCK, ()) != self._blocked:
                # A blocked SIGTERM arrives now. It was for this task, and must not end the process.
                set_handler(signal.SIGTERM, self._on_term)
                set_mask(signal.SIG_SETMASK, self._blocked)
            self._restore_handlers()
            self.unfit = _unfit(state.restore(), threads.left())
            if self._own_process:
                reseed()
            self._logging.restore()
            if _variables() != self._variables:
                self._restore_environment()
            os.umask(self._umask)
            self._go_home()

    def _restore_handlers(self) -> None:
        """Restore the signal handlers, first that of SIGTERM, which is another one during each task."""
        if (on_term := self._handlers[signal.SIGTERM]) is not None:
            set_handler(signal.SIGTERM, on_term)
        if all(map(is_, map(handler_of, self._handlers), self._handlers.values())):
            return
        for number, handler in self._handlers.items():
            if handler_of(number) is not handler and handler is not None:
                set_handler(number, handler)

    def _go_home(self) -> None:
        """Change to the working folder. If it was deleted, use a fallback: os.getcwd() and Java would not work in it."""
        try:
            os.chdir(self._folder)
        except OSError as error:
            worker_log.warning(
                "The working folder of this worker was deleted or cannot be entered (%s): its tasks start in %s from now on.",
                error.strerror, FALLBACK_FOLDER,
            )  # fmt: skip
            self._folder = FALLBACK_FOLDER
            os.chdir(self._folder)

    def _restore_environment(self) -> None:
        zone = os.environ.get("TZ")
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        os.environ.update(self._environment)
        if zone != self._environment.get("TZ"):
            time.tzset()


def _unfit(lasting: str | None, left: list[str]) -> str | None:
    if left:
        return f"threads of this task still run: {', '.join(left[:3])}{', ...' if len(left) > 3 else ''}"
    return f"this task changed {lasting}, which could not be restored" if lasting is not None else None


def _with_own_decimals(work: Callable[[], R]) -> R:
    """Run `work` with a new decimal context: the copy of a context variable would be the same object."""
    decimal.setcontext(decimal.Context())
    return work()


def _working_folder() -> str:
    """Return the working folder of this process, or an invalid path if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return ""


def _variables() -> dict[bytes, bytes]:
    """Return the encoded data of os.environ. Comparing it is a hundred times as fast as comparing decoded values."""
    data: dict[bytes, bytes] = vars(os.environ)["_data"]
    return data


def _leave() -> None:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the state: how it is read, and how it is restored; None if it cannot be."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], object] | None = None


class ProcessState:
    """The state at the start of a task."""

    def __init__(self) -> None:
        self._before = [part.read() for part in PARTS]

    def restore(self) -> str | None:
        """Restore it. Returns the name of a part that differs nevertheless, or None."""
        with contextlib.suppress(Exception):
            if [part.read() for part in PARTS] == self._before:
                return None
        lasting = None
        for part, before in zip(PARTS, self._before, strict=True):
            if not _differs(part, before):
                continue
            if part.restore is not None:
                with contextlib.suppress(Exception):
                    part.restore(before)
            if _differs(part, before):
                lasting = lasting or part.name
        return lasting


def _differs(part: Part, before: Any) -> bool:
    try:
        return bool(part.read() != before)
    except Exception:
        return True


def reseed() -> None:
    """Give the next task other random numbers, whatever seed a task has set."""
    random.seed(int.from_bytes(os.urandom(SEED_BYTES)))  # without an argument, it would read 2,496 bytes
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with contextlib.suppress(Exception):
            numpy_random.seed()


# Each part is read after each task. So these read by functions in C, without a frame of Python for each item.


def _built_in() -> tuple[Any, ...]:
    """Without names that a task added: a module of a library may have added them when it was imported."""
    values: tuple[Any, ...] = _built_in_values(vars(builtins))
    return values


def _restore_built_in(values: tuple[Any, ...]) -> None:
    vars(builtins).update(zip(_BUILTIN, values, strict=True))


def _default_decimals() -> tuple[Any, ...]:
    """The arguments of its constructor: its numbers, and the traps that are set."""
    *values, _flags, traps = decimal.DefaultContext.__reduce__()[1]
    return (*values, traps)


def _restore_decimals(values: tuple[Any, ...]) -> None:
    context = decimal.DefaultContext
    *numbers, traps = values
    context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp = numbers
    context.traps = {signal: signal in traps for signal in context.traps}


def _restore_filters(values: tuple[list[Any], Any]) -> None:
    warnings.filters[:], warnings.showwarning = values  # type: ignore[index]
    warnings.simplefilter("ignore", append=True)  # tells the C code that the filters have changed
    warnings.filters[:] = values[0]  # type: ignore[index]


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(map(resource.getrlimit, _LIMITS))


def _restore_limits(values: tuple[tuple[int, int], ...]) -> None:
    for number, limit in zip(_LIMITS, values, strict=True):
        if resource.getrlimit(number) != limit:
            resource.setrlimit(number, limit)


def _restore_collection(values: tuple[bool, tuple[int, int, int]]) -> None:
    enabled, threshold = values
    gc.enable() if enabled else gc.disable()
    gc.set_threshold(*threshold)


def _restore_hooks(values: tuple[Any, ...]) -> None:
    sys.excepthook, sys.unraisablehook, threading.excepthook = values


_ENVIRON = os.environ
_BUILTIN = tuple(vars(builtins))
_built_in_values = itemgetter(*_BUILTIN)
_LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))
PARTS = (
    Part("os.environ", lambda: id(os.environ), lambda _: setattr(os, "environ", _ENVIRON)),
    Part("sys.path", lambda: list(sys.path), lambda values: setitem(sys.path, slice(None), values)),
    Part("the built-in functions", _built_in, _restore_built_in),
    Part("the default decimal context", _default_decimals, _restore_decimals),
    Part("the filters of warnings", lambda: (list(warnings.filters), warnings.showwarning), _restore_filters),
    Part("the default timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Part("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    Part("the folder of temporary files", lambda: tempfile.tempdir, lambda name: setattr(tempfile, "tempdir", name)),
    Part("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    Part("the garbage collection", lambda: (gc.isenabled(), gc.get_threshold()), _restore_collection),
    Part("the hooks of exceptions", lambda: (sys.excepthook, sys.unraisablehook, threading.excepthook), _restore_hooks),
    Part("the trace function", sys.gettrace, sys.settrace),
    Part("the profile function", sys.getprofile, sys.setprofile),
    Part(
        "the start method of multiprocessing", lambda: multiprocessing.get_start_method(allow_none=True),
        lambda name: multiprocessing.set_start_method(name, force=True),
    ),
    Part("the resource limits", _limits, _restore_limits),
    Part("the priority", lambda: os.getpriority(os.PRIO_PROCESS, 0), lambda value: os.setpriority(os.PRIO_PROCESS, 0, value)),
    Part("the user", lambda: (os.getresuid(), os.getresgid(), os.getgroups())),
)  # fmt: skip
