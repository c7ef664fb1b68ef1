"""The routes, one file for each noun."""

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
    hitl,
    installation,
    logs,
    metrics,
    operations,
    pictures,
    pools,
    states,
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
    backfills.router, hitl.router, states.router, assets.router, event_logs.router, pools.router, variables.router,
    connections.router, dags.router, dag_runs.router, xcoms.router, logs.router, task_instances.router, task_changes.router,
)  # fmt: skip
