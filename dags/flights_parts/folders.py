"""Where a run writes, and how: each result appears whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOT_IN_A_NAME = frozenset("/\\*?[]{}")


def run_folder(run_id: str) -> Path:
    """The folder of one run, `$PACELINE_HOME/data/flights/<run_id>`, made if it is missing.

    Raises ValueError for a run id that would leave that place, or that Spark would read as a pattern of paths.
    """
    if run_id in {"", ".", ".."} or _NOT_IN_A_NAME & set(run_id):
        unfit = " ".join(sorted(_NOT_IN_A_NAME))
        raise ValueError(f"Run id {run_id!r} cannot name a folder; trigger the run with an id without any of {unfit}")
    folder = Path(os.environ["PACELINE_HOME"]) / "data" / "flights" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def attempt(target: Path) -> Iterator[Path]:
    """Give a path to write to, and rename it to `target` when the block ends well; a failed block leaves nothing.

    Each attempt has a folder of its own, so an attempt thought dead cannot mix its files with those of its successor.
    """
    scratch = target.parent / f".attempt-{uuid.uuid4().hex}"
    scratch.mkdir(parents=True)
    try:
        yield scratch / target.name
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _publish(scratch: Path, target: Path) -> None:
    # A folder cannot be renamed onto a folder with files. Moved aside first, the old one is missing for an instant,
    # which nobody sees: the tasks that read it start only after this one has succeeded.
    if target.is_dir():
        target.rename(scratch / "previous")
    (scratch / target.name).replace(target)
