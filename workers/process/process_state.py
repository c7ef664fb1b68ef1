"""The state of a pool process that a task can change: what is restored after each task, and what ends the process.

Each part is read again after it was restored. If it still differs, the process must not run another task. The attributes of
modules are not checked: a task that replaces functions of a library changes them for later tasks of its process.
"""

import builtins
import contextlib
import decimal
import gc
import locale
import multiprocessing
import os
import random
import resource
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the state: how it is read, and how it is restored; None if it cannot be."""

    name: str
    read: Callable[[], Any]
    restore: Callable[[Any], None] | None = None


class ProcessState:
    """The state at the start of a task."""

    def __init__(self) -> None:
        self._before = [part.read() for part in PARTS]

    def restore(self) -> str | None:
        """Restore it. Returns the name of a part that differs nevertheless, or None."""
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
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with contextlib.suppress(Exception):
            numpy_random.seed()


def _built_in() -> dict[str, Any]:
    """Without names that a task added: a module of a library may have added them when it was imported."""
    return {name: vars(builtins).get(name) for name in _BUILTIN}


def _default_decimals() -> tuple[Any, ...]:
    context = decimal.DefaultContext
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, dict(context.traps))


def _restore_decimals(values: tuple[Any, ...]) -> None:
    context = decimal.DefaultContext
    context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, context.traps = values


def _restore_filters(values: tuple[list[Any], Any]) -> None:
    warnings.filters[:], warnings.showwarning = values  # type: ignore[index]
    warnings.simplefilter("ignore", append=True)  # tells the C code that the filters have changed
    warnings.filters[:] = values[0]  # type: ignore[index]


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(resource.getrlimit(number) for number in _LIMITS)


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


def _restore_path(values: list[str]) -> None:
    sys.path[:] = values


def _set_locale(name: str) -> None:
    locale.setlocale(locale.LC_ALL, name)


_ENVIRON = os.environ
_BUILTIN = tuple(vars(builtins))
_LIMITS = tuple(sorted({number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}))
PARTS = (
    Part("os.environ", lambda: id(os.environ), lambda _: setattr(os, "environ", _ENVIRON)),
    Part("sys.path", lambda: list(sys.path), _restore_path),
    Part("the built-in functions", _built_in, vars(builtins).update),
    Part("the default decimal context", _default_decimals, _restore_decimals),
    Part("the filters of warnings", lambda: (list(warnings.filters), warnings.showwarning), _restore_filters),
    Part("the default timeout of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout),
    Part("the locale", lambda: locale.setlocale(locale.LC_ALL), _set_locale),
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
