"""The fork server for parsing DAG files: it has Paceline's modules imported and forks a keeper and its child for each file.

parser.Parser starts it as `python -P -m scheduler.dagfiles.fork_server`, sends requests as JSON lines to its standard input and
reads answers as JSON lines from its standard output. It does not trust the output of the children, but checks it. At the end of its
input, it kills them and exits.
"""

import contextlib
import faulthandler
import gc
import json
import os
import resource
import select
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from paceline.authoring import json_schema, running
from paceline.authoring.arguments import ID_MAX_LENGTH
from paceline.authoring.dag import DAG
from paceline.exceptions import DagError
from scheduler.dagfiles import load, loaded_files, pipes, problem, process_tree, task_details
from scheduler.dagfiles.answers import MAX_RESULT_BYTES, Answer, Reading, fault
from scheduler.dagfiles.bundle_defaults import Defaults
from scheduler.process import hardening
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import MAX_DEFAULTED
from scheduler.settings import Core, Scheduler

#: Start of a result. Data before it in the pipe comes from faulthandler.
RESULT_MARK = b"\n\x1e"
#: Address space reserved for reporting that the rest is used up.
RESERVE_MB = 64
#: Maximum size of a file that user code writes while its DAG file is parsed.
MAX_FILE_MB = 256
RESULT_FD = 3


@dataclass(frozen=True, slots=True)
class Work:
    """The folder and settings with which a scheduler parses its files."""

    folder: Path
    core: Core
    scheduler: Scheduler
    #: Whether answers have the details of tasks.
    details: bool = False


def run_child(file: str, work: Work, *, parent: int, processes: int | None, result_fd: int, output_fd: int) -> NoReturn:
    """Run a newly forked child: parse `file`, write the result, and exit without cleaning up resources of the parent.

    `processes` as in process_tree.confine.
    """
    code = 1
    try:
        hardening.die_with_parent(parent)
        _confine(work.scheduler, processes, result_fd=result_fd, output_fd=output_fd)
        with loaded_files.recorded() as inputs:
            reading = parse(file, work)
        if "dags" in reading:
            modules = sorted(str(path.relative_to(work.folder)) for path in load.modules_below(work.folder).values())
            reading |= {"modules": modules, "settled": not inputs}
        result = json.dumps(reading).encode()
        faulthandler.cancel_dump_traceback_later()
        pipes.flush()
        pipes.write(RESULT_FD, RESULT_MARK + result)
        code = 0
    finally:
        # Atexit handlers and threads of user code must not keep the child running.
        os._exit(code)


def parse(file: str, work: Work) -> dict[str, Any]:
    """Return the DAGs of `file` as rows to store, or its problem: `{"dags": [...]}` or `{"problem": {...}}`.

    A file is all or nothing: after an error anywhere in it, the stored versions of all its DAGs stay as they are.
    """
    try:
        load.configure(work.core.default_timezone, airflow_imports=work.core.airflow_imports)
        running.defaulted.clear()
        dags = load.load(work.folder, file, all_errors=True)
        defaults = Defaults.of(work.folder)
        reading: dict[str, Any] = {"dags": [_row(dag, file, work, defaults) for dag in dags.values()]}
        if work.details:
            reading["tasks"] = {dag.dag_id: _details(dag, work.folder) for dag in dags.values()}
        return reading
    except BaseException as error:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # with the reserve
        reason = problem.of_exception(error, work.folder / file, memory_limit_mb=work.scheduler.dag_file_memory_limit_mb)
        return {"problem": reason.model_dump()}


def warm_up(work: Work) -> None:
    """Parse Paceline's own DAG file in this process, so that its children inherit the caches that Python fills."""
    folder = Path(__file__).parent
    parse("warm_up.py", replace(work, folder=folder))
    load.forget(folder, "warm_up.py")


def _row(dag: DAG, file: str, work: Work, defaults: Defaults) -> dict[str, Any]:
    keys = sorted(key for key in running.defaulted if key.isprintable() and len(key) <= ID_MAX_LENGTH)[:MAX_DEFAULTED]
    data = from_dag(dag, file=file, core=work.core, scheduler=work.scheduler, defaulted_variables=tuple(keys))
    data = defaults.applied(data)
    stored = data.to_json()
    if json_schema.is_too_deep(json.loads(stored)):
        raise DagError(f"DAG {dag.dag_id!r} holds values that are nested more than {json_schema.MAX_DEPTH} deep: flatten them.")
    return {
        "dag_id": data.dag_id,
        "content_hash": data.content_hash,
        "data": stored,
        "is_paused_upon_creation": data.is_paused_upon_creation,
    }


def _details(dag: DAG, folder: Path) -> dict[str, Any]:
    """Those of the tasks of a DAG; none if their values raise errors when they are looked at, which is no fault of the DAG file."""
    try:
        return task_details.details(dag, folder)
    except Exception:
        return {}


def _confine(config: Scheduler, processes: int | None, *, result_fd: int, output_fd: int) -> None:
    """Leave the parent's process group, close its descriptors, and set the limits."""
    os.setpgid(0, 0)
    # Both may have a number that is about to be replaced.
    result_fd, output_fd = (os.dup(fd) if fd <= RESULT_FD else fd for fd in (result_fd, output_fd))
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.dup2(result_fd, RESULT_FD, inheritable=False)
    os.closerange(RESULT_FD + 1, os.sysconf("SC_OPEN_MAX"))
    memory_mb = config.dag_file_memory_limit_mb
    process_tree.confine(memory_mb=memory_mb, file_mb=MAX_FILE_MB, reserve_mb=RESERVE_MB, processes=processes)
    faulthandler.enable(RESULT_FD)
    # Reports where the file hangs at the time limit and exits. If that fails, the keeper kills it.
    faulthandler.dump_traceback_later(config.dag_file_processor_timeout, file=RESULT_FD, exit=True)


def keep(run_child: Callable[[int], NoReturn], *, parent: int, limit_s: float) -> NoReturn:
    """Run a newly forked keeper: run the child for at most `limit_s` seconds, kill its descendants, and exit in the same way.

    `run_child` receives the process ID of the keeper.
    """
    code = 1
    me = os.getpid()
    try:
        hardening.die_with_parent(parent)
        process_tree.become_reaper()
        child = os.fork()
        if child == 0:
            run_child(me)
        with contextlib.suppress(OSError):
            os.setpgid(child, child)  # also done in the child: the first call creates the group
        code = wait(child, limit_s)
        process_tree.kill_below()
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(OSError):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(me, -code)
    finally:
        os._exit(code if code >= 0 else 1)


def wait(child: int, limit_s: float) -> int:
    """Wait for a child that leads a process group, then kill both. Returns its exit code, negative for a signal."""
    fd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll(limit_s * 1000)
    os.close(fd)
    return kill_group(child)


def kill_group(child: int) -> int:
    """Kill a child and its group, and return its exit code."""
    # The child is not reaped yet, so no other process can have its ID. It is also killed by ID, because it may have left its group.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


#: Modules that most files need, but that are imported lazily. They are imported once here instead of in each child.
PRELOADED = ("paceline.operators", "croniter", "jsonschema_rs", "zoneinfo")
#: Seconds after its time limit until a child is killed if its own watchdog has not killed it.
GRACE_S = 1.0
#: Seconds after that until its keeper is killed. It should have killed all processes by then, unless user code has stopped it.
KEEPER_S = process_tree.KILL_S + 2.0
READ_BYTES = 1 << 20
MAX_REQUEST_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Child:
    """A file that is being parsed. `pid` is the process ID of the keeper."""

    file: str
    pid: int
    pid_fd: int
    result_fd: int
    output_fd: int
    started: float
    result: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)


class ForkServer(pipes.PipeServer):
    """Forks children, reads their results and reaps them."""

    def __init__(self) -> None:
        super().__init__(pipes.LineReader(MAX_REQUEST_BYTES), PRELOADED)
        self._work: Work | None = None
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._requests_fd, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve requests until the input ends. Its first line is the Work, each other one a file, or the folder of the next."""
        load.preload()
        try:
            while self._iterate():
                pass
        finally:
            process_tree.kill_below()

    def _iterate(self) -> bool:
        for key, _ in self._selector.select(self._timeout_s()):
            if key.data is None:
                if not self._take_requests():
                    return False
            elif key.fd == key.data.pid_fd:
                self._finish(key.data)
            else:
                self._read(key.data)
        self._kill_late()
        return True

    def _timeout_s(self) -> float | None:
        if not self._children:
            return None
        return max(0.0, min(child.started for child in self._children) + self._limit_s() + KEEPER_S - time.monotonic())

    def _worked(self) -> Work:
        assert self._work is not None, "the first request sets it"
        return self._work

    def _limit_s(self) -> float:
        return self._worked().scheduler.dag_file_processor_timeout + GRACE_S

    def _take_requests(self) -> bool:
        data = os.read(self._requests_fd, READ_BYTES)
        for line in self._requests.feed(data):
            request = json.loads(line)
            if self._work is None:
                self._work = Work(
                    Path(request["folder"]),
                    Core.model_validate(request["core"]),
                    Scheduler.model_validate(request["scheduler"]),
                    details=request["details"],
                )
                warm_up(self._work)
                # Existing objects are excluded from garbage collection, so that children do not copy their pages by touching them.
                gc.collect()
                gc.freeze()
            elif "folder" in request:
                self._work = replace(self._work, folder=Path(request["folder"]))
                os.environ["PACELINE_DAGS_FOLDER"] = request["folder"]
            else:
                self._fork(request["file"])
        return bool(data)

    def _fork(self, file: str) -> None:
        result_fd, child_result_fd = os.pipe()
        output_fd, child_output_fd = os.pipe()
        processes, fork_server = self._processes.limit(), os.getpid()
        pid = os.fork()
        if pid == 0:
            fds = {"result_fd": child_result_fd, "output_fd": child_output_fd}
            keep(
                lambda kept_by: run_child(file, self._worked(), parent=kept_by, processes=processes, **fds),
                parent=fork_server,
                limit_s=self._limit_s(),
            )
        os.close(child_result_fd)
        os.close(child_output_fd)
        child = _Child(file, pid, os.pidfd_open(pid), result_fd, output_fd, time.monotonic())
        self._children.append(child)
        for fd in (result_fd, output_fd):
            pipes.prepare(fd)
        for fd in (child.pid_fd, result_fd, output_fd):
            self._selector.register(fd, selectors.EVENT_READ, child)

    def _read(self, child: _Child) -> None:
        """Read the child's result and output. Only the first bytes are kept, so that large output needs no memory."""
        if child not in self._children:
            return
        for fd, kept, limit in (
            (child.result_fd, child.result, MAX_RESULT_BYTES),
            (child.output_fd, child.output, MAX_OUTPUT_BYTES),
        ):
            with contextlib.suppress(BlockingIOError):
                data = os.read(fd, READ_BYTES)
                kept.extend(data[: max(0, limit - len(kept))])
                if not data:
                    self._forget(fd)

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def _kill_late(self) -> None:
        for child in self._children:
            if time.monotonic() >= child.started + self._limit_s() + KEEPER_S:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)

    def _finish(self, child: _Child) -> None:
        if child not in self._children:
            return
        before = -1
        while before != len(child.result):  # the pipe may hold more than one read takes
            before = len(child.result)
            self._read(child)
        code = self._expire(child)
        reading = self._reading(child, code)
        answer = Answer(file=child.file, duration_s=time.monotonic() - child.started, **dict(reading))
        pipes.send(self._answers_fd, answer)

    def _expire(self, child: _Child) -> int:
        """Reap a keeper that has ended. Returns its exit code, negative for a signal."""
        _, status = os.waitpid(child.pid, 0)
        self._children.remove(child)
        for fd in (child.pid_fd, child.result_fd, child.output_fd):
            self._forget(fd)
            os.close(fd)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            # The keeper may have been killed before it could kill its descendants, which this process has then adopted.
            process_tree.kill_strays([other.pid for other in self._children])
        return code

    def _reading(self, child: _Child, code: int) -> Reading:
        report, mark, result = bytes(child.result).rpartition(RESULT_MARK)
        if mark and code == 0:
            if len(child.result) >= MAX_RESULT_BYTES:
                return Reading(problem=problem.of_flood(MAX_RESULT_BYTES))
            try:
                return Reading.model_validate_json(result)
            except ValidationError as error:
                return Reading(problem=problem.of_answer(fault(error)))
        path = self._worked().folder / child.file
        limit_s = self._worked().scheduler.dag_file_processor_timeout
        texts = {
            "report": (report if mark else bytes(child.result)).decode("utf-8", "replace"),
            "output": child.output.decode("utf-8", "replace"),
        }
        if code in {1, -signal.SIGKILL} and time.monotonic() - child.started >= limit_s:
            return Reading(problem=problem.of_timeout(limit_s, path, **texts))
        return Reading(problem=problem.of_ending(code, path, **texts))


if __name__ == "__main__":
    ForkServer().main()
