"""A catalog of pyiceberg in a temporary folder, and the context of a task that uses it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from paceline.authoring import execution


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    one = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    one.create_namespace("sales")
    yield one
    one.close()


#: A function that makes the context of a task with a logical date, for a `with` block.
InTask = Callable[..., AbstractContextManager[dict[str, Any]]]


@pytest.fixture
def in_task(catalog: SqlCatalog) -> InTask:
    def within(
        start: datetime | None = None,
        hours: float = 24,
        *,
        run_id: str = "r1",
        map_index: int = -1,
        xcoms: dict[str, Any] | None = None,
        now: datetime | None = None,
    ) -> AbstractContextManager[dict[str, Any]]:
        start = start or datetime(2026, 1, 2, tzinfo=UTC)
        pushed = {} if xcoms is None else xcoms
        ti = SimpleNamespace(
            dag_id="shop", run_id=run_id, task_id="load", map_index=map_index, catalog=catalog, now=lambda: now,
            xcom_push=pushed.__setitem__, xcom_pull=lambda *_, key, default=None, **__: pushed.get(key, default),
        )  # fmt: skip
        return execution.current({
            "ti": ti, "dag": SimpleNamespace(timezone="UTC"), "logical_date": start, "data_interval_start": start,
            "data_interval_end": start + timedelta(hours=hours),
        })  # fmt: skip

    return within
