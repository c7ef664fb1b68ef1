"""The threads that a task leaves: those that may still run its code, and those of libraries that only wait for work."""

import asyncio
import concurrent.futures.thread
import sys
import sysconfig
import threading
import time
from types import FrameType
from typing import Any

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
        self._idents = set(sys._current_frames())

    def left(self, ending_s: float = ENDING_S) -> list[str]:
        """The names of threads that started since then and may still run code of the task after `ending_s` seconds."""
        deadline = time.monotonic() + ending_s
        while (names := self._busy()) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return names

    def _busy(self) -> list[str]:
        every = threading.enumerate()
        new = [thread for thread in every if thread not in self._known and not isinstance(thread, threading._DummyThread)]
        frames = sys._current_frames()
        # Threads of the module _thread, which has no objects for them.
        mine = {thread.ident for thread in every if not isinstance(thread, threading._DummyThread)}
        raw = [ident for ident in frames if ident not in mine and ident not in self._idents]
        busy = [thread.name for thread in new if not _is_harmless(thread, frames.get(thread.ident or 0))]
        return [*busy, *(f"thread {ident}" for ident in raw)]


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
