"""Makes the wanted versions of bundles live: a scheduler parses the files of a version in child processes, then switches its DAGs.

A version with an error in any of its files is refused, and the live one stays.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DataError, DBAPIError

from paceline.exceptions import PacelineError
from scheduler.dagfiles import problem, watch
from scheduler.dagfiles.answers import Answer, DagCheck, MalformedDagError
from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.environments import Environments, RequirementsError
from scheduler.dagfiles.parser import Parser
from scheduler.dagfiles.sources import Sources
from scheduler.dagfiles.supervise import AWAY, STOP_S, stored_dag
from scheduler.messaging.wakeups import Wakeups
from scheduler.process.health import ServerHealth, StepHealth, VitalThread
from scheduler.settings import Settings
from scheduler.store.dags import bundle_versions
from scheduler.store.dags.bundle_versions import ClaimedVersion, Live, ParsedBundleFile
from scheduler.store.dags.files import TOO_LONG
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db import sqlstates
from scheduler.store.db.database import transact

log = logging.getLogger(__name__)

#: Seconds until another scheduler may parse the version of a scheduler that was killed, and between two renewals of a claim.
LEASE_S = 20.0
RENEW_S = 5.0
#: Seconds of a wait for the next answer.
ANSWER_S = 0.5
#: Seconds between two looks at a thread that stops.
STOP_POLL_S = 0.05
#: With such a version, all DAGs of its bundle would be gone: more likely, its folder is the wrong one.
NO_DAG_FILES = "The bundle has no DAG file: name the folder with the DAG files."


def parse_folder(parser: Parser, folder: Path, settings: Settings, python: str = sys.executable) -> Iterator[list[Answer]]:
    """Parse all DAG files of a folder with this Python. Yields the answers that arrive, at least every ANSWER_S seconds."""
    waiting = watch.dag_files(folder, settings.core.dag_ignore_file_syntax) or []
    left = len(waiting)
    waiting.reverse()
    parser.use(folder, python)
    while left:
        free = settings.scheduler.parsing_processes - parser.busy
        parser.submit([waiting.pop() for _ in range(min(free, len(waiting)))])
        parser.wait(ANSWER_S)
        answers = parser.collect()
        left -= len(answers)
        yield answers


class BundleManager:
    """Parses the wanted versions of bundles, which the managers of all schedulers share, and reads the sources of bundles.

    `run_once` is one iteration, for callers with their own loop. `start` and `stop` run it in a thread with a loop.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        scheduler_id: Callable[[], str],
        folders: BundleCache,
        *,
        wakeups: Wakeups | None = None,
        own_wakeups: Wakeups | None = None,
    ) -> None:
        """`own_wakeups` are those of BUNDLES_KEY; without them, `start` only polls."""
        self._engine = engine
        self._settings = settings
        #: The ID changes if the scheduler was declared lost, so that its claims expire.
        self._scheduler_id = scheduler_id
        self._folders = folders
        self._wakeups = wakeups
        self._own_wakeups = own_wakeups
        self._parser = Parser(settings, details=True)
        self._environments = Environments.of(settings)
        self._renew_at = 0.0
        self._check = DagCheck()
        self._sources = Sources(engine, settings, self._published)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._rests = False
        # Storing a large version may take as long as a statement.
        self._iterations = StepHealth("The bundles have not been checked", 2 * settings.database.statement_timeout)
        self._progress = ServerHealth()

    def complaint(self, now: float) -> str | None:
        """Return why bundles do not become live, for the scheduler's health. `now` is the time on the monotonic clock."""
        return self._iterations(now) or self._progress(now)

    def run_once(self) -> Live | None:
        """Make one wanted version live, or refuse it. None if there is none that no other scheduler has."""
        self._iterations.ran()
        self._sources.read_due()
        claimed = transact(self._engine, bundle_versions.claim, claimed_by=self._scheduler_id(), lease_s=LEASE_S)
        if claimed is None:
            return None
        started = time.monotonic()
        live = transact(self._engine, bundle_versions.go_live, claimed.id) if claimed.is_parsed else self._parse(claimed)
        name = f"Version {claimed.number} of bundle {claimed.bundle}"
        if live.is_live:
            log.info("%s is live after %.2f s; %d of its DAGs changed", name, time.monotonic() - started, len(live.changed))
            if self._wakeups is not None and live.changed:
                self._wakeups.wake("plan")
        elif live.problems:
            file, first = live.problems[0]
            log.warning("%s is refused: %s: %s", name, f"{file}, line {first.line}" if first.line else file, first.message)
        return live

    def start(self) -> None:
        """Run iterations in a thread until `stop`."""
        self._stopping.clear()
        self._thread = VitalThread(target=self._run, name="bundles", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and all parser processes. Another scheduler parses the version that was being parsed."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_S
        # A thread that waits for a wakeup does nothing more after it.
        while self._thread is not None and self._thread.is_alive() and not self._rests and time.monotonic() < deadline:
            self._thread.join(STOP_POLL_S)
        self._thread = None
        self._parser.stop()
        try:
            transact(self._engine, bundle_versions.release, claimed_by=self._scheduler_id())
        except DBAPIError as error:  # the claim expires by itself
            log.warning("The claim on a bundle version could not be released: %s", error.orig)

    def _parse(self, claimed: ClaimedVersion) -> Live:
        try:
            folder = self._folders.path(claimed.id)
        except PacelineError as error:
            return self._refuse(claimed, "", Problem.make(str(error)))
        try:
            answers = self._answers(claimed, folder)
        except RequirementsError as error:
            return self._refuse(claimed, "requirements.txt", Problem.make(str(error)))
        finally:
            self._folders.release(claimed.id)
            if self._parser.busy:  # the database is away, another scheduler has the version, or this one stops
                self._parser.stop()
        if answers is None:
            return Live(is_live=False)
        if not answers:
            return self._refuse(claimed, "", Problem.make(NO_DAG_FILES))
        files = [self._parsed(answer) for answer in answers]
        try:
            return transact(self._engine, bundle_versions.record, claimed.id, files, claimed_by=self._scheduler_id())
        except DBAPIError as error:
            if not isinstance(error, DataError) and getattr(error.orig, "pgcode", None) != TOO_LONG:
                raise
            return self._refuse(claimed, "", Problem.make(f"PostgreSQL cannot store its DAGs: {sqlstates.first_line(error)}."))

    def _answers(self, claimed: ClaimedVersion, folder: Path) -> list[Answer] | None:
        """Parse all DAG files of a version. None if another scheduler has it meanwhile, or this one stops."""
        answers: list[Answer] = []
        self._renew_at = time.monotonic() + RENEW_S
        python: Future[str] = Future()
        threading.Thread(target=lambda: _settle(python, self._environments, folder), name="requirements", daemon=True).start()
        while not python.done():
            with contextlib.suppress(NotYet):
                python.exception(ANSWER_S)
            if not self._keeps(claimed):
                return None
        try:
            for some in parse_folder(self._parser, folder, self._settings, python.result()):
                answers += some
                if not self._keeps(claimed):
                    return None
        finally:
            self._environments.release(python.result())
        return answers

    def _keeps(self, claimed: ClaimedVersion) -> bool:
        """Renew the claim if it is time. False if another scheduler has the version, or this one stops."""
        self._iterations.ran()
        if self._stopping.is_set():
            return False
        if time.monotonic() < self._renew_at:
            return True
        self._renew_at = time.monotonic() + RENEW_S
        return transact(self._engine, bundle_versions.renew, claimed.id, claimed_by=self._scheduler_id(), lease_s=LEASE_S)

    def _parsed(self, answer: Answer) -> ParsedBundleFile:
        try:
            for row in answer.dags:
                self._check.check(row, answer.file)
        except MalformedDagError as error:
            return ParsedBundleFile(path=answer.file, problem=problem.of_answer(str(error)))
        paused = self._settings.core.dags_are_paused_at_creation
        return ParsedBundleFile(
            path=answer.file,
            dags=tuple(replace(stored_dag(row, paused), tasks=answer.details_of(row.dag_id)) for row in answer.dags),
            modules=answer.modules,
            problem=answer.problem,
        )

    def _refuse(self, claimed: ClaimedVersion, file: str, reason: Problem) -> Live:
        return transact(self._engine, bundle_versions.refuse, claimed.id, [(file, reason)])

    def _published(self) -> None:
        """A source has a new version: parse it at once."""
        if self._wakeups is not None:
            self._wakeups.wake_parsers()

    def _run(self) -> None:
        failing, is_warm = False, False
        while not self._stopping.is_set():
            try:
                if not is_warm and transact(self._engine, bundle_versions.exist):
                    # Its start takes most of the time until the first version is live.
                    self._parser.use(self._settings.dags_folder)
                is_warm = True
                live = self.run_once()
            except AWAY as error:
                if not failing:
                    log.warning("Bundles wait for the database: %s", str(error.orig).strip())
                failing = True
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            except Exception as error:
                # The claim expires, and another scheduler tries. The live versions stay.
                log.exception("An iteration over the bundles failed")
                self._progress.failed(f"No bundle becomes live: each iteration fails with {type(error).__name__}; see the log.")
                self._stopping.wait(self._settings.scheduler.scheduler_idle_sleep_time)
            else:
                failing = False
                self._progress.answered()
                if live is None:
                    self._rest()

    def _rest(self) -> None:
        """Wait for a wakeup, but not longer than until the next poll."""
        poll_s = self._settings.scheduler.scheduler_idle_sleep_time
        self._rests = True
        if self._own_wakeups is None or self._own_wakeups.wait(poll_s) is None:
            self._stopping.wait(poll_s)
        if not self._stopping.is_set():
            self._rests = False


def _settle(python: Future[str], environments: Environments, folder: Path) -> None:
    try:
        python.set_result(environments.python(folder))
    except BaseException as error:
        python.set_exception(error)
