"""The routes, one file for each noun."""

from scheduler.api.routes import (
    assets,
    auth,
    backfills,
    bundles,
    by_filter,
    dag_runs,
    dags,
    health,
    hitl,
    installation,
    logs,
    named,
    operations,
    pages,
    pictures,
    task_changes,
    task_instances,
    unsupported,
    values,
)

#: Without a login.
PUBLIC = (health.public, installation.public, auth.router)
#: With a login, but not below /api/v2.
OUTSIDE = (health.metrics_page,)
#: In this order: a path that is unsupported must not be taken for a name, and those of single task instances fit many others.
ROUTERS = (
    unsupported.router, pictures.router, named.connection_tests, pages.router, operations.router, by_filter.router,
    installation.router, backfills.router, bundles.router, hitl.router, values.state_store, assets.tables,
    assets.router, installation.event_logs, named.pools, named.variables, named.connections, dags.router, dag_runs.router,
    values.xcoms, logs.router, task_instances.router, task_changes.router,
)  # fmt: skip
