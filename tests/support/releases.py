"""The previous release: its code, and its processes beside those of the checkout, in one environment."""

import os
import subprocess
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.embedded.stack import PACELINE

ROOT = Path(__file__).parents[2]
PYPROJECT = ROOT / "pyproject.toml"
#: Releases without it have schemas that no migration leads to this one.
BASELINE = "scheduler/store/db/migrations/versions/0001_baseline.sql"
COMMAND_S = 120.0


@dataclass(frozen=True)
class Release:
    """A release by the folder with its packages. A process takes it by its environment."""

    name: str
    folder: Path

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process of this release. It has the settings file of its release, as `upgrade.md` requires."""
        return {**base, "PYTHONPATH": str(self.folder), "PACELINE_CONFIG": str(self.folder / "config" / "paceline.toml")}

    def cli(self, base: Mapping[str, str], *arguments: str) -> str:
        """The output of `paceline ...` of this release, which must succeed."""
        command = [*PACELINE, *arguments]
        done = subprocess.run(command, env=self.environment(base), capture_output=True, text=True, timeout=COMMAND_S, check=False)
        assert done.returncode == 0, f"paceline {' '.join(arguments)} of {self.name}: {done.stderr}"
        return done.stdout

    def head(self, base: Mapping[str, str]) -> str:
        """The revision of the schema that this release was written for."""
        program = "import scheduler; from scheduler.store.db import migrate; print(scheduler.__file__, migrate.head())"
        command = [PACELINE[0], "-P", "-c", program]
        done = subprocess.run(command, env=self.environment(base), capture_output=True, text=True, timeout=COMMAND_S, check=True)
        file, revision = done.stdout.split()
        assert Path(file).is_relative_to(self.folder), f"{self.name} would run {file}"
        return revision


def this() -> Release:
    """The code of the checkout."""
    return Release("the checkout", ROOT)


def previous(folder: Path) -> Release | None:
    """The code of the former release, extracted to `folder`; None if there is none with this schema.

    UPGRADE_FROM names its commit. Otherwise it is the newest commit that set another version than that of the checkout, so a clone
    needs no tags, but the whole history.
    """
    name = os.environ.get("UPGRADE_FROM") or _former()
    if name is None:
        return None
    folder.mkdir()
    packed = folder / "release.tar"
    packed.write_bytes(_git("archive", name, "paceline", "scheduler", "workers", "config"))
    with tarfile.open(packed) as files:
        files.extractall(folder, filter="data")
    return Release(name, folder)


def _former() -> str | None:
    """The newest commit that set another version in pyproject.toml, if its schema begins with the same baseline."""
    assert _git("rev-parse", "--is-shallow-repository").strip() == b"false", "Fetch the whole history: git fetch --unshallow"
    version = _version(PYPROJECT.read_bytes())
    for commit in _git("log", "--format=%H", "-G^version = ", "--", PYPROJECT.name).decode().split():
        set_version = _version(_git("show", f"{commit}:{PYPROJECT.name}"))
        if set_version != version:
            return commit if _git("ls-tree", "--name-only", commit, BASELINE) else None
    return None


def _version(pyproject: bytes) -> str:
    return str(tomllib.loads(pyproject.decode())["project"]["version"])


def _git(*arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.decode()}"
    return done.stdout
