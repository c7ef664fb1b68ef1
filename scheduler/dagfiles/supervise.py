"""The DAG file manager of a scheduler: it finds due files, parses them in child processes and stores their DAGs."""

import contextlib
import functools
import logging
import math
import os
import random
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePath
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

from scheduler.dagfiles import problem, process_tree
from scheduler.dagfiles.answers import Answer, DagCheck, DagRow, MalformedDagError
from scheduler.dagfiles.parser import Parser
from scheduler.dagfiles.pinned_folder import ChangedError, PinnedFolder, Snapshot
from scheduler.dagfiles.watch import Listing, Watch
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import measures
from scheduler.process.health import ServerHealth, StepHealth, VitalThread
from scheduler.settings import Settings
from scheduler.store.dags import current, files
from scheduler.store.dags.current import ParsedDag
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db import sqlstates
from scheduler.store.db.database import transact

log = logging.getLogger(__name__)

#: Seconds by which a claim outlives the time limit of a file. After that, another scheduler may parse the file.
CLAIM_MARGIN_S = 30.0
#: Seconds until a switched link to the folder is detected, which inotify does not report.
GLANCE_S = 0.5
STOP_S = 15.0
#: Seconds between two searches for orphaned processes. There is another search whenever a fork server or callback process ends.
STRAYS_S = 15.0
#: Errors that are not about the stored file: the next attempt may succeed.
AWAY = (OperationalError, InterfaceError, InternalError)
#: Prefixes of error codes that are about the server or a lost race. Any other code may be about the file if it repeats.
NOT_ABOUT_FILE = ("08", "25", "40", "53300", "55P03", "57P", "58")
MAX_ATTEMPTS = 3
#: Bytes of a DAG file that is kept with the versions of its DAGs.
LONGEST_SOURCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The result of one iteration of a DagFileManager."""

    #: The number of DAG files in the folder, if it was listed.
    listed: int | None = None
    started: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    #: DAGs with a new version.
    new_versions: tuple[str, ...] = ()
    #: Files with an import error.
    failed: tuple[str, ...] = ()
    #: DAGs whose files were removed.
    removed: tuple[str, ...] = ()


class DagFileManager:
    """Parses the due files of the DAGs folder. The managers of all schedulers share the files.

    `run_once` is one iteration, for callers with their own loop. `start` and `stop` run it in a thread with a loop.
    """

    def __init__(self, engine: Engine, settings: Settings, scheduler_id: Callable[[], str], wakeups: Wakeups | None = None) -> None:
        self._engine = engine
        self._settings = settings
        #: The ID changes if the scheduler was declared lost, which releases its claims.
        self._scheduler_id = scheduler_id
        self._id = scheduler_id()
        self._wakeups = wakeups
        limits = settings.scheduler
        # Changes that inotify does not report are found at the latest when an unchanged file would be parsed again.
        self._watch = Watch(
            settings.dags_folder,
            list_interval_s=limits.dag_dir_list_interval,
            check_interval_s=limits.min_file_process_interval,
            ignore_syntax=settings.core.dag_ignore_file_syntax,
        )
        self._pinned = PinnedFolder(settings) if settings.bundles.pin_dags_folder else None
        #: Whether all files must be parsed again, because one changed that any DAG may use.
        self._all_due = False
        #: The folder when each file that is being parsed was submitted.
        self._submitted: dict[str, Snapshot | None] = {}
        self._parser = Parser(settings)
        self._host = socket.gethostname()
        self._listing: Listing | None = None
        self._answers: deque[Answer] = deque()
        self._check = DagCheck()
        #: The number of failures to store the DAGs of each file.
        self._attempts: Counter[str] = Counter()
        #: The change time of each file that is being parsed, at its claim.
        self._claimed: dict[str, datetime] = {}
        #: Files that were written while they were being parsed.
        self._overtaken: set[str] = set()
        #: The overtaken files whose change time stayed the same.
        self._stale: set[str] = set()
        #: The last logged problem of each file.
        self._logged: dict[str, str] = {}
        self._stopping = threading.Event()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        #: The time, on the monotonic clock, at which the database is queried for due files again.
        self._ask_at = 0.0
        self._thread: threading.Thread | None = None
        #: Updated at each iteration of the thread, even while the database is unreachable. Listing a large folder takes long.
        self._iterations = StepHealth(
            "The DAG files have not been checked", 2 * settings.scheduler.scheduler_health_check_threshold
        )
        #: Fails while every iteration fails, unless the database is unreachable.
        self._progress = ServerHealth()
        self._strays_at = 0.0

    def complaint(self, now: float) -> str | None:
        """Return why DAG files are not parsed, for the scheduler's health. `now` is the time on the monotonic clock."""
        return self._iterations(now) or self._progress(now)

    def run_once(self, *, ask: bool = True) -> Iteration:
        """Check the folder, store finished results and start due files, without waiting for a file.

        Without `ask`, only files that have just changed are due. Database errors are propagated. The next iteration stores the
        results that were not stored.
        """
        self._id = self._scheduler_id()
        self._answers.extend(self._parser.collect())
        listed, removed, started = self._sync()
        measures.count("dag_processor_heartbeat")
        if listed is not None:
            measures.count("dag_processing.file_path_queue_update_count")
        recorded = self._store()
        if ask or self._ask_at == 0.0:
            started += self._start_due()
        if self._wakeups is not None and (removed or any(result.changed for result in recorded.values())):
            self._wakeups.wake("plan")
        return Iteration(
            listed=listed,
            removed=removed,
            started=started,
            stored=tuple(recorded),
            failed=tuple(path for path, result in recorded.items() if result.problem),
            new_versions=tuple(dag_id for result in recorded.values() for dag_id in result.new_versions),
        )

    def start(self) -> None:
        """Run iterations in a thread until `stop`."""
        self._stopping.clear()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._stop_fd)
        self._thread = VitalThread(target=self._run, name="dag-files", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and all parser processes. Files that were being parsed stay due."""
        self._stopping.set()
        os.eventfd_write(self._stop_fd, 1)
        if self._thread is not None:
            self._thread.join(STOP_S)
            self._thread = None
        self._parser.stop()
        self._watch.close()
        if self._claimed:
            try:
                transact(self._engine, files.release, claimed_by=self._id)
            except DBAPIError as error:  # the claims expire by themselves
                log.warning("The claims on DAG files could not be released: %s", error.orig)
            self._claimed.clear()

    def _sync(self) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
        """Write the changes in the folder to the database.

        Returns the number of listed files, the removed DAGs, and the files that are parsed at once.
        """
        listing = self._watch.look()
        if listing is not None:
            self._listing = listing if self._listing is None else self._listing.followed_by(listing)
            self._overtaken |= listing.files.keys() & self._claimed.keys()
            self._stale |= listing.again & self._claimed.keys()
            if self._pinned is not None:
                self._pinned.changed()
        if self._pinned is not None and (dag_files := self._watch.dag_files()):
            news = self._watch.other_changed() or listing is not None
            self._all_due |= self._pinned.shared_changed(dag_files, news=news)
        if self._all_due:
            transact(self._engine, files.make_due)
            self._stale |= self._claimed.keys()
            self._all_due, self._ask_at = False, 0.0
        if self._listing is None:
            return None, (), ()
        listing = self._listing
        changes: dict[str, Any] = {"modules": listing.modules, "again": listing.again}
        places = self._free_places()
        removed: tuple[str, ...] = ()
        claimed: list[files.Claimed] = []
        if listing.complete or places <= 0:
            removed = transact(self._engine, files.sync, listing.files, complete=listing.complete, **changes)
            self._ask_at = 0.0
        else:
            claimed = transact(self._engine, files.take, listing.files, **changes, **self._claim(places))
            self._asked(full=len(claimed) == places)
        self._listing = None
        return len(listing.files), removed, self._begin(claimed)

    def _store(self) -> dict[str, files.Recorded]:
        recorded = {}
        while self._answers:
            answer = self._answers[0]
            if answer.file not in self._claimed:
                self._answers.popleft()
                continue
            folder = self._submitted.get(answer.file)
            overtaken = folder is not None and not folder.is_as_it_was((answer.file, *answer.modules))
            if overtaken or answer.file in self._stale:
                # It is unknown which of the two versions was parsed, so the file is parsed again under the same claim.
                self._parse_again()
                continue
            try:
                result = self._record(answer, folder)
            except ChangedError:
                self._parse_again()
                continue
            except AWAY:
                self._answers.rotate(-1)  # this answer may be the cause: store the others before the next attempt
                raise
            self._attempts.pop(answer.file, None)
            self._answers.popleft()
            self._claimed.pop(answer.file, None)
            self._submitted.pop(answer.file, None)
            if answer.file in self._overtaken:
                self._overtaken.discard(answer.file)
                self._ask_at = 0.0
            if result.accepted:
                recorded[answer.file] = result
                measure_answer(answer, self._settings.scheduler.dag_file_processor_timeout)
                self._log(answer.file, result.problem)
        return recorded

    def _parse_again(self) -> None:
        """Drop the first answer, and submit its file again."""
        answer = self._answers.popleft()
        self._stale.discard(answer.file)
        if self._pinned is not None:
            self._pinned.changed()
        self._submit([answer.file])

    def _submit(self, paths: Sequence[str]) -> None:
        if self._pinned is not None and paths:
            self._submitted |= dict.fromkeys(paths, self._pinned.look())
        self._parser.submit(paths)

    def _record(self, answer: Answer, folder: Snapshot | None) -> files.Recorded:
        """Store an answer. An invalid answer becomes a problem of its file. Only errors of an unreachable database are raised."""
        try:
            return self._put(self._parsed(answer, folder))
        except ChangedError:
            raise
        except AWAY as error:
            if not self._gives_up(answer.file, error):
                raise
            reason = Problem.make(f"PostgreSQL cannot store the DAGs of this file: {sqlstates.first_line(error)}.")
        except MalformedDagError as error:
            reason = problem.of_answer(str(error))
        except Exception as error:
            log.exception("The DAGs of the file %s cannot be stored", answer.file)
            reason = Problem.make(f"The DAGs of the file cannot be stored: {type(error).__name__}; see the log of the scheduler.")
        failed = files.ParsedFile(
            path=answer.file,
            modified_at=self._claimed[answer.file],
            duration_s=answer.duration_s,
            problem=reason,
        )
        try:
            return self._put(failed)
        except AWAY:
            raise
        except Exception:
            # Its claim expires by itself, and then the file is parsed again. The other files are not affected.
            log.exception("The problem of the DAG file %s cannot be stored either", answer.file)
            return files.Recorded(accepted=False)

    def _gives_up(self, file: str, error: DBAPIError) -> bool:
        """Whether PostgreSQL has rejected the content of this file so often that the file must be the cause."""
        code = getattr(error.orig, "pgcode", None)
        if code is not None and not code.startswith(NOT_ABOUT_FILE):
            self._attempts[file] += 1
        return self._attempts[file] >= MAX_ATTEMPTS

    def _put(self, parsed: files.ParsedFile) -> files.Recorded:
        min_interval = timedelta(seconds=self._settings.scheduler.min_file_process_interval)
        return files.record(self._engine, parsed, claimed_by=self._id, min_interval=min_interval)

    def _rests(self, answer: Answer) -> timedelta | None:
        """Return the parse interval of a file that depends only on code. It is randomized, so that files are not due together."""
        limits = self._settings.scheduler
        if not answer.settled or limits.settled_file_process_interval <= limits.min_file_process_interval:
            return None
        return timedelta(seconds=limits.settled_file_process_interval * random.uniform(0.8, 1.0))  # noqa: S311

    def _log(self, path: str, problem: Problem | None) -> None:
        """Log a problem once, although the file is parsed repeatedly."""
        if problem is None:
            self._logged.pop(path, None)
        elif self._logged.get(path) != problem.message:
            self._logged[path] = problem.message
            log.warning("The DAG file %s cannot be used: %s", path, problem.message)

    def _parsed(self, answer: Answer, folder: Snapshot | None) -> files.ParsedFile:
        """Convert an answer into a record to store. MalformedDagError if one of its DAGs is invalid."""
        for row in answer.dags:
            self._check.check(row, answer.file)
        paused = self._settings.core.dags_are_paused_at_creation
        dags = tuple(stored_dag(row, paused) for row in answer.dags)
        if folder is not None:
            others = self._watch.dag_files() - {answer.file, *answer.modules}
            dags = tuple(current.with_code(dag, folder.entries.values(), others=others) for dag in dags)
        return files.ParsedFile(
            path=answer.file,
            modified_at=self._claimed[answer.file],
            duration_s=answer.duration_s,
            dags=dags,
            folder=folder,
            modules=answer.modules,
            rests=self._rests(answer),
            problem=answer.problem,
            source=functools.partial(_source, self._settings.dags_folder / answer.file),
        )

    def _start_due(self) -> tuple[str, ...]:
        places = self._free_places()
        if places <= 0:
            return ()
        claimed = transact(self._engine, files.claim, **self._claim(places))
        self._asked(full=len(claimed) == places)
        return self._begin(claimed)

    def _asked(self, *, full: bool) -> None:
        """Query again when a parser is free or, if all due files were claimed, after the idle time."""
        self._ask_at = 0.0 if full else time.monotonic() + self._settings.scheduler.scheduler_idle_sleep_time

    def _free_places(self) -> int:
        return self._settings.scheduler.parsing_processes - self._parser.busy

    def _claim(self, places: int) -> dict[str, Any]:
        limits = self._settings.scheduler
        return {
            "claimed_by": self._id,
            "lease_s": limits.dag_file_processor_timeout + CLAIM_MARGIN_S,
            "limit": places,
            "sort_mode": limits.file_parsing_sort_mode,
            "host": self._host,
        }

    def _begin(self, claimed: list[files.Claimed]) -> tuple[str, ...]:
        # If the claim of a file expired while it is still being parsed here, only the claim is renewed.
        fresh = [file.path for file in claimed if file.path not in self._claimed]
        self._claimed |= {file.path: file.modified_at for file in claimed}
        self._submit(fresh)
        return tuple(fresh)

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self._iterations.ran()
                # The processes of DAG files and callbacks that this process adopted because their parents ended.
                if time.monotonic() >= self._strays_at:
                    process_tree.kill_strays()
                    self._strays_at = time.monotonic() + STRAYS_S
                iteration = self.run_once(ask=time.monotonic() >= self._ask_at)
            except AWAY as error:
                if not failing:
                    log.warning("DAG files wait for the database: %s", str(error.orig).strip())
                failing = True
                # Changes that a crash of the database undid must be written again.
                self._watch.list_again()
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            except Exception as error:
                # The next iteration may succeed, and the stored DAGs are still scheduled.
                log.exception("An iteration over the DAG files failed")
                self._progress.failed(f"No DAG file is read: each iteration fails with {type(error).__name__}; see the log.")
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            else:
                failing = False
                self._progress.answered()
                if not iteration.stored:
                    self._rest()

    def _rest(self) -> None:
        """Wait until an answer arrives, the folder changes, or the next query of the database is due."""
        timeout_s = self._watch.timeout_s()
        glance_s = GLANCE_S if timeout_s is None else min(timeout_s, GLANCE_S)
        # While all parsers are busy there is nothing to query for: an answer stops the wait.
        until = min(self._ask_at or math.inf, time.monotonic() + glance_s)
        sources = [fd for fd in (self._stop_fd, self._watch.fileno(), self._parser.fileno()) if fd is not None]
        select.select(sources, [], [], max(0.0, until - time.monotonic()))


def _source(path: Path) -> str | None:
    """The text of a DAG file; None if it is gone or too long to keep."""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST_SOURCE + 1)
    except OSError:
        return None
    return None if len(data) > LONGEST_SOURCE else data.decode("utf-8", "replace").replace("\0", "\ufffd")


def stored_dag(row: DagRow, paused: bool) -> ParsedDag:
    """A DAG of an answer as it is stored. `paused` is whether it starts paused unless it says otherwise."""
    own = row.is_paused_upon_creation
    return ParsedDag(dag_id=row.dag_id, content_hash=row.content_hash, data=row.data, is_paused=paused if own is None else own)


def measure_answer(answer: Answer, timeout_s: float) -> None:
    """Count a parse and its duration."""
    measures.observe("dag_processing.last_duration", answer.duration_s, dag_file=PurePath(answer.file).stem)
    if answer.problem is not None:
        measures.count("dag_file_refresh_error")
        if answer.duration_s >= timeout_s:
            measures.count("dag_processing.processor_timeouts")
