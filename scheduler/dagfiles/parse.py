"""Parses one DAG file in its own child process: runs the user code under limits and reports the result."""

import faulthandler
import json
import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from paceline.authoring import nesting, running
from paceline.authoring.arguments import ID_MAX_LENGTH
from paceline.authoring.dag import DAG
from paceline.exceptions import DagError
from scheduler.dagfiles import limits, load, pipes, problem, side_effects
from scheduler.process import parent_death
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


def run_child(file: str, work: Work, *, parent: int, processes: int | None, result_fd: int, output_fd: int) -> NoReturn:
    """Run a newly forked child: parse `file`, write the result, and exit without cleaning up resources of the parent.

    `processes` as in limits.confine.
    """
    code = 1
    try:
        parent_death.die_with_parent(parent)
        _confine(work.scheduler, processes, result_fd=result_fd, output_fd=output_fd)
        with side_effects.recorded() as inputs:
            reading = parse(file, work)
        if "dags" in reading:
            reading |= {"modules": load.modules_of(work.folder), "settled": not inputs}
        result = json.dumps(reading).encode()
        faulthandler.cancel_dump_traceback_later()
        _write(RESULT_MARK + result)
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
        return {"dags": [_row(dag, file, work) for dag in dags.values()]}
    except BaseException as error:
        _release_reserve()
        reason = problem.of_exception(error, work.folder / file, memory_limit_mb=work.scheduler.dag_file_memory_limit_mb)
        return {"problem": reason.model_dump()}


def warm_up(work: Work) -> None:
    """Parse Paceline's own DAG file in this process, so that its children inherit the caches that Python fills."""
    folder = Path(__file__).parent
    parse("warm_up.py", replace(work, folder=folder))
    load.forget(folder, "warm_up.py")


def _row(dag: DAG, file: str, work: Work) -> dict[str, Any]:
    keys = sorted(key for key in running.defaulted if key.isprintable() and len(key) <= ID_MAX_LENGTH)[:MAX_DEFAULTED]
    data = from_dag(dag, file=file, core=work.core, scheduler=work.scheduler, defaulted_variables=tuple(keys))
    stored = data.to_json()
    if nesting.is_too_deep(json.loads(stored)):
        raise DagError(f"DAG {dag.dag_id!r} holds values that are nested more than {nesting.MAX_DEPTH} deep: flatten them.")
    return {
        "dag_id": data.dag_id,
        "content_hash": data.content_hash,
        "data": stored,
        "is_paused_upon_creation": data.is_paused_upon_creation,
    }


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
    limits.confine(memory_mb=memory_mb, file_mb=MAX_FILE_MB, reserve_mb=RESERVE_MB, processes=processes)
    faulthandler.enable(RESULT_FD)
    # Reports where the file hangs at the time limit and exits. If that fails, the keeper kills it.
    faulthandler.dump_traceback_later(config.dag_file_processor_timeout, file=RESULT_FD, exit=True)


def _release_reserve() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _write(result: bytes) -> None:
    pipes.flush()
    pipes.write(RESULT_FD, result)
