"""Parameters that many routes share: pages, ranges, and how a list is asked for."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import Field

from scheduler.api.models import known
from scheduler.api.models.base import Moment
from scheduler.exceptions import UsageError
from scheduler.store.lists import listing

#: The longest page. A larger limit gives a page of this length, as in Airflow.
LONGEST_PAGE = 1000
LARGEST = 2**63 - 1
#: Columns of one order, as in Airflow.
MOST_ORDERS = 10

Number = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


def page(
    limit: Annotated[int, Query(ge=0, le=LARGEST)] = 50,
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    order_by: Annotated[list[str] | None, Query()] = None,
) -> listing.Page:
    """A page by limit and offset; with limit 0, only the number of entries. `order_by` may be repeated, and - reverses it."""
    if order_by and len(order_by) > MOST_ORDERS:
        raise UsageError(f"order_by has {len(order_by)} columns: {MOST_ORDERS} are allowed.")
    return listing.Page(min(limit, LONGEST_PAGE), offset, tuple(order_by or ()))


def cursor_page(at: Annotated[listing.Page, Depends(page)], cursor: Annotated[str | None, Query()] = None) -> listing.Page:
    """A page by limit and offset, or by cursor, which costs the same however far it is."""
    return listing.Page(at.limit, at.offset, at.order_by, cursor)


def range_of(name: str, kind: Any = Moment) -> Callable[..., dict[str, Any]]:
    """The four comparisons of a range filter, by the name of each."""

    def bounds(
        gte: Annotated[kind | None, Query(alias=f"{name}_gte")] = None,
        gt: Annotated[kind | None, Query(alias=f"{name}_gt")] = None,
        lte: Annotated[kind | None, Query(alias=f"{name}_lte")] = None,
        lt: Annotated[kind | None, Query(alias=f"{name}_lt")] = None,
    ) -> dict[str, Any]:
        return {"gte": gte, "gt": gt, "lte": lte, "lt": lt}

    return bounds


def ranges(*names: str) -> Callable[..., dict[str, dict[str, Any]]]:
    """Several range filters, by name. `duration` is in seconds."""
    if not names:
        return _no_ranges

    def first(
        own: Annotated[dict[str, Any], Depends(range_of(names[0], float if names[0] == "duration" else Moment))],
        others: Annotated[dict[str, Any], Depends(ranges(*names[1:]))],
    ) -> dict[str, dict[str, Any]]:
        return {names[0]: own, **others}

    return first


def _no_ranges() -> dict[str, dict[str, Any]]:
    return {}


Page = Annotated[listing.Page, Depends(page)]
CursorPage = Annotated[listing.Page, Depends(cursor_page)]
Strings = Annotated[list[str] | None, Query()]
TaskStates = Annotated[list[str] | None, Query(), known.TaskStates]
RunStates = Annotated[list[str] | None, Query(), known.RunStates]
RunTypes = Annotated[list[str] | None, Query(), known.RunTypes]
UpdateMask = Annotated[list[str] | None, Query()]


def masked(values: dict[str, Any], mask: list[str] | None, allowed: set[str]) -> dict[str, Any]:
    """The values that update_mask names, or all. UsageError for an unknown name."""
    if mask is None:
        return values
    names = {name for part in mask for name in part.split(",") if name}
    if unknown := names - allowed:
        raise UsageError(f"update_mask {min(unknown)!r} is not possible here: choose {', '.join(sorted(allowed))}.")
    return {name: value for name, value in values.items() if name in names}


def bounds_in(body: Any, *names: str) -> dict[str, dict[str, Any]]:
    """Range filters in a body, by name."""
    return {name: {sign: getattr(body, f"{name}_{sign}") for sign in ("gte", "gt", "lte", "lt")} for name in names}
