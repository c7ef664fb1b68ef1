"""Whether this installation works."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from paceline.exceptions import NotFoundError, UnreachableError
from scheduler.api.call import PREFIX, Api, Service, service_of
from scheduler.store.db.database import transact
from scheduler.store.read import operations

public = APIRouter(tags=["Monitor"])

#: Process kinds by Airflow's names. A scheduler parses DAG files too.
AIRFLOW = {"scheduler": "scheduler", "triggerer": "waiter", "dag_processor": "scheduler"}
#: Without one of these, no task runs.
VITAL = frozenset({"metadatabase", "broker", "scheduler"})


@public.get("/health", name="health", responses={503: {"description": "A part is missing without which no task runs."}})
def health(request: Request, response: Response) -> dict[str, Any]:
    """Show the state of each part. The status is 503 if a part is missing that every task needs."""
    service = service_of(request)
    parts = _parts(service) | {"broker": _broker(service)}
    broken = [name for name, part in parts.items() if name in VITAL and part["status"] != "healthy"]
    response.status_code = 503 if broken or service.stopping.is_set() else 200
    return {"status": "unhealthy" if broken else "healthy", "role": "web", "parts": parts}


@public.get("/alive", name="alive")
async def alive(request: Request, response: Response) -> dict[str, str]:
    """Show whether this web process serves requests. The status is 503 while it shuts down. Unlike /health, it connects to no
    server, and it needs no thread: it answers while all threads wait for PostgreSQL.
    """
    stopping = service_of(request).stopping.is_set()
    response.status_code = 503 if stopping else 200
    return {"status": "stopping" if stopping else "alive"}


@public.get(f"{PREFIX}/monitor/health", name="get_health")
def get_health(request: Request) -> dict[str, Any]:
    """Show the state of each part, in the form of Airflow. The status is always 200."""
    parts = _parts(service_of(request))
    found: dict[str, Any] = {"metadatabase": {"status": parts["metadatabase"]["status"]}}
    for name, kind in AIRFLOW.items():
        part = parts.get(kind, {"status": None})
        found[name] = {"status": part["status"], f"latest_{name}_heartbeat": part.get("latest_heartbeat")}
    return found


def _parts(service: Service) -> dict[str, dict[str, Any]]:
    settings = service.settings
    silent_after_s = {
        "scheduler": settings.scheduler.scheduler_health_check_threshold,
        "worker": settings.worker.heartbeat_timeout,
        "waiter": settings.waiter.heartbeat_timeout,
    }
    try:
        beats = transact(service.engine, operations.heartbeats, silent_after_s)
    except (DBAPIError, PoolTimeoutError):
        return {"metadatabase": {"status": "unhealthy", "message": "PostgreSQL does not answer."}}
    parts: dict[str, dict[str, Any]] = {"metadatabase": {"status": "healthy"}}
    for kind, beat in beats.items():
        at = beat["heartbeat_at"]
        status = "healthy" if beat["alive"] else None if at is None and kind != "scheduler" else "unhealthy"
        parts[kind] = {"status": status, "latest_heartbeat": at and at.isoformat()}
    return parts


def _broker(service: Service) -> dict[str, Any]:
    try:
        problems = service.broker.check()
    except UnreachableError as error:
        return {"status": "unhealthy", "message": str(error).partition(":")[0] + "."}
    return {"status": "healthy"} | ({"message": " ".join(problems)} if problems else {})


metrics_page = APIRouter()


@metrics_page.get("/metrics", name="metrics", include_in_schema=False)
def metrics(request: Request, api: Api) -> Response:
    """All metrics that the database has, and those of this process, if metrics.prometheus is on."""
    page = request.app.state.metrics
    if page is None:
        raise NotFoundError("metrics.prometheus is off in this web process.")
    content_type, body = page()
    return Response(body, headers={"Content-Type": content_type})
