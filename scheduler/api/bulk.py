"""Bulk requests: actions on many things of one kind. Each thing is a change of its own, and one that fails stops nothing."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from scheduler.api.errors import STATUS
from scheduler.api.models.base import Body, Existing, Missing
from scheduler.exceptions import ConflictError, NotFoundError, PacelineError, UnreachableError

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


def run(
    actions: Sequence[Any],
    *,
    name: Callable[[Any], str],
    create: Callable[[Any, bool], object],
    update: Callable[[Any, list[str] | None], object],
    delete: Callable[[Any], object],
) -> dict[str, Any]:
    """Do all actions, and return what became of each: names that succeeded, errors with their status.

    `create` receives whether to overwrite. ConflictError and NotFoundError follow the choice of the action.
    """
    results: dict[str, Any] = {"create": None, "update": None, "delete": None}
    for action in actions:
        result = results[action.action] = results[action.action] or {"success": [], "errors": []}
        for entity in action.entities:
            try:
                match action.action:
                    case "create":
                        create(entity, action.action_on_existence == "overwrite")
                    case "update":
                        update(entity, action.update_mask)
                    case _:
                        delete(entity)
            except UnreachableError:
                raise
            except PacelineError as error:
                if not _skipped(action, error):
                    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 400)
                    result["errors"].append({"error": str(error), "status_code": status})
            else:
                result["success"].append(name(entity))
    return results


def _skipped(action: Any, error: PacelineError) -> bool:
    if action.action == "create":
        return isinstance(error, ConflictError) and action.action_on_existence == "skip"
    return isinstance(error, NotFoundError) and action.action_on_non_existence == "skip"
