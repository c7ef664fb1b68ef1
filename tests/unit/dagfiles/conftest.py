"""Files that are loaded and listed in the test process."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.dagfiles.watch import Listing, Watch
from scheduler.settings import airflow_options


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    """Each test leaves the import path and the imported modules as they were."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    airflow_options.use(None)
    # A second copy of one of our own modules would have classes that differ from those of other tests.
    for name in {name for name in set(sys.modules) - modules if not name.startswith(("paceline", "scheduler"))}:
        del sys.modules[name]


def listing(folder: Path, **options: Any) -> Listing:
    """The first listing of a folder."""
    watch = Watch(folder, list_interval_s=3600, **options)
    try:
        found = watch.look()
    finally:
        watch.close()
    assert found is not None
    return found
