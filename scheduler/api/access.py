"""Which role may do what: one table of all routes. A route that is not in the table is refused."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from scheduler.api.errors import ForbiddenError
from scheduler.store.accounts.accounts import ROLES, Account

#: "dag": on the DAG of the path (with ~ on any DAG; the list then has only DAGs that the account may see). "any": on at least one
#: DAG; the route filters. "all": the role of the account itself, since it is about no DAG. "login": every account.
Scope = Literal["dag", "any", "all", "login"]
VIEW, OPERATE, ADMINISTER = ROLES


class Needs(NamedTuple):
    """The least role for a route, and on what."""

    role: str
    scope: Scope


RUN = "/dags/{dag_id}/dagRuns/{dag_run_id}"
TI = f"{RUN}/taskInstances/{{task_id}}"
GROUP = f"{RUN}/taskGroupInstances/{{group_id}}"
VIEWER_OF_DAG, OPERATOR_OF_DAG, ADMIN_OF_DAG = Needs(VIEW, "dag"), Needs(OPERATE, "dag"), Needs(ADMINISTER, "dag")
VIEWER_OF_ANY, OPERATOR_OF_ANY = Needs(VIEW, "any"), Needs(OPERATE, "any")
VIEWER, OPERATOR, ADMIN = Needs(VIEW, "all"), Needs(OPERATE, "all"), Needs(ADMINISTER, "all")
LOGIN = Needs(VIEW, "login")

TABLE: Mapping[str, Needs] = {
    # Web process
    "GET /openapi.json": LOGIN,
    "GET /me": LOGIN,
    "GET /plugins": LOGIN,
    "GET /plugins/importErrors": LOGIN,
    "GET /providers": LOGIN,
    "GET /config": ADMIN,
    "GET /config/section/{section}/option/{option}": ADMIN,
    "GET /jobs": VIEWER,
    # DAGs
    "GET /dags": VIEWER_OF_ANY,
    "PATCH /dags": OPERATOR_OF_ANY,
    "GET /dagTags": VIEWER_OF_ANY,
    "GET /dagStats": VIEWER_OF_ANY,
    "GET /dagWarnings": VIEWER_OF_ANY,
    "GET /importErrors": VIEWER_OF_ANY,
    "GET /importErrors/{import_error_id}": VIEWER_OF_ANY,
    "GET /dags/{dag_id}": VIEWER_OF_DAG,
    "PATCH /dags/{dag_id}": OPERATOR_OF_DAG,
    "DELETE /dags/{dag_id}": ADMIN_OF_DAG,
    "GET /dags/{dag_id}/details": VIEWER_OF_DAG,
    "GET /dags/{dag_id}/tasks": VIEWER_OF_DAG,
    "GET /dags/{dag_id}/tasks/{task_id}": VIEWER_OF_DAG,
    "GET /dags/{dag_id}/dagVersions": VIEWER_OF_DAG,
    "GET /dags/{dag_id}/dagVersions/{version_number}": VIEWER_OF_DAG,
    "GET /dagSources/{dag_id}": VIEWER_OF_DAG,
    "POST /dags/{dag_id}/favorite": VIEWER_OF_DAG,
    "POST /dags/{dag_id}/unfavorite": VIEWER_OF_DAG,
    "PUT /parseDagFile/{file_token}": OPERATOR_OF_ANY,
    # Runs
    "GET /dags/{dag_id}/dagRuns": VIEWER_OF_DAG,
    "POST /dags/{dag_id}/dagRuns/list": VIEWER_OF_DAG,
    f"GET {RUN}": VIEWER_OF_DAG,
    f"GET {RUN}/wait": VIEWER_OF_DAG,
    f"GET {RUN}/upstreamAssetEvents": VIEWER_OF_DAG,
    "POST /dags/{dag_id}/dagRuns": OPERATOR_OF_DAG,
    "PATCH /dags/{dag_id}/dagRuns": OPERATOR_OF_DAG,
    "POST /dags/{dag_id}/clearDagRuns": OPERATOR_OF_DAG,
    f"PATCH {RUN}": OPERATOR_OF_DAG,
    f"POST {RUN}/clear": OPERATOR_OF_DAG,
    f"GET {RUN}/callbackLog": VIEWER_OF_DAG,
    f"DELETE {RUN}": OPERATOR_OF_DAG,
    # Task instances
    f"GET {RUN}/taskInstances": VIEWER_OF_DAG,
    f"POST {RUN}/taskInstances/list": VIEWER_OF_DAG,
    f"GET {TI}": VIEWER_OF_DAG,
    f"GET {TI}/listMapped": VIEWER_OF_DAG,
    f"GET {TI}/tries": VIEWER_OF_DAG,
    f"GET {TI}/tries/{{task_try_number}}": VIEWER_OF_DAG,
    f"GET {TI}/dependencies": VIEWER_OF_DAG,
    f"GET {TI}/links": VIEWER_OF_DAG,
    f"GET {TI}/logs/{{try_number}}": VIEWER_OF_DAG,
    f"GET {TI}/externalLogUrl/{{try_number}}": VIEWER_OF_DAG,
    f"GET {TI}/callbackLog": VIEWER_OF_DAG,
    f"GET {TI}/{{map_index}}": VIEWER_OF_DAG,
    f"GET {TI}/{{map_index}}/tries": VIEWER_OF_DAG,
    f"GET {TI}/{{map_index}}/tries/{{task_try_number}}": VIEWER_OF_DAG,
    f"GET {TI}/{{map_index}}/dependencies": VIEWER_OF_DAG,
    "POST /dags/{dag_id}/clearTaskInstances": OPERATOR_OF_DAG,
    f"PATCH {RUN}/taskInstances": OPERATOR_OF_DAG,
    f"PATCH {TI}": OPERATOR_OF_DAG,
    f"PATCH {TI}/dry_run": OPERATOR_OF_DAG,
    f"PATCH {TI}/{{map_index}}": OPERATOR_OF_DAG,
    f"PATCH {TI}/{{map_index}}/dry_run": OPERATOR_OF_DAG,
    f"DELETE {TI}": OPERATOR_OF_DAG,
    f"PATCH {GROUP}": OPERATOR_OF_DAG,
    f"PATCH {GROUP}/dry_run": OPERATOR_OF_DAG,
    # XComs
    f"GET {TI}/xcomEntries": VIEWER_OF_DAG,
    f"GET {TI}/xcomEntries/{{xcom_key:path}}": VIEWER_OF_DAG,
    f"POST {TI}/xcomEntries": OPERATOR_OF_DAG,
    f"PATCH {TI}/xcomEntries/{{xcom_key:path}}": OPERATOR_OF_DAG,
    f"DELETE {TI}/xcomEntries/{{xcom_key:path}}": OPERATOR_OF_DAG,
    # State of tasks and assets
    f"GET {TI}/state-store": VIEWER_OF_DAG,
    f"DELETE {TI}/state-store": OPERATOR_OF_DAG,
    f"GET {TI}/state-store/{{key:path}}": VIEWER_OF_DAG,
    f"PUT {TI}/state-store/{{key:path}}": OPERATOR_OF_DAG,
    f"PATCH {TI}/state-store/{{key:path}}": OPERATOR_OF_DAG,
    f"DELETE {TI}/state-store/{{key:path}}": OPERATOR_OF_DAG,
    "GET /assets/{asset_id}/state-store": VIEWER,
    "DELETE /assets/{asset_id}/state-store": OPERATOR,
    "GET /assets/{asset_id}/state-store/{key:path}": VIEWER,
    "PUT /assets/{asset_id}/state-store/{key:path}": OPERATOR,
    "DELETE /assets/{asset_id}/state-store/{key:path}": OPERATOR,
    # Backfills
    "GET /backfills": VIEWER_OF_ANY,
    "GET /backfills/{backfill_id}": VIEWER_OF_ANY,
    "POST /backfills": OPERATOR_OF_ANY,
    "POST /backfills/dry_run": OPERATOR_OF_ANY,
    "PUT /backfills/{backfill_id}/pause": OPERATOR_OF_ANY,
    "PUT /backfills/{backfill_id}/unpause": OPERATOR_OF_ANY,
    "PUT /backfills/{backfill_id}/cancel": OPERATOR_OF_ANY,
    # Assets
    "GET /assets": VIEWER,
    "GET /assets/aliases": VIEWER,
    "GET /assets/aliases/{asset_alias_id}": VIEWER,
    "GET /assets/events": VIEWER,
    "POST /assets/events": OPERATOR,
    "GET /assets/{asset_id}": VIEWER,
    "GET /assets/{asset_id}/queuedEvents": VIEWER,
    "DELETE /assets/{asset_id}/queuedEvents": OPERATOR,
    "POST /assets/{asset_id}/materialize": OPERATOR,
    "GET /dags/{dag_id}/assets/queuedEvents": VIEWER_OF_DAG,
    "DELETE /dags/{dag_id}/assets/queuedEvents": OPERATOR_OF_DAG,
    "GET /dags/{dag_id}/assets/{asset_id}/queuedEvents": VIEWER_OF_DAG,
    "DELETE /dags/{dag_id}/assets/{asset_id}/queuedEvents": OPERATOR_OF_DAG,
    # Pools, variables, connections
    "GET /pools": VIEWER,
    "GET /pools/{pool_name:path}": VIEWER,
    "POST /pools": OPERATOR,
    "PATCH /pools": OPERATOR,
    "PATCH /pools/{pool_name:path}": OPERATOR,
    "DELETE /pools/{pool_name:path}": OPERATOR,
    "GET /variables": OPERATOR,
    "GET /variables/{variable_key:path}": OPERATOR,
    "POST /variables": ADMIN,
    "PATCH /variables": ADMIN,
    "PATCH /variables/{variable_key:path}": ADMIN,
    "DELETE /variables/{variable_key:path}": ADMIN,
    "GET /connections": OPERATOR,
    "GET /connections/{connection_id:path}": OPERATOR,
    "POST /connections": ADMIN,
    "PATCH /connections": ADMIN,
    "PATCH /connections/{connection_id:path}": ADMIN,
    "DELETE /connections/{connection_id:path}": ADMIN,
    f"GET {TI}/{{map_index}}/hitlDetails": VIEWER_OF_DAG,
    f"PATCH {TI}/{{map_index}}/hitlDetails": OPERATOR_OF_DAG,
    f"GET {RUN}/hitlDetails": VIEWER_OF_DAG,
    f"GET {TI}/{{map_index}}/hitlDetails/tries/{{try_number}}": VIEWER_OF_DAG,
    # Routes of Airflow that Paceline does not have
    "POST /connections/test": ADMIN,
    "POST /connections/enqueue-test": ADMIN,
    "GET /connections/enqueue-test": ADMIN,
    "POST /connections/defaults": ADMIN,
    "POST /dags/{dag_id}/clearPartitions": OPERATOR_OF_DAG,
    # Additions of Paceline
    "GET /home": VIEWER_OF_ANY,
    "POST /clearByFilter": OPERATOR_OF_ANY,
    "POST /markByFilter": OPERATOR_OF_ANY,
    "POST /deleteByFilter": OPERATOR_OF_ANY,
    "GET /events": VIEWER_OF_ANY,
    "GET /recentRuns": VIEWER_OF_ANY,
    "GET /dags/{dag_id}/grid": VIEWER_OF_DAG,
    "GET /dags/{dag_id}/graph": VIEWER_OF_DAG,
    f"GET {RUN}/timeline": VIEWER_OF_DAG,
    f"GET {RUN}/why": VIEWER_OF_DAG,
    f"GET {TI}/why": VIEWER_OF_DAG,
    f"GET {TI}/view": VIEWER_OF_DAG,
    f"GET {TI}/progress": VIEWER_OF_DAG,
    f"GET {TI}/logs/{{try_number}}/lines": VIEWER_OF_DAG,
    f"GET {TI}/logs/{{try_number}}/search": VIEWER_OF_DAG,
    "GET /queues": VIEWER,
    "GET /queues/history": VIEWER,
    "GET /processes": VIEWER,
    "GET /workers": VIEWER,
    "POST /workers/{worker:path}/drain": OPERATOR,
    "GET /poolLines/{pool_name:path}": VIEWER,
    # Audit
    "GET /eventLogs": VIEWER_OF_ANY,
    "GET /eventLogs/{event_log_id}": VIEWER_OF_ANY,
}

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
