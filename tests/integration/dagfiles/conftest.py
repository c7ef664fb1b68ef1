"""A manager of DAG files with a real database, driven turn by turn."""

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from support.clock import Clock
from support.waiting import eventually

from scheduler.dagfiles.supervise import DagFileManager, Iteration
from scheduler.settings import Settings
from scheduler.store.dags.current import ParsedDag
from scheduler.store.dags.files import ParsedFile
from scheduler.store.db import database

NOW = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SOURCE = """
from paceline import DAG, task

with DAG("{dag_id}", schedule="@daily", tags={{"b", "a", "c"}}, is_paused_upon_creation={paused}):
    @task
    def {task_id}():
        return 1

    {task_id}()
"""


@dataclass
class Files:
    """The DAGs folder, its managers, and the rows that they have stored."""

    settings: Settings
    engine: Engine
    clock: Clock
    managers: list[DagFileManager] = field(default_factory=list)

    def write(self, name: str, source: str | bytes) -> None:
        path = self.settings.dags_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source if isinstance(source, bytes) else textwrap.dedent(source).encode())

    def manager(self, name: str = "a", **scheduler: Any) -> DagFileManager:
        settings = self.settings.model_copy(
            update={"scheduler": self.settings.scheduler.model_copy(update=scheduler)},
        )
        manager = DagFileManager(self.engine, settings, lambda: name)
        self.managers.append(manager)
        return manager

    def turn_until(self, manager: DagFileManager, done: Callable[[], object], *, now: datetime | None = None) -> list[Iteration]:
        """Take turns until `done`; all of them. The clock stops at `now`."""
        if now is not None:
            self.clock.freeze(now)
        turns: list[Iteration] = []

        def turn() -> object:
            turns.append(manager.run_once())
            return done()

        eventually(turn, timeout=60, message=lambda: f"{self.errors()} {turns[-3:]}")
        return turns

    def read_all(self, manager: DagFileManager, *, now: datetime | None = None) -> list[Iteration]:
        """Take turns until every file has been read in the state it is in."""
        if now is not None:
            self.clock.freeze(now)
        listed = manager.run_once()
        return [
            listed,
            *self.turn_until(
                manager,
                lambda: (
                    not self.rows(
                        "select path from dag_file where parsed_at is null or claimed_by is not null"
                        " or next_parse_at <= clock_timestamp()"
                    )
                ),
                now=now,
            ),
        ]

    def rows(self, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
        return database.read(self.engine, lambda one: [tuple(row) for row in one.exec_driver_sql(statement, parameters or None)])

    def dags(self) -> dict[str, tuple[str, bool, int]]:
        """dag_id -> file, is_active, number of its version."""
        rows = self.rows("select d.dag_id, file, is_active, number from dag d join dag_version v on v.id = d.version_id")
        return {dag_id: (file, is_active, number) for dag_id, file, is_active, number in rows}

    def errors(self) -> Mapping[str, tuple[int | None, str, str]]:
        """file -> line, message, traceback."""
        return {file: rest for file, *rest in self.rows("select file, line, message, traceback from import_error")}  # type: ignore[misc]


def source(dag_id: str = "d", task_id: str = "one", paused: bool | None = None) -> str:
    return SOURCE.format(dag_id=dag_id, task_id=task_id, paused=paused)


def parsed(path: str, *dag_ids: str, modified_at: datetime = NOW, content: str = "1") -> ParsedFile:
    dags = tuple(ParsedDag(dag_id=dag_id, content_hash=f"{dag_id}{content}", data="{}") for dag_id in dag_ids)
    return ParsedFile(path=path, modified_at=modified_at, duration_s=0.1, dags=dags)


@pytest.fixture
def files(settings: Settings) -> Iterator[Files]:
    clock = Clock(settings)
    engine = database.create(settings)
    files = Files(settings, engine, clock)
    yield files
    for manager in files.managers:
        manager.stop()
    engine.dispose()
    clock.close()
