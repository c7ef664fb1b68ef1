"""The previous release: its code, and its processes beside those of the checkout, in one environment."""

import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.embedded.stack import PACELINE

ROOT = Path(__file__).parents[2]
#: The release before as long as no version is tagged: the last commit with the schema 0018.
BEFORE_THE_FIRST_TAG = "b430c6aec0a180e9e60c2921f2a869f37798f80b"
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


def previous(folder: Path) -> Release:
    """The code of the last tagged version before the checkout's commit, extracted to `folder`."""
    tag = _git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    name = os.environ.get("UPGRADE_FROM") or (tag.stdout.decode().strip() if tag.returncode == 0 else BEFORE_THE_FIRST_TAG)
    folder.mkdir()
    archive = _git("archive", name, "paceline", "scheduler", "workers", "config")
    assert archive.returncode == 0, (
        f"The code of {name} is missing: fetch the whole history (git fetch --unshallow --tags). {archive.stderr.decode()}"
    )
    packed = folder / "release.tar"
    packed.write_bytes(archive.stdout)
    with tarfile.open(packed) as files:
        files.extractall(folder, filter="data")
    return Release(name, folder)


def _git(*arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
