"""If-Match: a change of something that has changed since the client read it is refused.

The ETag of a response is compared with that of a GET before the change, and the versions of the rows that were read before
that GET are compared in the transaction of the change, under the locks of these rows. So no change fits in between, neither of
this web process nor of another process.
"""

from collections.abc import Callable
from typing import Any

from fastapi import Request
from sqlalchemy import Connection

from paceline.exceptions import UsageError
from scheduler.api.access import RUN, TI
from scheduler.api.errors import StaleError
from scheduler.store.read import row_versions
from scheduler.store.read.row_versions import Rows, Versions

CHANGED = "This was changed or deleted since it was read: read it again, and repeat the change with the new ETag in If-Match."
NOT_TAKEN = "This request takes no If-Match: only a change of one thing, at the path of its GET, is compared."
#: The rows of what a path shows and changes. Lists are not compared.
THINGS: dict[str, tuple[Rows, ...]] = {
    "/variables/{variable_key:path}": row_versions.VARIABLE,
    "/connections/{connection_id:path}": row_versions.CONNECTION,
    "/pools/{pool_name:path}": row_versions.POOL,
    "/dags/{dag_id}": row_versions.DAG,
    RUN: row_versions.RUN,
    TI: row_versions.INSTANCE,
    f"{TI}/{{map_index}}": row_versions.INSTANCE,
    f"{TI}/{{map_index}}/hitlDetails": row_versions.QUESTION,
    f"{TI}/state-store/{{key:path}}": row_versions.TASK_STATE,
    f"{TI}/xcomEntries/{{xcom_key:path}}": row_versions.XCOM,
    "/assets/{asset_id}/state-store/{key:path}": row_versions.ASSET_STATE,
}
#: Headers that belong to the change, and not to the GET before it.
OF_CHANGE = {b"if-match", b"if-none-match", b"content-length", b"content-type", b"transfer-encoding", b"expect"}


def unchanged(thing: tuple[Rows, ...], names: dict[str, Any], versions: Versions) -> Callable[[Connection], None]:
    """A check with which the transaction of a change begins: it locks the rows, and raises StaleError if they have changed."""

    def check(connection: Connection) -> None:
        if row_versions.lock(connection, thing, names) != versions:
            raise StaleError(CHANGED)

    return check


def thing_of(request: Request, path: str) -> tuple[Rows, ...] | None:
    """The rows that a request with If-Match changes, by the path of its route; None without If-Match. UsageError."""
    if "if-match" not in request.headers or request.method not in {"PATCH", "PUT", "DELETE"}:
        return None
    if path not in THINGS:
        raise UsageError(NOT_TAKEN)
    return THINGS[path]


async def compare(request: Request) -> None:
    """StaleError unless If-Match names the ETag that a GET of the same path returns now."""
    status, tag = 0, b""

    async def empty() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def noted(message: Any) -> None:
        nonlocal status, tag
        if message["type"] == "http.response.start":
            status, tag = message["status"], dict(message["headers"]).get(b"etag", b"")

    headers = [pair for pair in request.scope["headers"] if pair[0] not in OF_CHANGE]
    own = {"method": "GET", "headers": headers, "state": {}}
    await request.app({name: value for name, value in request.scope.items() if name not in OF_ROUTE} | own, empty, noted)
    wanted = [one.strip().removeprefix("W/") for one in ",".join(request.headers.getlist("if-match")).split(",")]
    if status != 200 or ("*" not in wanted and tag.decode() not in wanted):
        raise StaleError(CHANGED)


#: What the router added to the scope of the change.
OF_ROUTE = {"route", "endpoint", "path_params", "router", "app_root_path"}
