"""The routes, one file for each noun."""

from scheduler.api.routes import (
    assets,
    auth,
    backfills,
    bundles,
    by_filter,
    comparisons,
    connection_tests,
    dag_runs,
    dags,
    events,
    health,
    hitl,
    installation,
    jump,
    logs,
    named,
    operations,
    pictures,
    states,
    tables,
    task_changes,
    task_instances,
    unsupported,
    xcoms,
)

#: Without a login.
PUBLIC = (health.public, installation.public, auth.router)
#: With a login, but not below /api/v2.
OUTSIDE = (health.metrics_page,)
#: In this order: a path that is unsupported must not be taken for a name, and those of single task instances fit many others.
ROUTERS = (
    unsupported.router, pictures.router, comparisons.router, connection_tests.router, jump.router, operations.router, events.router,
    by_filter.router, installation.router, backfills.router, bundles.router, hitl.router, states.router, tables.router,
    assets.router, installation.event_logs, named.pools, named.variables, named.connections, dags.router, dag_runs.router,
    xcoms.router, logs.router, task_instances.router, task_changes.router,
)  # fmt: skip
