"""Which role may do what. A route that declares no right is refused."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from scheduler.actions.actor import ForbiddenError
from scheduler.store.accounts.accounts import ROLES, Account

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
