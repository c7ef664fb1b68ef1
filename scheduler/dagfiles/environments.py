"""The environments of bundles on this machine: the packages that a bundle requires, installed once by uv, above the worker's own.

A bundle says in requirements.txt (or pylock.toml) in its root what it requires. Its environment is a folder with a name that
depends on the content of that file, on the archives of packages in the bundle, and on this Python with its packages: below the
packages of the bundle, those of the worker stay importable. What Paceline itself needs keeps its version.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.exceptions import PacelineError
from scheduler.dagfiles import process_tree
from scheduler.dagfiles.bundle_cache import SharedFolders
from scheduler.process import hardening
from scheduler.settings import Settings
from scheduler.settings.sections import Bundles

log = logging.getLogger("paceline.bundles")

#: The files of requirements; the first one counts.
FILES = ("requirements.txt", "pylock.toml")
#: Packages that requirements may name by their path in the bundle.
ARCHIVES = (".whl", ".tar.gz", ".zip")
#: Characters of what uv says.
LONGEST = 600
#: Around the lines of uv, with blanks.
DRAWING = " \t\N{MULTIPLICATION SIGN}╰─▶│├"
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s$]+@")
_OTHER_FILE = re.compile(r"\s*(-[rce]|--(?:requirements?|constraints?|editable))(?![\w-])")
#: A path, also behind the name of its package.
_LOCAL = re.compile(r"\s*(?:[\w.\[\],-]+\s*@\s*)?((?:file:|\.{1,2}/|/)\S*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class RequirementsError(PacelineError):
    """The requirements of a bundle cannot be installed."""


class Environments:
    """Installs the requirements of bundles. Threads may share it, and any number of processes may have the same folder."""

    def __init__(self, home: Path, limits: Bundles) -> None:
        """The environments are below `home`, and so is the cache of uv unless UV_CACHE_DIR names another one."""
        self._limits = limits
        self._cache = home / "uv"
        self._folders = SharedFolders(home / "environments", keep=limits.keep_environments, removed=_log_removal)
        #: By folder of a bundle version: the Python of its environment.
        self._known: dict[Path, str] = {}
        #: By environment: the descriptor that keeps it on this machine.
        self._held: dict[str, int] = {}

    @classmethod
    def of(cls, settings: Settings) -> "Environments":
        """Those of this machine."""
        return cls(settings.home, settings.bundles)

    def python(self, folder: Path) -> str:
        """The Python for the files of a bundle version: that of its environment, which is installed first if it is not there.

        It is the Python of this process if the bundle requires nothing, or the setting allows no installation. An environment
        stays until `release`, or until this process has ended. RequirementsError if the requirements cannot be installed.
        """
        if not self._limits.install_requirements:
            return sys.executable
        if folder not in self._known:
            self._known[folder] = self._installed(folder)
        return self._known[folder]

    def release(self, python: str) -> None:
        """Do not use the environment of this Python any more."""
        self._known = {folder: known for folder, known in self._known.items() if known != python}
        lock = self._held.pop(Path(python).parents[1].name, None)
        if lock is not None:
            os.close(lock)

    def _installed(self, folder: Path) -> str:
        required = next((name for name in FILES if (folder / name).is_file()), None)
        if required is None:
            return sys.executable
        _refuse_elsewhere(folder / required)
        name = _name(folder, required)
        if name not in self._held:
            self._held[name] = self._folders.hold(name, lambda place: self._install(place, folder, required))
        return str(self._folders.path(name) / "bin" / "python")

    def _install(self, place: Path, folder: Path, required: str) -> None:
        started = time.monotonic()
        uv = _uv()
        with tempfile.NamedTemporaryFile("w", prefix="paceline-own-", suffix=".txt") as own:
            own.write("".join(f"{name}=={version}\n" for name, version in sorted(_own_packages().items())))
            own.flush()
            # Relocatable: the folder gets its name when it is complete.
            self._run(
                [uv, "venv", "--quiet", "--relocatable", "--allow-existing", "--python", sys.executable, str(place)],
                folder,
                required,
            )
            python = str(place / "bin" / "python")
            # Copies: a task that changes a file must not change the cache.
            install = [uv, "pip", "install", "--quiet", "--python", python, "--link-mode", "copy", "--constraints", own.name]
            self._run([*install, "-r", required], folder, required)
        (packages,) = place.glob("lib/python*/site-packages")
        places = [path for path in (*site.getsitepackages(), site.getusersitepackages()) if Path(path).is_dir()]
        (packages / "_paceline.pth").write_text(f"import site; list(map(site.addsitedir, {places!r}))\n")
        log.info("%s of %s was installed in %.1f s", required, folder.name[:12], time.monotonic() - started)

    def _run(self, command: Sequence[str], folder: Path, required: str) -> None:
        environment = {"UV_CACHE_DIR": str(self._cache), **hardening.clean(os.environ.items()), "NO_COLOR": "1"}
        environment = {name: value for name, value in environment.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
        with tempfile.TemporaryFile() as output:
            process = process_tree.start(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=folder, start_new_session=True
            )
            try:
                code = process.wait(self._limits.install_timeout)
            except subprocess.TimeoutExpired:
                limit = f"{self._limits.install_timeout:g} s (bundles.install_timeout)"
                raise RequirementsError(f"{required} of the bundle was not installed within {limit}.") from None
            finally:
                if process.poll() is None:
                    process_tree.kill_session(process.pid)
                    process.wait()
                process_tree.ended(process.pid)
            output.seek(0)
            said = output.read().decode("utf-8", "replace")
        if code != 0:
            raise RequirementsError(f"{required} of the bundle cannot be installed: {_in_one_line(said) or f'exit code {code}'}")


def _refuse_elsewhere(file: Path) -> None:
    """Refuse what an environment does not depend on by its name, or what nobody should read in a version: RequirementsError."""
    text = file.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file.name} of the bundle, line {number}"
        if _PASSWORD.search(line):
            raise RequirementsError(
                f"{where}: an address has a password, which each reader of the version sees: set UV_DEFAULT_INDEX instead, for"
                " schedulers and workers."
            )
        if file.name != FILES[0]:
            continue
        if other := _OTHER_FILE.match(line):
            raise RequirementsError(
                f"{where}: {other[1]} names another file: write its requirements here, as `uv pip compile` does."
            )
        if (
            (local := _LOCAL.match(line)) and not (local[1].startswith("./") and local[1].endswith(ARCHIVES))
        ) or ".." in line.split("/"):
            raise RequirementsError(
                f"{where}: this is no archive in the bundle: build a wheel, and name it as ./wheels/<file>.whl."
            )


def _name(folder: Path, required: str) -> str:
    """The name of an environment: equal ones have equal requirements, archives of packages, and the same Python."""
    files = [folder / required, *sorted(path for path in folder.rglob("*") if path.name.endswith(ARCHIVES))]
    contents = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    described = json.dumps([contents, sys.version, sys.prefix, sorted(_own_packages().items())])
    return hashlib.sha256(described.encode()).hexdigest()[:32]


def _own_packages() -> dict[str, str]:
    """The packages that Paceline itself needs on this machine, with their versions."""
    found: dict[str, str] = {}
    waiting = ["paceline"]
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            package = importlib.metadata.distribution(name)
            new = [required for required in _required(package) if required not in found]
            found |= dict.fromkeys(new, "")
            waiting += new
            found[name] = package.version
    del found["paceline"]
    return {name: version for name, version in found.items() if version}


def _required(package: importlib.metadata.Distribution) -> Iterator[str]:
    """The names of the packages that a package needs without its extras."""
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        match = _NAME.match(requirement)
        if match is not None and "extra" not in marker:
            yield re.sub(r"[-_.]+", "-", match[0]).lower()


def _uv() -> str:
    """The program uv: of the package uv, or on the PATH."""
    if importlib.util.find_spec("uv") is not None:
        with contextlib.suppress(FileNotFoundError):
            return str(importlib.import_module("uv").find_uv_bin())
    found = shutil.which("uv")
    if found is None:
        raise RequirementsError(
            "The program uv is not installed, which installs the requirements of bundles.",
            fix="Run `pip install uv` on the machines of schedulers and workers, or turn bundles.install_requirements off.",
        )
    return found


def _log_removal(name: str) -> None:
    log.info("environment %s makes room on this machine: it was not needed for the longest time", name[:12])


def _in_one_line(said: str) -> str:
    """What uv says, without its drawing."""
    words = " ".join(line.strip(DRAWING) for line in said.splitlines())
    text = " ".join(words.split()).removeprefix("error: ")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
