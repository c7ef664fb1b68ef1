"""The DAG files of one scheduler: which are due, reading them in children, storing what they hold."""

import contextlib
import logging
import math
import os
import random
import select
import socket
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError

from scheduler.dagfiles import problem, process_tree
from scheduler.dagfiles.answers import Answer, DagRow
from scheduler.dagfiles.dag_check import DagCheck, MalformedDagError
from scheduler.dagfiles.parser import Parser
from scheduler.dagfiles.watch import Listing, Watch
from scheduler.messaging.wakeups import Wakeups
from scheduler.process.health import Contact, Pulse
from scheduler.settings import Settings
from scheduler.store.dags import files, schedules

log = logging.getLogger(__name__)

#: A claim outlives the time a file may take by this much; after it, another scheduler may read the file.
CLAIM_MARGIN_S = 30.0
#: How soon a switched link to the folder is noticed, of which inotify says nothing.
GLANCE_S = 0.5
#: How often the database is asked for its clock.
CLOCK_S = 15.0
STOP_S = 15.0
#: How often this process looks for what others left to it. Whoever notices such an end looks at once.
STRAYS_S = 15.0
#: Errors that say nothing of the file that was to be stored: the next attempt may do it.
AWAY = (OperationalError, InterfaceError, InternalError)
#: Codes, and how they begin, of those that are about the server or a lost race. Any other may be about the file if it comes again.
NOT_ABOUT_FILE = ("08", "25", "40", "53300", "55P03", "57P", "58")
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn did."""

    #: DAG files in the folder, if it was listed.
    listed: int | None = None
    started: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    #: DAGs that got a version with new content.
    new_versions: tuple[str, ...] = ()
    #: Files that became, or stayed, an import error.
    failed: tuple[str, ...] = ()
    #: DAGs whose file was removed.
    removed: tuple[str, ...] = ()


class DagFileManager:
    """Reads the due files of the DAGs folder, sharing them with the managers of all other schedulers.

    `run_once` is one turn for who has a loop; `start` and `stop` give it a thread and a loop of its own.
    """

    def __init__(self, engine: Engine, settings: Settings, scheduler_id: str, wakeups: Wakeups | None = None) -> None:
        self._engine = engine
        self._settings = settings
        self._id = scheduler_id
        self._wakeups = wakeups
        limits = settings.scheduler
        # Where the kernel does not tell of changes, they are found as soon as an unchanged file would be read again.
        self._watch = Watch(
            settings.dags_folder,
            list_interval_s=limits.dag_dir_list_interval,
            check_interval_s=limits.min_file_process_interval,
        )
        self._parser = Parser(settings)
        self._host = socket.gethostname()
        self._listing: Listing | None = None
        self._answers: deque[Answer] = deque()
        self._check = DagCheck()
        #: How often PostgreSQL gave up storing what a file gave.
        self._attempts: Counter[str] = Counter()
        #: When each file being read had last changed, at its claim.
        self._claimed: dict[str, datetime] = {}
        #: Files that were written while they were being read; and those of them whose time that did not change.
        self._overtaken: set[str] = set()
        self._stale: set[str] = set()
        self._said: dict[str, str] = {}
        self._stopping = threading.Event()
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        #: When the database is asked for due files again, on the monotonic clock.
        self._ask_at = 0.0
        self._clock_read: tuple[datetime, float] | None = None
        self._thread: threading.Thread | None = None
        self._next_id: str | None = None
        #: Beats at each turn of its thread, also while the database is away; listing a large folder takes its time.
        self._pulse = Pulse("The DAG files have not been looked at", 2 * settings.scheduler.scheduler_health_check_threshold)
        #: Fails while every turn does, for another reason than the database's being away.
        self._progress = Contact()
        self._strays_at = 0.0

    def complaint(self, now: float) -> str | None:
        """What keeps DAG files from being read, for the scheduler's health; `now` is the monotonic clock."""
        return self._pulse(now) or self._progress(now)

    def run_once(self, now: datetime, *, ask: bool = True) -> Turn:
        """Look at the folder, store what was read meanwhile, start what is due; never waits for a file. Without `ask` only what
        has just changed is due.

        Database errors go through; what was not stored is stored by the next turn.
        """
        self._id, self._next_id = self._next_id or self._id, None
        self._answers.extend(self._parser.collect())
        listed, removed, started = self._sync(now)
        recorded = self._store(now)
        if ask or self._ask_at == 0.0:
            started += self._start_due(now)
        if removed or any(result.changed for result in recorded.values()):
            self._ring()
        return Turn(
            listed=listed,
            removed=removed,
            started=started,
            stored=tuple(recorded),
            failed=tuple(path for path, result in recorded.items() if result.problem),
            new_versions=tuple(dag_id for result in recorded.values() for dag_id in result.new_versions),
        )

    def work_as(self, scheduler_id: str) -> None:
        """Go on under another id of the registry, because this one was taken for dead: what it had claimed was given away."""
        self._next_id = scheduler_id

    def start(self) -> None:
        """Take turns in a thread until `stop`."""
        self._stopping.clear()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._stop_fd)
        self._thread = threading.Thread(target=self._run, name="dag-files", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and every parser child; files that were being read stay due."""
        self._stopping.set()
        os.eventfd_write(self._stop_fd, 1)
        if self._thread is not None:
            self._thread.join(STOP_S)
            self._thread = None
        self._parser.stop()
        self._watch.close()
        if self._claimed:
            try:
                files.release(self._engine, claimed_by=self._id)
            except DBAPIError as error:  # the claims lapse by themselves
                log.warning("The DAG files being read could not be given back: %s", error.orig)
            self._claimed.clear()

    def _sync(self, now: datetime) -> tuple[int | None, tuple[str, ...], tuple[str, ...]]:
        """Tell the database what has changed in the folder: files listed, DAGs removed, files that are read at once."""
        listing = self._watch.look()
        if listing is not None:
            self._listing = listing if self._listing is None else self._listing.followed_by(listing)
            self._overtaken |= listing.files.keys() & self._claimed.keys()
            self._stale |= listing.again & self._claimed.keys()
        if self._listing is None:
            return None, (), ()
        listing = self._listing
        changes: dict[str, Any] = {"modules": listing.modules, "again": listing.again, "now": now}
        room = self._room()
        removed: tuple[str, ...] = ()
        claimed: list[files.Claimed] = []
        if listing.complete or room <= 0:
            removed = files.sync(self._engine, listing.files, complete=listing.complete, **changes)
            self._ask_at = 0.0
        else:
            claimed = files.take(self._engine, listing.files, **changes, **self._claim(room, now))
            self._asked(full=len(claimed) == room)
        self._listing = None
        return len(listing.files), removed, self._begin(claimed)

    def _store(self, now: datetime) -> dict[str, files.Recorded]:
        recorded = {}
        while self._answers:
            answer = self._answers[0]
            if answer.file not in self._claimed:
                self._answers.popleft()
                continue
            if answer.file in self._stale:
                # Nobody can tell which of the two was read; the claim goes on.
                self._stale.discard(answer.file)
                self._answers.popleft()
                self._parser.submit([answer.file])
                continue
            try:
                result = self._record(answer, now)
            except AWAY:
                self._answers.rotate(-1)  # should it be this one's fault, the others are stored before the next attempt
                raise
            self._attempts.pop(answer.file, None)
            self._answers.popleft()
            self._claimed.pop(answer.file, None)
            if answer.file in self._overtaken:
                self._overtaken.discard(answer.file)
                self._ask_at = 0.0
            if result.accepted:
                recorded[answer.file] = result
                self._say(answer.file, result.problem)
        return recorded

    def _record(self, answer: Answer, now: datetime) -> files.Recorded:
        """Store one answer. Whatever is wrong with it is a problem of its file; only a database that is away goes through."""
        try:
            return self._put(self._parsed(answer), now)
        except AWAY as error:
            if not self._gives_up(answer.file, error):
                raise
            found = problem.Problem.make(f"PostgreSQL gave up storing the DAGs of this file: {str(error.orig).splitlines()[0]}.")
        except MalformedDagError as error:
            found = problem.of_answer(str(error))
        except Exception as error:
            log.exception("What the DAG file %s gave cannot be stored", answer.file)
            found = problem.Problem.make(
                f"What the file gave cannot be stored: {type(error).__name__}; the scheduler's log has more."
            )
        failed = files.ParsedFile(
            path=answer.file,
            modified_at=self._claimed[answer.file],
            duration_s=answer.duration_s,
            problem=files.ImportProblem(found.message, found.line, found.traceback),
        )
        try:
            return self._put(failed, now)
        except AWAY:
            raise
        except Exception:
            # Its claim lapses by itself, and then it is read again; until then the others are.
            log.exception("Nor can the problem of the DAG file %s", answer.file)
            return files.Recorded(accepted=False)

    def _gives_up(self, file: str, error: DBAPIError) -> bool:
        """Whether it is the content of this file that PostgreSQL cannot take, to judge by the attempts so far."""
        code = getattr(error.orig, "pgcode", None)
        if code is not None and not code.startswith(NOT_ABOUT_FILE):
            self._attempts[file] += 1
        return self._attempts[file] >= MAX_ATTEMPTS

    def _put(self, parsed: files.ParsedFile, now: datetime) -> files.Recorded:
        min_interval = timedelta(seconds=self._settings.scheduler.min_file_process_interval)
        return files.record(self._engine, parsed, claimed_by=self._id, now=now, min_interval=min_interval)

    def _rests(self, answer: Answer) -> timedelta | None:
        """How long a file that depends on nothing but code rests unless the code changes; not all of them for equally long."""
        limits = self._settings.scheduler
        if not answer.settled or limits.settled_file_process_interval <= limits.min_file_process_interval:
            return None
        return timedelta(seconds=limits.settled_file_process_interval * random.uniform(0.8, 1.0))  # noqa: S311

    def _say(self, path: str, problem: files.ImportProblem | None) -> None:
        """Log a problem when it is new; the file is read again and again."""
        if problem is None:
            self._said.pop(path, None)
        elif self._said.get(path) != problem.message:
            self._said[path] = problem.message
            log.warning("The DAG file %s cannot be used: %s", path, problem.message)

    def _parsed(self, answer: Answer) -> files.ParsedFile:
        """What to store of an answer; MalformedDagError if one of its DAGs is none."""
        for row in answer.dags:
            self._check.check(row, answer.file)
        paused = self._settings.core.dags_are_paused_at_creation
        return files.ParsedFile(
            path=answer.file,
            modified_at=self._claimed[answer.file],
            duration_s=answer.duration_s,
            dags=tuple(_dag(row, paused) for row in answer.dags),
            modules=tuple(answer.modules),
            rests=self._rests(answer),
            problem=files.ImportProblem(**answer.problem.model_dump()) if answer.problem else None,
        )

    def _start_due(self, now: datetime) -> tuple[str, ...]:
        room = self._room()
        if room <= 0:
            return ()
        claimed = files.claim(self._engine, now=now, **self._claim(room, now))
        self._asked(full=len(claimed) == room)
        return self._begin(claimed)

    def _asked(self, *, full: bool) -> None:
        """Ask again once there is room, or, if all that was due has been claimed, in a while."""
        self._ask_at = 0.0 if full else time.monotonic() + self._settings.scheduler.scheduler_idle_sleep_time

    def _room(self) -> int:
        return self._settings.scheduler.parsing_processes - self._parser.busy

    def _claim(self, room: int, now: datetime) -> dict[str, Any]:
        limits = self._settings.scheduler
        return {
            "claimed_by": self._id,
            "until": now + timedelta(seconds=limits.dag_file_processor_timeout + CLAIM_MARGIN_S),
            "limit": room,
            "sort_mode": limits.file_parsing_sort_mode,
            "host": self._host,
        }

    def _begin(self, claimed: list[files.Claimed]) -> tuple[str, ...]:
        # A file whose claim lapsed while it is still being read here is only claimed anew.
        fresh = [file.path for file in claimed if file.path not in self._claimed]
        self._claimed |= {file.path: file.modified_at for file in claimed}
        self._parser.submit(fresh)
        return tuple(fresh)

    def _clock(self) -> datetime:
        """Claims are compared with those of other schedulers, so all of them go by the database's clock. It is asked now and then;
        between, it is as far as the monotonic clock says.
        """
        now = time.monotonic()
        if self._clock_read is None or now - self._clock_read[1] > CLOCK_S:
            with self._engine.connect() as connection:
                self._clock_read = schedules.clock(connection), now
        read, at = self._clock_read
        return read + timedelta(seconds=now - at)

    def _ring(self) -> None:
        if self._wakeups is not None:
            self._wakeups.wake("plan")

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self._pulse.beat()
                self._end_strays()
                turn = self.run_once(self._clock(), ask=time.monotonic() >= self._ask_at)
            except AWAY as error:
                if not failing:
                    log.warning("DAG files wait for the database: %s", str(error.orig).strip())
                failing = True
                # What a crash of the database undid must be told again.
                self._watch.list_again()
                self._clock_read = None
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            except Exception as error:
                # Whatever it is, the next turn may do better, and the DAGs that are stored go on being scheduled.
                log.exception("A turn over the DAG files failed")
                self._progress.failed(f"No DAG file is read: each turn fails ({type(error).__name__}; the log has more).")
                self._clock_read = None
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            else:
                failing = False
                self._progress.answered()
                if not turn.stored:
                    self._rest()

    def _end_strays(self) -> None:
        """End what a DAG file or callback has left to this process by ending those above it, now and then."""
        if time.monotonic() >= self._strays_at:
            process_tree.kill_strays()
            self._strays_at = time.monotonic() + STRAYS_S

    def _rest(self) -> None:
        """Until an answer came, the folder changed, or it is time to look into the database again."""
        patience_s = self._watch.patience_s()
        glance_s = GLANCE_S if patience_s is None else min(patience_s, GLANCE_S)
        # With nothing to ask for until there is room, an answer ends the wait.
        until = min(self._ask_at or math.inf, time.monotonic() + glance_s)
        sources = [fd for fd in (self._stop_fd, self._watch.fileno(), self._parser.fileno()) if fd is not None]
        select.select(sources, [], [], max(0.0, until - time.monotonic()))


def _dag(row: DagRow, paused: bool) -> files.ParsedDag:
    own = row.is_paused_upon_creation
    return files.ParsedDag(
        dag_id=row.dag_id, content_hash=row.content_hash, data=row.data, is_paused=paused if own is None else own
    )
