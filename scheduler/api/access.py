"""Which role may do what. A route that declares no right is refused."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from scheduler.actions.actor import ForbiddenError
from scheduler.store.accounts.accounts import ROLES, Account

#: "dag": on the DAG of the path (with ~ on any DAG; the list then has only DAGs that the account may see). "any": on at least one
#: DAG; the route filters. "all": the role of the account itself, since it is about no DAG. "login": every account.
Scope = Literal["dag", "any", "all", "login"]
VIEW, OPERATE, ADMINISTER = ROLES
#: Whether a request that is no GET changes nothing: always, or if `dry_run` in its body is true, which is the default there.
OnlyReads = bool | Literal["dry_run"]


class Needs(NamedTuple):
    """The least role for a route, and on what."""

    role: str
    scope: Scope
    only_reads: OnlyReads = False


RUN = "/dags/{dag_id}/dagRuns/{dag_run_id}"
TI = f"{RUN}/taskInstances/{{task_id}}"
GROUP = f"{RUN}/taskGroupInstances/{{group_id}}"
VIEWER_OF_DAG, OPERATOR_OF_DAG, ADMIN_OF_DAG = Needs(VIEW, "dag"), Needs(OPERATE, "dag"), Needs(ADMINISTER, "dag")
VIEWER_OF_ANY, OPERATOR_OF_ANY = Needs(VIEW, "any"), Needs(OPERATE, "any")
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


def may(account: Account, needs: Needs, dag_tags: list[str] | None = None) -> bool:
    """Whether an account may use a route; `dag_tags` are the tags of the DAG of its path, if it has one."""
    if needs.scope == "login" or at_least(account.role, needs.role):
        return True
    tags = tags_with(account, needs.role) or []
    if needs.scope == "any" or (needs.scope == "dag" and dag_tags is None):
        return bool(tags)
    return needs.scope == "dag" and bool(set(tags) & set(dag_tags or []))


def refusal(needs: Needs) -> ForbiddenError:
    """The error for an account that may not use a route."""
    where = {"dag": "this DAG", "any": "a DAG"}.get(needs.scope, "this installation")
    return ForbiddenError(f"This needs the role {needs.role} on {where}: ask an administrator.")
