"""Bulk requests: actions on many things of one kind.

As in Airflow, an action that must fail because of a thing that exists, or that is missing, changes nothing. Otherwise each thing is
a change of its own, and one that fails stops nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import Field

from paceline.exceptions import ConflictError, NotFoundError, PacelineError, UnreachableError
from scheduler.api.errors import status_of
from scheduler.api.models.base import Body, Existing, Missing

T = TypeVar("T")
K = TypeVar("K")


class Create(Body, Generic[T]):
    """Things to create."""

    action: Literal["create"]
    entities: list[T]
    action_on_existence: Existing = "fail"


class Update(Body, Generic[T]):
    """Things to change."""

    action: Literal["update"]
    entities: list[T]
    update_mask: list[str] | None = None
    action_on_non_existence: Missing = "fail"


class Delete(Body, Generic[K]):
    """Things to delete: their names, or objects that name them."""

    action: Literal["delete"]
    entities: list[K]
    action_on_non_existence: Missing = "fail"


class Actions(Body, Generic[T, K]):
    """A bulk request."""

    actions: list[Create[T] | Update[T] | Delete[K]] = Field(max_length=1000)


class _Entry(NamedTuple):
    entity: Any
    name: str
    found: list[str]


def run(
    actions: Sequence[Any],
    *,
    name: Callable[[Any], str],
    find: Callable[[Any], list[str]],
    create: Callable[[Any], object] | str,
    update: Callable[[Any, list[str] | None], object],
    delete: Callable[[Any], object],
) -> dict[str, Any]:
    """Do all actions, and return what became of each: names that succeeded, errors with their status.

    `find` returns the names of what exists of an entry: none, its own name, or several. It and `name` may refuse an entry with a
    PacelineError. `create` may be the reason why these things cannot be created. "overwrite" is an update, since it keeps the
    fields that an entry leaves out, as in Airflow.
    """
    results: dict[str, Any] = {"create": None, "update": None, "delete": None}
    for action in actions:
        result = results[action.action] = results[action.action] or {"success": [], "errors": []}
        if action.action == "create" and isinstance(create, str):
            result["errors"].append({"error": create, "status_code": 405})
            continue
        found = list(_each(result, action.entities, lambda entity: _Entry(entity, name(entity), find(entity))))
        if refusal := _refusal(action, found):
            result["errors"].append(_error(refusal))
            continue
        if action.action == "delete":  # a name can be listed twice
            found = list({entry.name: entry for entry in found}.values())

        def change(entry: _Entry, action: Any = action) -> list[str]:
            try:
                if action.action == "delete":
                    delete(entry.entity)
                elif action.action == "update":
                    update(entry.entity, action.update_mask)
                elif entry.found and action.action_on_existence == "overwrite":
                    update(entry.entity, None)
                elif callable(create):
                    create(entry.entity)
            except (ConflictError, NotFoundError) as error:
                if not _is_skipped(action, error):
                    raise
                return []
            return entry.found or [entry.name]

        result["success"] += [one for names in _each(result, found, change) for one in names]
    return results


def _each(result: dict[str, Any], entries: Sequence[T], work: Callable[[T], K]) -> Iterator[K]:
    """`work(entry)` for each entry. One that fails is an error of the result."""
    for entry in entries:
        try:
            done = work(entry)
        except UnreachableError:
            raise
        except PacelineError as error:
            result["errors"].append(_error(error))
        else:
            yield done


def _error(error: PacelineError) -> dict[str, Any]:
    return {"error": str(error), "status_code": status_of(error)}


def _refusal(action: Any, entries: Sequence[_Entry]) -> PacelineError | None:
    """Why the whole action fails."""
    creates = action.action == "create"
    if (action.action_on_existence if creates else action.action_on_non_existence) != "fail":
        return None
    names = ", ".join(dict.fromkeys(entry.name for entry in entries if bool(entry.found) == creates))
    if not names:
        return None
    if creates:
        return ConflictError(f"Nothing was created, since these exist already: {names}.")
    return NotFoundError(f"Nothing was {action.action}d, since these do not exist: {names}.")


def _is_skipped(action: Any, error: PacelineError) -> bool:
    if action.action == "create":
        return isinstance(error, ConflictError) and action.action_on_existence == "skip"
    return isinstance(error, NotFoundError) and action.action_on_non_existence == "skip"
