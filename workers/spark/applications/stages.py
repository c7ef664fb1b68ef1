"""The progress of a submitted application, from the REST API of its UI."""

from collections.abc import Callable
from typing import Any

from workers import progress
from workers.spark.clusters import rest
from workers.spark.clusters.status import Ids

TIMEOUT_S = 2.0


def look(ids: Callable[[], Ids]) -> progress.Progress | None:
    """The current progress; None while the URL of the UI is unknown. UnreachableError."""
    known = ids()
    if known.ui_url is None:
        return None
    base = f"{known.ui_url.rstrip('/')}/api/v1/applications"
    application_id = known.application_id or _only(rest.ask(base, timeout_s=TIMEOUT_S))
    if application_id is None:
        return None
    stages: list[dict[str, Any]] = rest.ask(f"{base}/{application_id}/stages", timeout_s=TIMEOUT_S)
    executors: list[dict[str, Any]] = rest.ask(f"{base}/{application_id}/allexecutors", timeout_s=TIMEOUT_S)
    return progress.of_stages(stages, executors, application_id=application_id, ui_url=known.ui_url)


def _only(applications: list[dict[str, Any]]) -> str | None:
    """The ID of the only application that the UI of a driver has."""
    return str(applications[0]["id"]) if applications else None
