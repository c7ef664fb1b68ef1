"""Reads the sources of bundles that are due, and publishes what has changed. One scheduler at a time reads a source."""

import hashlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.dagfiles.bundle_files import read_folder
from scheduler.dagfiles.git_source import GitSource
from scheduler.dagfiles.storage_source import StorageSource
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from scheduler.settings.bundle_sources import BundleSource, parse
from scheduler.store.dags import bundles
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

log = logging.getLogger(__name__)

#: Seconds by which a claim outlives the time limit of a reading.
CLAIM_MARGIN_S = 60.0
#: Longest time between two questions for due sources, in seconds.
ASK_S = 1.0
#: Who publishes, in the bundle versions.
PUBLISHER = "source"


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a source has: its revision, and its files by path unless this revision was read before."""

    revision: str
    files: dict[str, bundles.BundleFile] | None = None
    message: str = ""


class Sources:
    """The sources in bundles.sources. Each is read in a thread of its own, so that one that hangs delays no other."""

    def __init__(self, engine: Engine, settings: Settings, published: Callable[[], None]) -> None:
        """`published` is called after each new version."""
        self._engine = engine
        self._settings = settings
        self._published = published
        self._sources = {source.bundle: source for source in parse(settings.bundles.sources)}
        self._threads: dict[str, threading.Thread] = {}
        self._ask_at = 0.0
        self._is_entered = False
        #: The last logged problem of each bundle.
        self._logged: dict[str, str | None] = {}

    def read_due(self) -> list[threading.Thread]:
        """Start to read the due sources that no other scheduler reads, and return the threads."""
        if time.monotonic() < self._ask_at or (self._is_entered and not self._sources):
            return []
        if not self._is_entered:
            transact(self._engine, bundles.enter_sources, sorted(self._sources))
            self._is_entered = True
        interval_s = self._settings.bundles.poll_interval
        self._ask_at = time.monotonic() + min(ASK_S, interval_s)
        idle = [name for name in self._sources if name not in self._threads or not self._threads[name].is_alive()]
        lease_s = self._settings.bundles.read_timeout + CLAIM_MARGIN_S
        due = transact(self._engine, bundles.claim_source, idle, interval_s=interval_s, lease_s=lease_s)
        started: list[threading.Thread] = []
        for bundle, state in due.items():
            source = self._sources[bundle]
            # What was read from another place says nothing about this one.
            known = state if state.get("title") == source.title else {"title": source.title}
            thread = VitalThread(target=self._read, args=(source, known), name=f"bundle-source-{bundle}", daemon=True)
            self._threads[bundle] = thread
            thread.start()
            started.append(thread)
        return started

    def _read(self, source: BundleSource, known: dict[str, str]) -> None:
        """Read a source, publish its content unless it is that of the last reading (`known`), and store the result."""
        state, problem = known, None
        try:
            state = self._published_state(source, known)
        except PacelineError as error:
            problem = str(error)
        except SQLAlchemyError as error:
            log.warning("The source of bundle %s could not be published: %s", source.bundle, _line(error))
            return  # the claim expires
        except Exception as error:
            log.exception("The source of bundle %s cannot be read", source.bundle)
            problem = f"{source.title} cannot be read: {type(error).__name__}; see the log of the scheduler."
        if problem != self._logged.get(source.bundle):
            self._logged[source.bundle] = problem
            if problem is None:
                log.info("The source of bundle %s can be read again", source.bundle)
            else:
                log.warning("Bundle %s keeps its version: %s", source.bundle, problem)
        try:
            transact(self._engine, bundles.source_done, source.bundle, state, problem)
        except SQLAlchemyError as error:
            log.warning("The state of the source of bundle %s could not be stored: %s", source.bundle, _line(error))

    def _published_state(self, source: BundleSource, known: dict[str, str]) -> dict[str, str]:
        reading = self._reading(source, known.get("revision"))
        if reading.files is None:
            return known
        digest = bundles.digest_of(
            bundles.Entry(path, hashlib.sha256(file.content).hexdigest(), file.is_executable)
            for path, file in reading.files.items()
        )
        if digest != known.get("digest"):
            origin = f"{source.title} at {reading.revision}" if source.is_git else source.title
            published = transact(
                self._engine, bundles.publish, source.bundle, reading.files, by=PUBLISHER, message=reading.message, origin=origin,
                code_url=self._settings.bundles.code_url,
            )  # fmt: skip
            log.info("Version %d of bundle %s was read from %s", published.number, source.bundle, origin)
            self._published()
        return {"title": source.title, "revision": reading.revision, "digest": digest}

    def _reading(self, source: BundleSource, known: str | None) -> _Reading:
        limits = self._settings.bundles
        connection = self._connection(source.connection)
        with tempfile.TemporaryDirectory(prefix="paceline-source-") as name:
            folder = Path(name)
            if source.is_git:
                git = GitSource(source, connection, folder, timeout_s=limits.read_timeout)
                commit = git.newest()
                if commit == known:
                    return _Reading(commit)
                files, subject = git.read(commit)
                return _Reading(commit, read_folder(files, limits), subject)
            storage = StorageSource(source, connection, limits)
            stamp = storage.newest()
            return _Reading(stamp) if stamp == known else _Reading(stamp, storage.read(folder))

    def _connection(self, conn_id: str) -> Connection | None:
        if not conn_id:
            return None
        return transact(self._engine, connections.connection, conn_id, Cipher.of(self._settings, make=False))


def _line(error: SQLAlchemyError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
