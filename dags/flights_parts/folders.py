"""The folder of a run, and atomic writes to it: each result appears complete or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOT_IN_A_NAME = frozenset("/\\*?[]{}")


def run_folder(run_id: str) -> Path:
    """The folder of one run, `$PACELINE_HOME/data/flights/<run_id>`, made if it is missing.

    Raises ValueError for a run ID that points outside of it, or that Spark would read as a path pattern.
    """
    if run_id in {"", ".", ".."} or _NOT_IN_A_NAME & set(run_id):
        unfit = " ".join(sorted(_NOT_IN_A_NAME))
        raise ValueError(f"Run id {run_id!r} cannot name a folder; trigger the run with an id without any of {unfit}")
    folder = Path(os.environ["PACELINE_HOME"]) / "data" / "flights" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def attempt(target: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename it to `target` if the block succeeds. A failed block leaves nothing.

    Each attempt has its own folder, so an attempt that was declared lost cannot mix its files with those of its successor.
    """
    scratch = target.parent / f".attempt-{uuid.uuid4().hex}"
    scratch.mkdir(parents=True)
    try:
        yield scratch / target.name
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, target: Path) -> None:
    # A folder cannot replace a folder with files, so the old one is moved aside first. No task reads it in between: those that
    # do start only after this one has succeeded.
    if target.is_dir():
        target.rename(scratch / "previous")
    (scratch / target.name).replace(target)
