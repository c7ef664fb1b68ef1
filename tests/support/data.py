"""Writes the files of an attempt of a task."""

from pathlib import Path

from scheduler.settings import Settings
from scheduler.settings.data_folder import Place


def attempt(settings: Settings, dag_id: str, run_id: str, run_key: int, task_id: str = "first") -> Path:
    """Create the folder of an attempt with a file in it, and return the folder."""
    place = Place(
        data_url=settings.data_url, dag_id=dag_id, run_id=run_id, run_key=run_key, task_id=task_id, map_index=-1,
        try_number=1, dispatch_id="x",
    )  # fmt: skip
    folder = Path(place.url.removeprefix("file://"))
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"12345")
    return folder
