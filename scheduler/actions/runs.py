"""DAG runs: trigger, clear, mark, queue again, note, delete and reproduce. Backfills: preview, create, pause, resume and cancel."""

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection

from paceline.exceptions import ConflictError, NotFoundError, PacelineError
from paceline.states import RunState, TaskState
from scheduler.actions import installation
from scheduler.actions.actor import Actor
from scheduler.actions.tasks import require
from scheduler.store.actions import backfills
from scheduler.store.actions import clear as clearing
from scheduler.store.actions import delete as deleting
from scheduler.store.actions import mark as marking
from scheduler.store.actions.backfills import BackfillRequest
from scheduler.store.moves.first import Limits
from scheduler.store.read import runs
from scheduler.store.read.listing import Row
from scheduler.store.runs import edits, manual_runs, reproductions
from scheduler.store.runs.reproductions import Reproduction
from scheduler.store.runs.runs import CreatedRun
from scheduler.store.runs.selection import Changes, Runs, Tasks
from scheduler.store.tables import namespaces


class RepeatedRequest(NamedTuple):
    """The key that a client gives a request, so that the run is created once however often the request is repeated."""

    account_id: int
    key: str
    digest: bytes


def trigger(by: Actor, dag_id: str, *, note: str | None = None, request: RepeatedRequest | None = None, **how: Any) -> Row:
    """Create a run now, and return it; `how` are the arguments of manual_runs.trigger.

    A repeated request returns the run that the first one created; ConflictError if the key was that of another request.
    """

    limits = None if by.publish is None else Limits.of(by.settings, by.name)

    def work(connection: Connection) -> tuple[Row, CreatedRun | None]:
        if request is not None and (first := _first(connection, request)) is not None:
            return first, None
        created = manual_runs.trigger(
            connection, dag_id, triggered_by=by.made_by, core=by.settings.core, versions=by.versions, limits=limits, **how
        )
        if request is not None:
            manual_runs.made_for(connection, request.account_id, request.key, created.id)
        if note:
            edits.note_run(connection, created.id, note)
        return runs.RUNS.by_keys(connection, [created.id])[0], created

    row, created = by.write(work)
    if created is None or not created.has_begun:
        by.announce("run triggered", {row["id"]})
        return row
    if by.publish is not None and created.messages:
        by.publish(created.messages)
    if created.waits:
        by.announce("run begun")
    return row


def _first(connection: Connection, request: RepeatedRequest) -> Row | None:
    """The run that the first request with this key created; None if this is the first. ConflictError, NotFoundError."""
    first = manual_runs.idempotent(connection, *request)
    if first is None:
        return None
    dag_run_id, is_same = first
    if not is_same:
        raise ConflictError("This Idempotency-Key belongs to another request: use a new one.")
    found = runs.RUNS.by_keys(connection, [dag_run_id] if dag_run_id else [])
    if not found:
        raise NotFoundError("The run of this Idempotency-Key was deleted.")
    return found[0]


def clear(
    by: Actor, named: Sequence[tuple[str, str]], *, states: Collection[TaskState] | None = None, latest: bool | None = None,
    note: str | None = None, dry_run: bool = False,
) -> Changes:  # fmt: skip
    """Clear the task instances in these states, or all, of runs named by DAG and ID: of all runs, or, after an error, of none.

    `latest` is that of clear.clear; `note` becomes the note of each run. A dry run changes nothing. NotFoundError.
    """
    tasks = Tasks(states=states)

    def each(connection: Connection) -> Changes:
        keys = {(dag_id, run_id): runs.run(connection, dag_id, run_id)["id"] for dag_id, run_id in named}
        changes = Changes()
        for (dag_id, run_id), key in sorted(keys.items(), key=operator.itemgetter(1)):  # runs are locked in this order everywhere
            one = Runs(dag_id=dag_id, run_id=run_id)
            cleared = clearing.clear(connection, one, tasks, core=by.settings.core, latest=latest, dry_run=dry_run)
            changes += cleared
            changes.moved = {**changes.moved, **cleared.moved}
            if note is not None and not dry_run:
                edits.note_run(connection, key, note)
        return changes

    changes = by.write_or_rehearse(dry_run, each)
    if not dry_run:
        by.announce_changes(changes)
    return changes


def change(by: Actor, dag_id: str, run_id: str, values: dict[str, Any], *, dry_run: bool = False) -> Changes:
    """Mark a run as success or failed, queue an ended one again, or set its note: what `values` has of state and note.

    A queued run runs only what has not ended. A marked run ends after its teardowns have run. Returns the changes of its task
    instances. NotFoundError.
    """
    key, changes = by.write_or_rehearse(dry_run, _change, dag_id, run_id, values)
    if values.get("state") is not None and not dry_run:
        by.announce("instances changed", {key})
    return changes


def _change(connection: Connection, dag_id: str, run_id: str, values: dict[str, Any]) -> tuple[int, Changes]:
    key: int = runs.run(connection, dag_id, run_id)["id"]
    changes = Changes()
    if values.get("state") == RunState.QUEUED:
        clearing.queue_run(connection, key)
    elif values.get("state") is not None:
        changes = marking.mark_run(connection, dag_id, run_id, RunState(values["state"]))
    if "note" in values:
        edits.note_run(connection, key, values["note"])
    return key, changes


def delete(by: Actor, dag_id: str, run_id: str) -> None:
    """Delete a run with the DataFrames that its tasks returned. Its logs stay.

    NotFoundError; ConflictError while a worker has some of its task instances, or a teardown has yet to run.
    """
    installation.delete_files(by.engine, by.settings, [by.write(deleting.delete_run, dag_id, run_id)])
    by.announce("runs deleted")


def delete_each(
    by: Actor, names: Sequence[tuple[str, str]], *, dry_run: bool, expected: int | None
) -> tuple[list[tuple[str, str]], list[PacelineError]]:
    """Delete runs named by DAG and ID, except those that cannot be deleted. Returns the deleted ones, and the errors of the others.

    A dry run only locks the runs, as long as each check takes. ConflictError if they are not `expected`.
    """

    def each(work: Callable[[str, str], object]) -> tuple[list[tuple[str, str]], list[PacelineError]]:
        done, errors = [], []
        for dag_id, run_id in names:
            try:
                work(dag_id, run_id)
                done.append((dag_id, run_id))
            except PacelineError as error:
                errors.append(error)
        return done, errors

    if dry_run or expected is not None:
        preview = each(lambda dag_id, run_id: by.write(deleting.deletable_run, dag_id, run_id))
        if dry_run:
            return preview
        require(expected, len(preview[0]))
    return each(lambda dag_id, run_id: delete(by, dag_id, run_id))


R = TypeVar("R")


def preview_backfill(by: Actor, wanted: BackfillRequest) -> list[Row]:
    """The dates that `create` would store, in order. It raises the same errors."""
    return by.write(backfills.dry_run, _backfill_of(by, wanted))


def create_backfill(by: Actor, wanted: BackfillRequest) -> Row:
    """Create a backfill; the scheduler creates its runs. See backfills.create."""
    created = by.write(backfills.create, _backfill_of(by, wanted))
    by.announce("backfill created")
    return created


def pause_backfill(by: Actor, backfill_id: int) -> bool:
    """Create and start no more of its runs; running ones continue. False if it was paused already."""
    return _change_backfill(by, backfills.pause, backfill_id)


def resume_backfill(by: Actor, backfill_id: int) -> bool:
    """Continue a paused backfill; False if it was not paused."""
    return _change_backfill(by, backfills.resume, backfill_id)


def cancel_backfill(by: Actor, backfill_id: int) -> Row:
    """End a backfill: its queued runs fail, its running ones continue. ConflictError if it has ended."""
    return _change_backfill(by, backfills.cancel, backfill_id)


def _backfill_of(by: Actor, wanted: BackfillRequest) -> BackfillRequest:
    return replace(wanted, created_by=by.made_by, core=by.settings.core)


def _change_backfill(by: Actor, change: Callable[[Connection, int], R], backfill_id: int) -> R:
    changed = by.write(change, backfill_id)
    by.announce("backfill changed")
    return changed


REPRODUCE = "runs.reproduce"


def reproduce(
    by: Actor, dag_id: str, run_id: str, *, keep: bool, despite_effects: bool, ignored: Sequence[str] = (), dry_run: bool = False
) -> Reproduction:
    """Run an earlier run again, with its code and on its inputs, into a namespace that nobody else may use.

    NotFoundError; CannotReproduceError. `keep`, `despite_effects` and `ignored` are those of reproductions.create. A dry run
    changes nothing; its result has the effects that need consent.
    """

    def work(connection: Connection) -> Reproduction:
        catalog = by.settings.tables.catalog
        created = reproductions.create(
            connection, dag_id, run_id, catalog=catalog, keep=keep, despite_effects=despite_effects or dry_run, ignored=ignored,
            triggered_by=by.made_by, default_queue=by.settings.core.default_queue,
        )  # fmt: skip
        namespaces.create(connection, catalog, created.scratch, {namespaces.READERS: "", namespaces.WRITERS: ""})
        by.record(connection, REPRODUCE, {"reproduction": created.run_id}, dag_id=dag_id, run_id=run_id)
        return created

    created = by.write_or_rehearse(dry_run, work)
    if not dry_run:
        by.announce("run triggered", {created.id})
    return created
