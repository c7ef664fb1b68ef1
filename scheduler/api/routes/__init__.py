"""The routes, one file for each noun."""

from scheduler.api.routes import (
    assets,
    auth,
    bundles,
    dag_runs,
    dags,
    installation,
    named,
    operations,
    pictures,
    reproductions,
    task_changes,
    task_instances,
    values,
)

#: Without a login.
PUBLIC = (installation.monitor, installation.public, auth.router)
#: With a login, but not below /api/v2.
OUTSIDE = (installation.metrics_page,)
#: In this order: a path that is unsupported must not be taken for a name, and those of single task instances fit many others.
ROUTERS = (
    installation.unsupported, pictures.router, named.connection_tests, operations.router, task_changes.by_filter,
    installation.router, dag_runs.backfills, bundles.router, values.hitl, values.state_store, assets.tables,
    assets.router, installation.event_logs, named.pools, named.variables, named.connections, dags.router, dag_runs.router,
    reproductions.router, values.xcoms, task_instances.log_routes, task_instances.router, task_changes.router,
)  # fmt: skip
