"""What a request needs: the right to do it (a route that declares none is refused), and with If-Match that nothing has changed."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from fastapi import Request
from sqlalchemy import Connection

from paceline.exceptions import UsageError
from scheduler.actions.actor import ForbiddenError
from scheduler.api.errors import StaleError
from scheduler.store.accounts.accounts import ROLES, Account
from scheduler.store.read import row_versions
from scheduler.store.read.row_versions import Rows, Versions

#: "dag": on the DAG of the path (with ~ on any DAG; the list then has only DAGs that the account may see). "any": on at least one
#: DAG; the route filters. "all": the role of the account itself, since it is about no DAG. "login": every account. "bundle": on the
#: bundle of the path, by its tag; to change one without that, the account needs the role admin: its code reads every secret.
Scope = Literal["dag", "any", "all", "login", "bundle"]
#: The prefix of the tag that gives an account a role on a bundle, such as bundle:sales.
BUNDLE_TAG = "bundle:"
VIEW, OPERATE, ADMINISTER = ROLES
#: Whether a request that is no GET changes nothing: always, or if `dry_run` in its body is true, which is the default there.
OnlyReads = bool | Literal["dry_run"]


class Needs(NamedTuple):
    """The least role for a route, and on what."""

    role: str
    scope: Scope
    only_reads: OnlyReads = False
    #: The name of the action in the audit log if it records itself, with what it changed. The request then records failures alone.
    event: str | None = None


RUN = "/dags/{dag_id}/dagRuns/{dag_run_id}"
TI = f"{RUN}/taskInstances/{{task_id}}"
GROUP = f"{RUN}/taskGroupInstances/{{group_id}}"
VIEWER_OF_DAG, OPERATOR_OF_DAG, ADMIN_OF_DAG = Needs(VIEW, "dag"), Needs(OPERATE, "dag"), Needs(ADMINISTER, "dag")
VIEWER_OF_ANY, OPERATOR_OF_ANY = Needs(VIEW, "any"), Needs(OPERATE, "any")
VIEWER_OF_BUNDLE, OPERATOR_OF_BUNDLE = Needs(VIEW, "bundle"), Needs(OPERATE, "bundle")
VIEWER, OPERATOR, ADMIN = Needs(VIEW, "all"), Needs(OPERATE, "all"), Needs(ADMINISTER, "all")
LOGIN = Needs(VIEW, "login")

#: By method and path below /api/v2: what each route needs, as it declares beside its path. See call.Routes.
TABLE: dict[str, Needs] = {}
#: Of routes that are not below /api/v2.
OUTSIDE: Mapping[str, Needs] = {"GET /metrics": VIEWER}


def at_least(role: str | None, needed: str) -> bool:
    """Whether a role has the rights of another one."""
    return role is not None and ROLES.index(role) >= ROLES.index(needed)


def tags_with(account: Account, needed: str) -> list[str] | None:
    """The tags whose DAGs the account has this role on; None means all DAGs."""
    if at_least(account.role, needed):
        return None
    return sorted(tag for tag, role in account.tags.items() if at_least(role, needed))


def may_everywhere(account: Account, needs: Needs) -> bool:
    """Whether an account may use a route by its own role, on every DAG and bundle."""
    if needs.scope == "bundle":
        return may(account, needs)
    return needs.scope == "login" or at_least(account.role, needs.role)


def may(account: Account, needs: Needs, dag_tags: list[str] | None = None) -> bool:
    """Whether an account may use a route; `dag_tags` are the tags of the DAG or bundle of its path, if it has one."""
    if needs.scope == "bundle":
        by_tag = any(at_least(account.tags.get(tag), needs.role) for tag in dag_tags or ())
        return by_tag or at_least(account.role, VIEW if needs.role == VIEW else ADMINISTER)
    if needs.scope == "login" or at_least(account.role, needs.role):
        return True
    tags = tags_with(account, needs.role) or []
    if needs.scope == "any" or (needs.scope == "dag" and dag_tags is None):
        return bool(tags)
    return needs.scope == "dag" and bool(set(tags) & set(dag_tags or []))


def refusal(needs: Needs) -> ForbiddenError:
    """The error for an account that may not use a route."""
    where = {
        "dag": "this DAG",
        "any": "a DAG",
        "bundle": f"this bundle by its tag {BUNDLE_TAG}<name>, or the role {ADMINISTER}",
    }.get(needs.scope, "this installation")
    return ForbiddenError(f"This needs the role {needs.role} on {where}: ask an administrator.")


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
