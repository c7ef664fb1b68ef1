"""Detects the distribution `scheduler` of PyPI. Its package has the name of ours, so each overwrites files of the other."""

from pathlib import Path

from paceline.exceptions import PacelineError

FOLDER = Path(__file__).resolve().parents[2]


class ClashError(PacelineError):
    """Another distribution has installed files into the package `scheduler`."""


def check(folder: Path = FOLDER) -> None:
    """Raise ClashError if the distribution `scheduler` is installed in the same folder as Paceline. It takes one listing."""
    for metadata in folder.glob("scheduler-*.*-info"):
        raise ClashError(
            f"The package {metadata.name.rsplit('.', 1)[0]} is installed next to Paceline, and both have a module `scheduler`:"
            " run `pip uninstall scheduler`, then `pip install --force-reinstall --no-deps paceline`."
        )
