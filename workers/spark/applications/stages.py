"""How far a submitted application is, from the REST API of its own UI."""

from collections.abc import Callable
from typing import Any

from workers import progress
from workers.spark.clusters import rest
from workers.spark.clusters.status import Ids

TIMEOUT_S = 2.0


def look(ids: Callable[[], Ids]) -> progress.Progress | None:
    """What the UI tells now; None while it is not known where it is. UnreachableError."""
    known = ids()
    if known.ui_url is None:
        return None
    base = f"{known.ui_url.rstrip('/')}/api/v1/applications"
    found = known.application_id or _only(rest.ask(base, timeout_s=TIMEOUT_S))
    if found is None:
        return None
    stages: list[dict[str, Any]] = rest.ask(f"{base}/{found}/stages", timeout_s=TIMEOUT_S)
    executors: list[dict[str, Any]] = rest.ask(f"{base}/{found}/allexecutors", timeout_s=TIMEOUT_S)
    return progress.of_stages(stages, executors, application_id=found, ui_url=known.ui_url)


def _only(applications: list[dict[str, Any]]) -> str | None:
    """A driver's UI has one application: its own."""
    return str(applications[0]["id"]) if applications else None
