"""Reads the sources of bundles that are due, and publishes what has changed. One scheduler at a time reads a source.

A source is a Git repository, which the program git reads without its configuration, hooks, submodules and prompts; or an archive
or a folder at a URL that fsspec supports: object storage, HDFS, HTTP, a mounted folder.
"""

import hashlib
import json
import logging
import os
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from paceline.authoring.connection import Connection
from paceline.authoring.object_storage import storage_options
from paceline.exceptions import PacelineError
from scheduler.dagfiles import process_tree
from scheduler.dagfiles.bundle_files import belongs, most_archive_bytes, read_archive, read_folder
from scheduler.process import hardening
from scheduler.process.health import VitalThread
from scheduler.settings import Settings
from scheduler.settings.sections import Bundles
from scheduler.settings.types import GIT_SCHEMES, BundleSource, bundle_sources
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

COMMIT_DIGITS = 40
#: Bytes of the output and of the errors of git that are read.
MOST_OUTPUT = 64 << 10
#: Lines of its errors that say nothing about the cause.
EMPTY_LINES = (
    "hint:",
    "Please make sure you have",
    "and the repository exists",
    "fatal: Could not read from",
    "Cloning into",
    "warning:",
)
#: A credential helper that answers with the login of a connection, which no other program gets.
LOGIN_HELPER = '!f() { printf \'username=%s\\npassword=%s\\n\' "$PACELINE_GIT_LOGIN" "$PACELINE_GIT_TOKEN"; }; f'
CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.symlinks": "true",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "fetch.fsckObjects": "true",
    "filter.lfs.smudge": "",
    "filter.lfs.required": "false",
    "gc.auto": "0",
    "credential.helper": "",
    "safe.directory": "*",
}


class GitSource:
    """One reading of a Git repository. It ends within `timeout_s`. PacelineError says in one sentence what failed.

    `folder` is an empty folder for the files of git.
    """

    def __init__(self, source: BundleSource, connection: Connection | None, folder: Path, *, timeout_s: float) -> None:
        self._source = source
        self._folder = folder
        self._timeout_s = timeout_s
        self._ends_at = time.monotonic() + timeout_s
        self._environment = self._login(connection)

    def newest(self) -> str:
        """The commit ID of the ref."""
        ref = self._source.ref
        if _is_commit(ref):
            return ref
        names = [f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", ref] if ref else ["HEAD"]
        lines = self._git("ls-remote", "--", self._source.url, *names).splitlines()
        commits = {name: commit for commit, _, name in (line.partition("\t") for line in lines)}
        found = next((commits[name] for name in names if name in commits), None)
        if found is None:
            what = f"branch or tag {ref!r}" if ref else "default branch"
            raise PacelineError(f"{self._source.title} has no {what}.")
        return found

    def read(self, commit: str) -> tuple[Path, str]:
        """The folder of the bundle with the files of the commit, and the first line of its message."""
        repository, files = self._folder / "repository", self._folder / "files"
        files.mkdir()
        self._git("init", "--quiet", "--bare", "--template=", str(repository))
        at = f"--git-dir={repository}"
        self._git(at, "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", self._source.url, commit)
        subject = self._git(at, "log", "-1", "--format=%s", commit).strip()
        part = [f":(top,literal){self._source.folder}"] if self._source.folder else ["."]
        self._git(at, f"--work-tree={files}", "checkout", "--quiet", commit, "--", *part, cwd=files)
        return files / self._source.folder, subject

    def _login(self, connection: Connection | None) -> dict[str, str]:
        """The environment of git. A secret is in it or in a file, never in an argument, which other users see."""
        environment = {name: value for name, value in hardening.clean(os.environ.items()).items() if not name.startswith("GIT_")}
        extra = {} if connection is None else connection.extra_dejson
        config = dict(CONFIG)
        key = self._source.key or str(extra.get("key_file") or "")
        if urlsplit(self._source.url).scheme == "ssh":
            if text := extra.get("private_key"):
                key = str(self._private(str(text)))
            environment["GIT_SSH_COMMAND"] = shlex.join(_ssh(key, self._source.known_hosts, extra))
        else:
            token = self._token(key) if key else (connection.password if connection is not None else None)
            if token:
                site = urlsplit(self._source.url)
                config[f"credential.{site.scheme}://{site.hostname}{f':{site.port}' if site.port else ''}.helper"] = LOGIN_HELPER
                login = (connection.login if connection is not None else None) or site.username or "token"
                environment |= {"PACELINE_GIT_LOGIN": login, "PACELINE_GIT_TOKEN": token}
        # An empty helper removes those before it, so it must come first.
        for number, (name, value) in enumerate(config.items()):
            environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
        return environment | {
            "GIT_CONFIG_COUNT": str(len(config)),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "true",
            "SSH_ASKPASS": "true",
            "GIT_ALLOW_PROTOCOL": ":".join(GIT_SCHEMES),
            "GIT_LFS_SKIP_SMUDGE": "1",
            "LC_ALL": "C.UTF-8",
        }

    def _private(self, text: str) -> Path:
        path = self._folder / "key"
        path.touch(mode=0o600)
        path.write_text(text.strip() + "\n", encoding="utf-8")
        return path

    def _token(self, file: str) -> str:
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PacelineError(f"The key {file} of bundle {self._source.bundle!r} cannot be read: {error}.") from None

    def _git(self, *arguments: str, cwd: Path | None = None) -> str:
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = process_tree.start(
                    ["git", *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=self._environment,
                    cwd=cwd or self._folder, start_new_session=True,
                )  # fmt: skip
            except FileNotFoundError:
                raise PacelineError(
                    "The program git is not installed.", fix="Install it for schedulers: bundles.sources has a repository."
                ) from None
            try:
                code = process.wait(max(0.0, self._ends_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise PacelineError(
                    f"{self._source.title} did not answer within {self._timeout_s:g} s (bundles.read_timeout)."
                ) from None
            finally:
                if process.poll() is None:
                    process_tree.kill_session(process.pid)
                    process.wait()
                process_tree.ended(process.pid)
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read(MOST_OUTPUT).decode("utf-8", "replace"))
        if code != 0:
            raise PacelineError(f"git cannot read {self._source.title}: {_reason(texts[1]) or f'exit code {code}'}.")
        return texts[0]


def _ssh(key: str, known_hosts: str, extra: dict[str, object]) -> Sequence[str]:
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"]
    checking = str(extra.get("strict_host_key_checking") or "yes")
    command += ["-o", f"StrictHostKeyChecking={checking if checking in {'yes', 'no', 'accept-new'} else 'yes'}"]
    if hosts := known_hosts or str(extra.get("known_hosts_file") or ""):
        command += ["-o", f"UserKnownHostsFile={hosts}"]
    if key:
        command += ["-o", "IdentitiesOnly=yes", "-i", key]
    return command


def _is_commit(ref: str) -> bool:
    return len(ref) == COMMIT_DIGITS and set(ref) <= set("0123456789abcdef")


def _reason(errors: str) -> str:
    """What git says, in one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip() and not line.startswith(EMPTY_LINES)]
    return "; ".join(line.removeprefix("fatal: ").removeprefix("error: ").rstrip(".") for line in lines[:2])[:500]


#: What identifies the content of an object, by file system: the first one that it has.
STAMPS = (
    "ETag",
    "etag",
    "md5Hash",
    "md5",
    "content_md5",
    "checksum",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)


class StorageSource:
    """One reading of an archive or a folder. PacelineError says in one sentence what failed."""

    def __init__(self, source: BundleSource, connection: Connection | None, limits: Bundles) -> None:
        import fsspec

        self._source = source
        self._limits = limits
        options = {} if connection is None else storage_options(fsspec.utils.get_protocol(source.url), connection)
        try:
            self._files, self._path = fsspec.url_to_fs(source.url, **options)
            # A listing that this process has kept would hide changes.
            self._files.invalidate_cache()
            self._listing = self._list()
        except PacelineError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def newest(self) -> str:
        """A text that changes when the archive or a file of the folder changes."""
        stamps = [(name, info.get("size"), _stamp(info)) for name, info in sorted(self._listing.items())]
        return hashlib.sha256(json.dumps(stamps, default=str).encode()).hexdigest()

    def read(self, folder: Path) -> dict[str, BundleFile]:
        """The files of the bundle. `folder` is an empty folder for copies."""
        try:
            if self._source.is_archive:
                with self._files.open(self._path, "rb") as packed:
                    return read_archive(packed, self._limits)
            for name in self._listing:
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._path.rstrip('/')}/{name}", str(copy))
            return read_folder(folder, self._limits)
        except PacelineError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def _list(self) -> dict[str, Mapping[str, Any]]:
        """The files by path relative to the folder, or the archive."""
        if self._source.is_archive:
            info = self._files.info(self._path)
            if (info.get("size") or 0) > (most := most_archive_bytes(self._limits)):
                raise PacelineError(f"{self._source.title} has more than {most:,} bytes, which no bundle may have.")
            return {"": info}
        start = f"{self._path.rstrip('/')}/"
        found = {name: info for name, info in self._files.find(self._path, detail=True).items() if name.startswith(start)}
        files = {name.removeprefix(start): info for name, info in found.items()}
        files = {name: info for name, info in files.items() if name and all(map(belongs, name.split("/")))}
        if not files:
            raise PacelineError(f"{self._source.title} has no files.")
        if len(files) > self._limits.max_files:
            raise PacelineError(f"{self._source.title} has more files than bundles.max_files allows: {self._limits.max_files:,}.")
        if sum(info.get("size") or 0 for info in files.values()) > self._limits.max_bytes:
            raise PacelineError(f"{self._source.title} has more bytes than bundles.max_bytes allows: {self._limits.max_bytes:,}.")
        if outside := next((name for name in files if not {"", ".", ".."}.isdisjoint(name.split("/"))), None):
            raise PacelineError(f"{self._source.title} has an object whose name is no path of a file: {outside[:100]!r}.")
        return files

    def _failure(self, error: Exception) -> PacelineError:
        if isinstance(error, FileNotFoundError):
            return PacelineError(f"There is nothing at {self._source.title}.")
        text = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
        return PacelineError(f"{self._source.title} cannot be read: {type(error).__name__}{': ' if text else ''}{text}.")


def _stamp(info: Mapping[str, Any]) -> object:
    return next((value for name in STAMPS if (value := info.get(name)) is not None), None)


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
        self._sources = {source.bundle: source for source in bundle_sources(settings.bundles.sources)}
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
