"""Parameters that many routes share: pages, ranges, and the names of a task instance."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query
from pydantic import Field

from paceline import secrets_masker
from paceline.exceptions import UsageError
from scheduler.actions.tasks import Place
from scheduler.api.models import base
from scheduler.api.models.base import SIGNS, Moment
from scheduler.store.read import listing

T = TypeVar("T")

#: The longest page. A larger limit gives a page of this length, as in Airflow.
LONGEST_PAGE = 1000
LARGEST = 2**63 - 1
#: Columns of one order, as in Airflow.
MOST_ORDERS = 10
#: The bounds of range filters, by name and comparison.
Ranges = dict[str, dict[str, Any]]
#: A column, a pattern, and a prefix, as `Filters.like` takes them.
Patterns = list[tuple[str, str | None, str | None]]
Number = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


def page(
    limit: int = 50,
    offset: int = 0,
    order_by: list[str] | None = None,
    cursor: str | None = None,
    count_limit: int | None = None,
) -> listing.Page:
    """A page by limit and offset, or by cursor. UsageError for too many columns of an order."""
    if order_by and len(order_by) > MOST_ORDERS:
        raise UsageError(f"order_by has {len(order_by)} columns: {MOST_ORDERS} are allowed.")
    return listing.Page(min(limit, LONGEST_PAGE), offset, tuple(order_by or ()), cursor, count_limit)


# The dependencies below only compute, so they are coroutines: FastAPI runs each function that is none in a thread of its own.

Limit = Annotated[int, Query(ge=0, le=LARGEST)]


async def _page(limit: Limit = 50, offset: Limit = 0, order_by: Annotated[list[str] | None, Query()] = None) -> listing.Page:
    """A page by limit and offset; with limit 0, only the number of entries. `order_by` may be repeated, and - reverses it."""
    return page(limit, offset, order_by)


async def _cursor_page(
    limit: Limit = 50,
    offset: Limit = 0,
    order_by: Annotated[list[str] | None, Query()] = None,
    cursor: Annotated[str | None, Query()] = None,
    count_limit: Annotated[int | None, Query(ge=1, le=LARGEST)] = None,
) -> listing.Page:
    """A page by limit and offset, or by cursor, which costs the same however far it is.

    With limit and offset, all entries are counted, or those up to `count_limit`.
    """
    return page(limit, offset, order_by, cursor, count_limit)


MapIndex = Annotated[int, Query(ge=-1, le=2**31 - 1)]


async def _place(dag_id: str, dag_run_id: str, task_id: str, map_index: MapIndex = -1) -> Place:
    return Place(dag_id, dag_run_id, task_id, map_index)


async def _place_of_mapped(dag_id: str, dag_run_id: str, task_id: str, map_index: int) -> Place:
    return Place(dag_id, dag_run_id, task_id, map_index)


#: With the map index as a query parameter, or in the path.
TaskPlace = Annotated[Place, Depends(_place)]
MappedPlace = Annotated[Place, Depends(_place_of_mapped)]


def ranges(*names: str) -> Callable[..., Coroutine[Any, Any, Ranges]]:
    """A dependency with the four comparisons of each of these range filters, by name. `duration` is in seconds.

    The parameters of one function cost less for each request than a function for each of them.
    """

    async def bounds(**given: Any) -> Ranges:
        return {name: {sign: given[f"{name}_{sign}"] for sign in SIGNS} for name in names}

    return _with_parameters(bounds, {f"{name}_{sign}": float if name == "duration" else Moment for name in names for sign in SIGNS})


def patterns(**columns: str) -> Callable[..., Coroutine[Any, Any, Patterns]]:
    """A dependency with the parameters `<name>_pattern` and `<name>_prefix_pattern` for each of these names, with their columns."""

    async def given_patterns(**given: Any) -> Patterns:
        return [(column, given[f"{name}_pattern"], given[f"{name}_prefix_pattern"]) for name, column in columns.items()]

    return _with_parameters(given_patterns, {f"{name}{end}": str for name in columns for end in ("_pattern", "_prefix_pattern")})


def _with_parameters(function: T, kinds: Mapping[str, Any]) -> T:
    """Give a function of keyword arguments these query parameters, all of which are optional."""
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, Query()])
            for name, kind in kinds.items()
        ]
    )
    return function


Page = Annotated[listing.Page, Depends(_page)]
CursorPage = Annotated[listing.Page, Depends(_cursor_page)]
Strings = Annotated[list[str] | None, Query()]
TaskStates = Annotated[list[str] | None, Query(), base.TaskStates]
RunStates = Annotated[list[str] | None, Query(), base.RunStates]
RunTypes = Annotated[list[str] | None, Query(), base.RunTypes]
UpdateMask = Annotated[list[str] | None, Query()]


def masked(values: dict[str, Any], mask: list[str] | None, allowed: set[str]) -> dict[str, Any]:
    """The values that update_mask names, or all. UsageError for an unknown name."""
    if mask is None:
        return values
    names = {name for part in mask for name in part.split(",") if name}
    if unknown := names - allowed:
        raise UsageError(f"update_mask {min(unknown)!r} is not possible here: choose {', '.join(sorted(allowed))}.")
    return {name: value for name, value in values.items() if name in names}


def unmasked(name: str, new: str, shown: str | None, old: str | None) -> str | None:
    """The new value of a field that is shown with ***, in which each *** is the old value. UsageError if it is not clear which."""
    try:
        return secrets_masker.unmasked_text(new, shown, old)
    except secrets_masker.AmbiguousMaskError:
        raise UsageError(
            f"{name} contains {secrets_masker.MASK} where no secret is kept: send each secret itself,"
            f" or leave {secrets_masker.MASK} where it was shown."
        ) from None


def bounds_in(body: Any, *names: str) -> Ranges:
    """Range filters in a body, by name. A body need not have all comparisons."""
    return {name: {sign: getattr(body, f"{name}_{sign}", None) for sign in SIGNS} for name in names}
