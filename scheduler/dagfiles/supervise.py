"""The DAG files of one scheduler: which are due, reading them in children, storing what they hold."""

import logging
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from scheduler.dagfiles.parser import Answer, Parser
from scheduler.dagfiles.watch import Listing, Watch
from scheduler.doorbell import Doorbell
from scheduler.health import Pulse
from scheduler.settings import Settings
from scheduler.store import files, schedules

log = logging.getLogger(__name__)

#: A claim outlives the time a file may take by this much; after it, another scheduler may read the file.
CLAIM_MARGIN_S = 30.0
#: How soon a changed file, or an answer, is noticed.
GLANCE_S = 0.1
STOP_S = 15.0


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

    def __init__(self, engine: Engine, settings: Settings, scheduler_id: str, doorbell: Doorbell | None = None) -> None:
        self._engine = engine
        self._settings = settings
        self._id = scheduler_id
        self._doorbell = doorbell
        self._watch = Watch(settings.dags_folder, list_interval_s=settings.scheduler.dag_dir_list_interval)
        self._parser = Parser(settings)
        self._host = socket.gethostname()
        self._listing: Listing | None = None
        self._answers: deque[Answer] = deque()
        #: When each file being read had last changed, at its claim.
        self._claimed: dict[str, datetime] = {}
        self._said: dict[str, str] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_id: str | None = None
        #: Beats at each turn of its thread, also while the database is away; listing a large folder takes its time.
        self.pulse = Pulse("The DAG files have not been looked at", 2 * settings.scheduler.scheduler_health_check_threshold)

    def run_once(self, now: datetime) -> Turn:
        """Look at the folder, store what was read meanwhile, start what is due; never waits for a file.

        Database errors go through; what was not stored is stored by the next turn.
        """
        self._id, self._next_id = self._next_id or self._id, None
        self._answers.extend(self._parser.collect())
        listed, removed = self._sync(now)
        recorded = self._store(now)
        started = self._start_due(now)
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
        self._thread = threading.Thread(target=self._run, name="dag-files", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and every parser child; files that were being read stay due."""
        self._stopping.set()
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

    def _sync(self, now: datetime) -> tuple[int | None, tuple[str, ...]]:
        self._listing = self._watch.look() or self._listing
        if self._listing is None:
            return None, ()
        listing = self._listing
        removed = files.sync(self._engine, listing.files, complete=listing.complete, now=now)
        self._listing = None
        return len(listing.files), removed

    def _store(self, now: datetime) -> dict[str, files.Recorded]:
        recorded = {}
        while self._answers:
            parsed = self._parsed(self._answers[0])
            result = files.record(
                self._engine,
                parsed,
                claimed_by=self._id,
                now=now,
                min_interval=timedelta(seconds=self._settings.scheduler.min_file_process_interval),
            )
            self._answers.popleft()
            self._claimed.pop(parsed.path, None)
            if result.accepted:
                recorded[parsed.path] = result
                self._say(parsed.path, result.problem)
        return recorded

    def _say(self, path: str, problem: files.ImportProblem | None) -> None:
        """Log a problem when it is new; the file is read again and again."""
        if problem is None:
            self._said.pop(path, None)
        elif self._said.get(path) != problem.message:
            self._said[path] = problem.message
            log.warning("The DAG file %s cannot be used: %s", path, problem.message)

    def _parsed(self, answer: Answer) -> files.ParsedFile:
        paused = self._settings.core.dags_are_paused_at_creation
        return files.ParsedFile(
            path=answer.file,
            modified_at=self._claimed[answer.file],
            duration_s=answer.duration_s,
            dags=tuple(_dag(row, paused) for row in answer.dags),
            problem=files.ImportProblem(**answer.problem) if answer.problem else None,
        )

    def _start_due(self, now: datetime) -> tuple[str, ...]:
        limits = self._settings.scheduler
        room = limits.parsing_processes - self._parser.busy
        if room <= 0:
            return ()
        claimed = files.claim(
            self._engine,
            claimed_by=self._id,
            now=now,
            until=now + timedelta(seconds=limits.dag_file_processor_timeout + CLAIM_MARGIN_S),
            limit=room,
            sort_mode=limits.file_parsing_sort_mode,
            host=self._host,
        )
        # A file whose claim lapsed while it is still being read here is only claimed anew.
        fresh = [file.path for file in claimed if file.path not in self._claimed]
        self._claimed |= {file.path: file.modified_at for file in claimed}
        self._parser.submit(fresh)
        return tuple(fresh)

    def _clock(self) -> datetime:
        """Claims are compared with those of other schedulers, so all of them go by the database's clock."""
        with self._engine.connect() as connection:
            return schedules.clock(connection)

    def _ring(self) -> None:
        if self._doorbell is not None:
            self._doorbell.ring("plan")

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self.pulse.beat()
                turn = self.run_once(self._clock())
            except DBAPIError as error:
                if not failing:
                    log.warning("DAG files wait for the database: %s", str(error.orig).strip())
                failing = True
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            except Exception:
                # Whatever it is, the next turn may do better, and the DAGs that are stored go on being scheduled.
                log.exception("A turn over the DAG files failed")
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            else:
                failing = False
                if not turn.stored:
                    self._rest()

    def _rest(self) -> None:
        """Until an answer came, the folder changed, or it is time to look into the database again."""
        end = time.monotonic() + self._settings.scheduler.scheduler_idle_sleep_time
        while time.monotonic() < end and not self._stopping.is_set():
            if self._parser.busy:
                if self._parser.wait(GLANCE_S):
                    return
            else:
                self._stopping.wait(GLANCE_S)
            if self._watch.changed():
                return


def _dag(row: dict[str, Any], paused: bool) -> files.ParsedDag:
    own = row["is_paused_upon_creation"]
    return files.ParsedDag(
        dag_id=row["dag_id"],
        content_hash=row["content_hash"],
        data=row["data"],
        is_paused=paused if own is None else own,
    )
