"""A run beside another run of its DAG."""

from collections.abc import Mapping
from typing import Any

from paceline.exceptions import UnreadableVersionError
from scheduler.api.access import RUN, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import comparisons as models
from scheduler.api.routes.dags import kept_source
from scheduler.store.read import comparison, runs

router = new_router(tags=["Paceline"])


@router.get(f"{RUN}/comparison", VIEWER_OF_DAG, response_model=models.Comparison)
def get_comparison(api: Api, dag_id: str, dag_run_id: str, other_run_id: str | None = None) -> dict[str, Any]:
    """Compare a run with another run of its DAG, by default with the newest one before it that succeeded."""
    run = api.read(runs.run, dag_id, dag_run_id)
    chosen = other_run_id or api.read(comparison.last_success, run)
    shown: dict[str, Any] = {
        "run": run,
        "other": None,
        "others": api.read(comparison.others, run),
        "tasks": [],
        "params": [],
        "xcoms": [],
        "code": None,
    }
    if chosen is None:
        return shown
    other = api.read(runs.run, dag_id, chosen)
    return shown | {
        "other": other,
        "tasks": api.read(comparison.tasks, run["id"], other["id"]),
        "params": comparison.differences(_params(api, run), _params(api, other)),
        "xcoms": api.read(comparison.xcoms, run["id"], other["id"]),
        "code": None if run["version_id"] == other["version_id"] else _code(api, run, other),
    }


def _code(api: Call, run: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str] | None:
    """The texts of the DAG file that both runs executed; None if one was not kept."""
    now, before = kept_source(api, run["version_id"]), kept_source(api, other["version_id"])
    return None if now is None or before is None else {"before": before, "now": now}


def _params(api: Call, run: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a run: the defaults of its version, replaced by its conf."""
    try:
        defaults = api.read(api.service.versions.dag, run["version_id"]).params
    except UnreadableVersionError:
        defaults = {}
    return {name: param.get("value") for name, param in defaults.items()} | (run["conf"] or {})
