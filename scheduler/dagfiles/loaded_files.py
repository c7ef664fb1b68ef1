"""The DAG files that a long-lived process has loaded, and what each of them read beside Python code while it was loaded.

The interpreter's audit events show that: files, folders, other processes, the network. Their hook cannot be removed from a process;
it records only inside `recorded()`. Operations without an event (the time, `os.stat`, environment variables) are not seen.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.dag import DAG
from paceline.exceptions import DagError, DagErrors, NotFoundError, TaskTimeout
from scheduler.dagfiles.load import MODULE_PREFIX, are_below, load, module_name, modules_below

#: Seconds after which a file is loaded again that read from elsewhere than from files.
REREAD_S = 30.0
_OTHER = "its run was planned from another version of the file, or from other data that it reads."
#: Events that are side effects with any arguments.
OUTSIDE = frozenset((
    "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.Popen", "os.system", "os.exec", "os.fork",
    "os.forkpty", "os.posix_spawn", "sqlite3.connect", "_thread.start_new_thread",
))  # fmt: skip
#: Folders of installed code and its data.
CODE = tuple(
    {f"{os.path.realpath(prefix)}/" for prefix in (sys.prefix, sys.base_prefix)}
    | {f"{place}/" for place in sys.path if place.endswith("site-packages")}
    | {f"{sys.prefix}/", "/usr/share/zoneinfo/"}
)
CODE_SUFFIXES = (".py", ".pyc", ".so")
IMPORTER = "<frozen importlib._bootstrap_external>"
#: Files of the kernel, which are new at each reading.
KERNEL = ("/proc/", "/sys/", "/dev/")

Stamp = tuple[int, int, int]


class LoadedFiles:
    """The loaded DAG files of a long-lived process, each loaded again after anything that it read has changed.

    That is the file, the modules that it imported, and the other files and folders that it read. A file that read from
    elsewhere (the network, a program) is loaded again after REREAD_S. What a load cannot show, such as a stored variable,
    shows when the tasks differ from those of the run.

    Not thread-safe: loading changes sys.modules.
    """

    def __init__(self, folder: Path, *, is_fixed: bool = False, beside: tuple[Path, Path] | None = None) -> None:
        """`is_fixed`: the files of the folder never change, as those of a bundle version. Only data from elsewhere may.

        `beside`, of a version of the DAGs folder: the folder around it, and the one around the DAGs folder, whose place on the
        path of Python it takes, so that `import dags.lib` imports the version.
        """
        self._folder = folder
        self._beside = beside
        #: Whether the paths of the loaded files have it there.
        self._took_place = False
        self._fixed = f"{folder}/" if is_fixed else None
        self._files: dict[str, Loaded] = {}
        self._outside = frozenset[str]()
        self._known_modules = 0

    def dag(self, file: str, dag_id: str) -> DAG:
        """Return the DAG `dag_id` of `file` (relative to the folder) as it is on disk now.

        DagError if the file cannot be loaded. NotFoundError if the file or the DAG does not exist any more.
        """
        return self._dag_in(self._loaded(file), file, dag_id)

    def _dag_in(self, loaded: "Loaded", file: str, dag_id: str) -> DAG:
        dag = loaded.dags.get(dag_id)
        if dag is None:
            raise NotFoundError(f"DAG {dag_id} is no longer in {self._folder / file}: {_OTHER}")
        return dag

    def task(
        self, file: str, dag_id: str, task_id: str, version: tuple[int, Mapping[str, Collection[str]]] | None = None
    ) -> AbstractOperator:
        """Return the operator of a task. Errors as for `dag`; NotFoundError also if the task does not exist any more.

        `version` is the ID of the version of the run, and its tasks with their upstream tasks. If the loaded ones differ, the file
        is loaded again, once for each version.
        """
        loaded = self._loaded(file)
        if version is not None and version[0] not in loaded.compared:
            dag = loaded.dags.get(dag_id)
            if dag is None or {name: task.upstream_task_ids for name, task in dag.task_dict.items()} != version[1]:
                compared = loaded.compared
                self._forget()
                loaded = self._loaded(file)
                loaded.compared.update(compared)
            loaded.compared.add(version[0])
        task = self._dag_in(loaded, file, dag_id).task_dict.get(task_id)
        if task is None:
            raise NotFoundError(f"Task {task_id} is no longer in DAG {dag_id} of {self._folder / file}: {_OTHER}")
        return task

    def module(self, file: str) -> ModuleType:
        """Return the module of `file` as it is on disk now. Errors as for `dag`."""
        self._loaded(file)
        return sys.modules[module_name(self._folder / file)]

    def _loaded(self, file: str) -> "Loaded":
        loaded = self._files.get(file)
        if loaded is not None and len(sys.modules) != self._known_modules:
            self._note_modules(loaded)
        if loaded is None or loaded.changed():
            if any(other.changed() for other in self._files.values()):
                self._forget()
            loaded = self._files[file] = self._load(file)
        # A worker restores the path after each task. Functions of the file may still import from the folders that it added.
        sys.path[:] = loaded.path
        return loaded

    def restore_path(self) -> None:
        """Give the folder around the DAGs folder its place on the path of Python back."""
        if self._beside is not None and self._took_place:
            _exchange(*self._beside)

    def _note_modules(self, loaded: "Loaded") -> None:
        """Add the modules that a task has imported since the file was loaded."""
        self._known_modules = len(sys.modules)
        for path in self._modules().values():
            if not self._is_fixed(str(path)):
                loaded.stamps.setdefault(str(path), stamp(path))

    def _forget(self) -> None:
        """Forget all files and modules, so that the next load finds the same modules as a new process."""
        self._files.clear()
        for name in {**are_below(self._folder), **self._modules()}:
            if not name.startswith(MODULE_PREFIX):
                del sys.modules[name]

    def _modules(self) -> dict[str, Path]:
        """The modules of the folder, and those from elsewhere on the path of Python that a DAG file was the first to import."""
        places = {name: getattr(sys.modules[name], "__file__", None) for name in self._outside if name in sys.modules}
        return modules_below(self._folder) | {name: Path(place) for name, place in places.items() if place}

    def _load(self, file: str) -> "Loaded":
        path = self._folder / file
        before = stamp(path)
        if before is None:
            raise NotFoundError(f"The DAG file {path} is gone; put it back, or clear the runs of its DAGs.")
        known = set(sys.modules)
        if self._beside is not None and str(self._beside[1]) in sys.path:
            _exchange(*reversed(self._beside))
            self._took_place = True
        try:
            with recorded() as inputs:
                dags = load(self._folder, file)
        except TaskTimeout:
            raise
        except (Exception, SystemExit) as error:
            kind = type(error).__name__
            if isinstance(error, DagError) and not isinstance(error, DagErrors) and error.file == str(path):
                kind = f"line {error.line}"
            raise DagError(f"The DAG file {path} cannot be loaded: {kind}: {error}") from error
        self._outside |= {name for name in set(sys.modules) - known if _is_of_author(sys.modules[name])}
        # The stamp from before the load: a change during it must count as a change.
        stamps = {str(module): stamp(module) for module in self._modules().values()}
        self._known_modules = len(sys.modules)
        stamps |= inputs.stamps | {str(path): before}
        stamps = {name: known for name, known in stamps.items() if not self._is_fixed(name)}
        return Loaded(dags, stamps, inputs.elsewhere, time.monotonic())

    def _is_fixed(self, path: str) -> bool:
        return self._fixed is not None and path.startswith(self._fixed)


@dataclass(frozen=True, slots=True)
class Loaded:
    dags: dict[str, DAG]
    #: The file, the modules that it may have imported, and all that it has read.
    stamps: dict[str, Stamp | None]
    read_elsewhere: bool
    at: float
    #: sys.path after the load.
    path: list[str] = field(default_factory=lambda: list(sys.path))
    #: The versions with which its tasks were compared.
    compared: set[int] = field(default_factory=set)

    def changed(self) -> bool:
        if self.read_elsewhere and time.monotonic() - self.at > REREAD_S:
            return True
        return any(stamp(path) != known for path, known in self.stamps.items())


def _is_of_author(module: ModuleType) -> bool:
    """Whether it is a file on the path of Python that is neither installed nor part of Paceline."""
    place = getattr(module, "__file__", None)
    if not isinstance(place, str) or module.__name__.startswith((MODULE_PREFIX, "paceline.", "scheduler.", "workers.")):
        return False
    return not os.path.realpath(place).startswith(CODE)


def _exchange(old: Path, new: Path) -> None:
    sys.path[:] = [str(new) if place == str(old) else place for place in sys.path]


_recorders: list["Inputs"] = []
_hooks: list[object] = []


@dataclass(slots=True)
class Inputs:
    """What a DAG file has used: files and folders as they were when it read them, and anything that cannot be compared."""

    stamps: dict[str, Stamp | None] = field(default_factory=dict)
    elsewhere: bool = False
    thread: int = field(default_factory=threading.get_ident)

    def __bool__(self) -> bool:
        return self.elsewhere or bool(self.stamps)

    def add(self, path: object) -> None:
        text = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]  # noqa: PTH100 - an event has text, bytes or a path
        if text.startswith(KERNEL):
            self.elsewhere = True
        else:
            self.stamps.setdefault(text, stamp(text))


@contextlib.contextmanager
def recorded() -> Iterator[Inputs]:
    """Record the side effects of the code inside the `with` block."""
    if not _hooks:
        sys.addaudithook(_hook)
        _hooks.append(_hook)
    inputs = Inputs()
    _recorders.append(inputs)
    try:
        yield inputs
    finally:
        _recorders.remove(inputs)


def stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """Values that change with the content of a file, or with the names in a folder; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every task
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _recorders or _recorders[-1].thread != threading.get_ident():
        return
    inputs = _recorders[-1]
    if event == "open":
        if _is_input(arguments):
            inputs.add(arguments[0])
    elif event in {"os.listdir", "os.scandir"}:
        if sys._getframe(1).f_code.co_filename == IMPORTER:
            return
        if arguments[0] is None or not isinstance(arguments[0], int):
            inputs.add(arguments[0] or ".")
        else:
            inputs.elsewhere = True
    elif event in OUTSIDE:
        inputs.elsewhere = True


def _is_input(arguments: tuple[Any, ...]) -> bool:
    """Whether this file is opened to read data other than code."""
    path, mode, flags = arguments
    if isinstance(path, int) or (isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY):
        return False
    if isinstance(mode, str) and mode[:1] in {"w", "a", "x"}:
        return False
    text = os.fsdecode(path)
    return not text.endswith(CODE_SUFFIXES) and not text.startswith(CODE)
