"""The routes, one file for each noun."""

from importlib.metadata import version as _version
from typing import Any

from scheduler.api.models.base import Detail
from scheduler.api.routes import (
    assets,
    auth,
    backfills,
    by_filter,
    connections,
    dag_runs,
    dags,
    event_logs,
    events,
    health,
    installation,
    logs,
    metrics,
    operations,
    pictures,
    pools,
    task_changes,
    task_instances,
    unsupported,
    variables,
    xcoms,
)

#: Without a login.
PUBLIC = (health.public, installation.public, auth.router)
#: With a login, but not below /api/v2.
OUTSIDE = (metrics.router,)
#: In this order: a path that is unsupported must not be taken for a name, and those of single task instances fit many others.
ROUTERS = (
    unsupported.router, pictures.router, operations.router, events.router, by_filter.router, installation.router,
    backfills.router, assets.router, event_logs.router, pools.router, variables.router, connections.router, dags.router,
    dag_runs.router, xcoms.router, logs.router, task_instances.router, task_changes.router,
)  # fmt: skip
#: What every route may answer.
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Detail, "description": "The request asks for something impossible."},
    401: {"model": Detail, "description": "There is no valid login or token."},
    403: {"model": Detail, "description": "The account may not do that."},
    404: {"model": Detail, "description": "There is no such thing."},
    409: {"model": Detail, "description": "The request conflicts with what is there."},
    503: {"model": Detail, "description": "PostgreSQL does not answer, or all connections are in use."},
}


def version() -> str:
    """The version of Paceline."""
    return _version("paceline")
