"""Task instances: clear, mark, note and delete; those of chosen runs, or all that a filter selects."""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sqlalchemy import Connection

from paceline.exceptions import ConflictError, PacelineError
from paceline.states import TaskState
from scheduler.actions.actor import Actor
from scheduler.store.actions import clear as clearing
from scheduler.store.actions import mark as marking
from scheduler.store.dags.versions import Versions
from scheduler.store.read import instances
from scheduler.store.runs import edits
from scheduler.store.runs.selection import Change, Changes, Runs, Tasks

#: Runs that are changed at the same time.
AT_ONCE = 3
#: Runs that are changed without a moment in which no lock is held.
GROUP = 32
#: By run, the numbers of its task instances.
Rows = Mapping[int, Collection[int]]


class Place(NamedTuple):
    """The names of a task instance. The map index -1 stands for a task that is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


def clear(
    by: Actor, chosen: Runs, tasks: Tasks, *, latest: bool | None = None, note: str | None = None, dry_run: bool = False,
    prevent_running: bool = False,
) -> Changes:  # fmt: skip
    """Clear these task instances of these runs, and give them a note: those of all runs, or, after an error, of none.

    The other arguments and the errors are those of clear.clear. A dry run changes nothing.
    """

    def work(connection: Connection) -> Changes:
        changes = clearing.clear(
            connection, chosen, tasks, core=by.settings.core, latest=latest, dry_run=dry_run, prevent_running=prevent_running
        )
        if note is not None and not dry_run:
            _note(connection, instances.keys_of(connection, changes), note)
        return changes

    changes = by.write_or_rehearse(dry_run, work)
    if not dry_run:
        by.announce_changes(changes)
    return changes


def change(
    by: Actor, chosen: Runs, tasks: Tasks, values: Mapping[str, Any], *, clear_downstream: bool = False, dry_run: bool = False
) -> Changes:
    """Mark these task instances of these runs, or set the note of those of the run itself: what `values` has of state and note.

    `clear_downstream` is that of mark.mark. NotFoundError, also for a note if the run has no such task instance.
    """

    def work(connection: Connection) -> Changes:
        changes = Changes()
        if values.get("state") is not None:
            state = TaskState(values["state"])
            changes = marking.mark(connection, chosen, tasks, state, clear_downstream=clear_downstream, dry_run=dry_run)
        if "note" in values:
            keys = instances.named(connection, chosen, tasks)
            if not dry_run:
                _note(connection, keys, values["note"])
        return changes

    changes = by.write_or_rehearse(dry_run, work)
    if not dry_run:
        by.announce_changes(changes)
    return changes


def _note(connection: Connection, keys: Collection[int], note: str | None) -> None:
    for key in keys:
        edits.note_instance(connection, key, note)


class Done(NamedTuple):
    """The changes in runs that could be changed, and the errors of the others."""

    changes: list[Change]
    errors: list[PacelineError]


def clear_rows(
    by: Actor, rows: Rows, versions: Versions, *, latest: bool | None = None, dry_run: bool = False, expected: int | None = None
) -> Done:
    """Clear task instances by their numbers, each run in a transaction of its own. ConflictError if they are not `expected`."""

    def work(connection: Connection, run: int, keys: Collection[int], dry_run: bool) -> list[Change]:
        return clearing.clear_keys(connection, run, keys, by.settings.core, versions, latest=latest, dry_run=dry_run)

    return _run_by_run(by, rows, work, dry_run=dry_run, expected=expected)


def mark_rows(
    by: Actor, rows: Rows, versions: Versions, state: TaskState, *, dry_run: bool = False, expected: int | None = None
) -> Done:
    """Mark task instances by their numbers, each run in a transaction of its own. ConflictError if they are not `expected`."""

    def work(connection: Connection, run: int, keys: Collection[int], dry_run: bool) -> list[Change]:
        return marking.mark_keys(connection, run, keys, state, versions, dry_run=dry_run)

    return _run_by_run(by, rows, work, dry_run=dry_run, expected=expected)


def _run_by_run(
    by: Actor, rows: Rows, work: Callable[[Connection, int, Collection[int], bool], list[Change]], *, dry_run: bool,
    expected: int | None,
) -> Done:  # fmt: skip
    """The changes of `work` for each run, AT_ONCE runs at a time.

    After each GROUP, all have committed for a moment, so that a transaction gets its turn that waits to change the schedule of
    the DAG: shared locks overtake it.
    """
    if expected is not None and not dry_run:
        require(expected, len(_run_by_run(by, rows, work, dry_run=True, expected=None).changes))
    done = Done([], [])

    def one(key: int) -> list[Change]:
        try:
            return by.write_or_rehearse(dry_run, work, key, rows[key], dry_run)
        except PacelineError as error:
            done.errors.append(error)
            return []

    keys = list(rows)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(keys), GROUP):
            for changes in pool.map(one, keys[start : start + GROUP]):
                done.changes.extend(changes)
    if not dry_run:
        by.announce_changes(done.changes)
    return done


def require(expected: int | None, count: int) -> None:
    """ConflictError if a filter selects another number than a person saw in the preview."""
    if expected is not None and expected != count:
        raise ConflictError(f"The filter selects {count} now, and {expected} were expected: look at the preview again.")


def delete(by: Actor, place: Place) -> None:
    """Delete a task instance whose task is no longer in its DAG. NotFoundError; ConflictError for another one."""

    def work(connection: Connection) -> None:
        row = instances.instance(connection, *place)
        if not edits.delete_removed(connection, row["id"]):
            state = row["state"] or "none"
            raise ConflictError(f"Task instance {place.task_id!r} is {state}: only one in state removed can be deleted.")

    by.write(work)
