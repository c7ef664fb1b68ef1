"""Installs Apache Airflow with pinned versions, once, in its own environment outside of the repository."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

VERSION = "3.3.2"
#: The measured versions of all packages. Airflow's own constraints are not in the package index.
PINS = Path(__file__).with_name("airflow.txt")
#: The environment variable with the folder of the environment, like --airflow.
VARIABLE = "BENCH_AIRFLOW"


def default_folder() -> Path:
    """$BENCH_AIRFLOW, or a folder of the user's cache that is named after the version."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "paceline" / f"airflow-{VERSION}"


def install(folder: Path, *, say: Callable[[str], None]) -> Path:
    """The folder of the environment's programs. Installs this version with these pins if it is missing (some minutes, 1 GB)."""
    mark, wanted = folder / ".installed", f"{VERSION}\n{PINS.read_text(encoding='utf-8')}"
    if not mark.exists() or mark.read_text(encoding="utf-8") != wanted:
        say(f"Installing Apache Airflow {VERSION} into {folder}; once, some minutes")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--constraint", str(PINS), f"apache-airflow[celery,postgres]=={VERSION}"], check=True)
        mark.write_text(wanted, encoding="utf-8")
    return folder / "bin"
