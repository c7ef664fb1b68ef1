"""Reproductions: start one."""

from sqlalchemy import Connection

from scheduler.actions.actor import Actor
from scheduler.store.runs import reproductions
from scheduler.store.runs.reproductions import Reproduction
from scheduler.store.tables import namespaces


def start(by: Actor, dag_id: str, run_id: str, *, keep: bool, despite_effects: bool) -> Reproduction:
    """Run an earlier run again, with its code and on its inputs, into a namespace that nobody else may use.

    NotFoundError; CannotReproduceError. `keep` and `despite_effects` are those of reproductions.create.
    """
    created = by.write(_start, by, dag_id, run_id, keep=keep, despite_effects=despite_effects)
    by.announce("run triggered", {created.id})
    return created


def _start(connection: Connection, by: Actor, dag_id: str, run_id: str, *, keep: bool, despite_effects: bool) -> Reproduction:
    catalog = by.settings.tables.catalog
    created = reproductions.create(
        connection, dag_id, run_id, catalog=catalog, keep=keep, despite_effects=despite_effects, triggered_by=by.made_by,
        default_queue=by.settings.core.default_queue,
    )  # fmt: skip
    namespaces.create(connection, catalog, created.scratch, {namespaces.READERS: "", namespaces.WRITERS: ""})
    by.record(connection, "runs.reproduce", {"dag_id": dag_id, "run_id": run_id, "reproduction": created.run_id})
    return created
