"""Reads a bundle from a Git repository, by the program git: without its configuration, hooks, submodules, prompts or a shell."""

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError
from scheduler.dagfiles import process_tree
from scheduler.process import hardening
from scheduler.settings.bundle_sources import GIT_SCHEMES, BundleSource

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
