"""About the installation: version, account, settings, processes, its health, and what Airflow has and Paceline lacks."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from paceline.exceptions import NotFoundError, UnreachableError
from scheduler.api import other_dags, params
from scheduler.api.access import ADMIN, LOGIN, OPERATOR_OF_DAG, VIEWER, VIEWER_OF_ANY
from scheduler.api.call import PREFIX, Api, Call, Service, new_router, service_of
from scheduler.api.errors import UnsupportedError
from scheduler.api.models import installation as models
from scheduler.api.models.base import Moment
from scheduler.api.models.installation import JOBS, Config, JobPage
from scheduler.api.params import Number, Page, Strings, patterns, ranges
from scheduler.settings import Settings
from scheduler.settings.model import effective, keys
from scheduler.store.db.database import transact
from scheduler.store.read import dags, operations, records
from scheduler.store.read.listing import Filters

router = new_router()
#: Airflow's client sends no token with these.
public = APIRouter(prefix=PREFIX)

#: Airflow's job types, as filters.
KINDS = {job: kind for kind, job in JOBS.items()}


@public.get("/version", tags=["Version"])
def get_version() -> dict[str, str | None]:
    """The version of Paceline."""
    return {"version": version("paceline"), "git_version": None}


@router.get("/me", LOGIN, tags=["Login"])
def get_me(api: Api) -> dict[str, Any]:
    """Show the account of this request, with its rights. `operates` has the DAGs that it may change; null: all that it sees."""
    account = api.account
    tags = api.tags("operator")
    operates = None if tags is None else api.read(dags.names, dags.DAGS.filters().visible(tags))
    links = {"flower": api.settings.web.flower_url or None}
    return {"username": account.name, "role": account.role, "tags": dict(account.tags), "operates": operates, "links": links}


@router.get("/config", ADMIN, tags=["Config"], response_model=Config)
def get_config(
    api: Api, section: Annotated[str | None, Query()] = None, accept: Annotated[str, Header()] = "*/*"
) -> Response | dict[str, Any]:
    """The settings of this web process, without secrets."""
    found = _config(api.settings)
    if section is not None:
        found = {name: options for name, options in found.items() if name == section}
        if not found:
            raise NotFoundError(f"There is no section {section!r}.")
    return _shown(found, accept)


@router.get("/config/section/{section}/option/{option}", ADMIN, tags=["Config"], response_model=Config)
def get_config_value(api: Api, section: str, option: str, accept: Annotated[str, Header()] = "*/*") -> Response | dict[str, Any]:
    """One setting."""
    found = _config(api.settings)
    if option not in found.get(section, {}):
        raise NotFoundError(f"There is no option {option!r} in section {section!r}.")
    return _shown({section: {option: found[section][option]}}, accept)


@router.get("/jobs", VIEWER, tags=["Job"], response_model=JobPage)
def get_jobs(
    api: Api,
    page: Page,
    ranges_: Annotated[params.Ranges, Depends(ranges("start_date", "end_date"))],
    is_alive: bool | None = None,
    job_state: str | None = None,
    job_type: str | None = None,
    hostname: str | None = None,
    executor_class: str | None = None,
) -> dict[str, Any]:
    """List schedulers, workers and waiters."""
    silent_s = api.settings.scheduler.scheduler_health_check_threshold
    filters = operations.process_filters(silent_s, alive=is_alive, state=job_state).equals("host", hostname)
    filters.equals("kind", job_type and KINDS.get(job_type, job_type)).in_ranges(ranges_)
    if executor_class not in {None, "CeleryExecutor"}:
        filters.nothing()
    return api.page("jobs", operations.PROCESSES, filters, page)


@router.get("/plugins", LOGIN, tags=["Plugin"])
def get_plugins(api: Api, page: Page) -> dict[str, Any]:
    """Always empty: Paceline has no plugins."""
    return {"plugins": [], "total_entries": 0}


@router.get("/plugins/importErrors", LOGIN, tags=["Plugin"])
def import_errors(api: Api) -> dict[str, Any]:
    """Always empty: Paceline has no plugins."""
    return {"import_errors": [], "total_entries": 0}


@router.get("/providers", LOGIN, tags=["Provider"])
def get_providers(api: Api, page: Page) -> dict[str, Any]:
    """Always empty: Paceline has no providers."""
    return {"providers": [], "total_entries": 0}


def _config(settings: Settings) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for key in keys():
        section, _, name = key.partition(".")
        value = effective(settings, key)
        found.setdefault(section, {})[name] = "" if value is None else str(value)
    return found


def _shown(found: dict[str, dict[str, str]], accept: str) -> Response | dict[str, Any]:
    if accept.startswith("text/plain"):
        text = "\n".join(
            f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in options.items()) for name, options in found.items()
        )
        return PlainTextResponse(text)
    return {
        "sections": [
            {"name": name, "options": [{"key": key, "value": value} for key, value in options.items()]}
            for name, options in found.items()
        ]
    }


event_logs = new_router(prefix="/eventLogs", tags=["Event Log"])


@event_logs.get("", VIEWER_OF_ANY, response_model=models.EventLogPage)
def get_event_logs(
    api: Api,
    page: Page,
    patterns_: Annotated[
        params.Patterns, Depends(patterns(dag_id="dag_id", task_id="task_id", run_id="run_id", owner="owner", event="event"))
    ],
    dag_id: str | None = None,
    task_id: str | None = None,
    run_id: str | None = None,
    map_index: int | None = None,
    try_number: int | None = None,
    owner: str | None = None,
    event: str | None = None,
    excluded_events: Strings = None,
    included_events: Strings = None,
    before: Annotated[Moment | None, Query()] = None,
    after: Annotated[Moment | None, Query()] = None,
) -> dict[str, Any]:
    """List entries of the audit log. Without the role admin, only those about DAGs."""
    filters = _visible_entries(api).like_each(patterns_).equals("dag_id", dag_id).equals("task_id", task_id)
    filters.equals("run_id", run_id).equals("map_index", map_index).equals("owner", owner).equals("event", event)
    filters.one_of("event", included_events).none_of("event", excluded_events).between("at", {"lt": before, "gt": after})
    if try_number is not None:
        filters.nothing()
    entries = api.page("event_logs", records.AUDIT, filters, page)
    return entries | {"event_logs": other_dags.in_audit(api, entries["event_logs"])}


@event_logs.get("/{event_log_id}", VIEWER_OF_ANY, response_model=models.EventLog)
def get_event_log(api: Api, event_log_id: Number) -> dict[str, Any]:
    """Show an entry of the audit log."""
    chosen = _visible_entries(api).equals("id", event_log_id)
    row = api.read(records.AUDIT.one, chosen, f"There is no event log {event_log_id}.")
    return other_dags.in_audit(api, [row])[0]


def _visible_entries(api: Call) -> Filters:
    """Entries about accounts, variables and connections are for administrators."""
    filters = records.AUDIT.filters()
    return filters if api.account.role == "admin" else filters.is_set("dag_id").visible(api.tags())


monitor = APIRouter(tags=["Monitor"])

#: Process kinds by Airflow's names. A scheduler parses DAG files too.
AIRFLOW_PROCESSES = {"scheduler": "scheduler", "triggerer": "waiter", "dag_processor": "scheduler"}
#: Without one of these, no task runs.
VITAL = frozenset({"metadatabase", "broker", "scheduler"})


@monitor.get("/health", name="health", responses={503: {"description": "A part is missing without which no task runs."}})
def health(request: Request, response: Response) -> dict[str, Any]:
    """Show the state of each part. The status is 503 if a part is missing that every task needs."""
    service = service_of(request)
    parts = _parts(service) | {"broker": _broker(service)}
    broken = [name for name, part in parts.items() if name in VITAL and part["status"] != "healthy"]
    response.status_code = 503 if broken or service.stopping.is_set() else 200
    return {"status": "unhealthy" if broken else "healthy", "role": "web", "parts": parts}


@monitor.get("/alive", name="alive")
async def alive(request: Request, response: Response) -> dict[str, str]:
    """Show whether this web process serves requests. The status is 503 while it shuts down. Unlike /health, it connects to no
    server, and it needs no thread: it answers while all threads wait for PostgreSQL.
    """
    stopping = service_of(request).stopping.is_set()
    response.status_code = 503 if stopping else 200
    return {"status": "stopping" if stopping else "alive"}


@monitor.get(f"{PREFIX}/monitor/health", name="get_health")
def get_health(request: Request) -> dict[str, Any]:
    """Show the state of each part, in the form of Airflow. The status is always 200."""
    parts = _parts(service_of(request))
    found: dict[str, Any] = {"metadatabase": {"status": parts["metadatabase"]["status"]}}
    for name, kind in AIRFLOW_PROCESSES.items():
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


unsupported = new_router(include_in_schema=False)

TEST = "Paceline tests connections that are stored, in a worker: POST /api/v2/connectionTests with a connection_id."
#: Method and path, and why there is no such thing here.
UNSUPPORTED = {
    "POST /connections/test": TEST,
    "POST /connections/enqueue-test": TEST,
    "GET /connections/enqueue-test": TEST,
    "POST /connections/defaults": "Paceline has no default connections.",
    "POST /dags/{dag_id}/clearPartitions": "Paceline does not clear runs by partition: name them in POST .../clearDagRuns.",
}


def _refuses(reason: str) -> Callable[[Api], None]:
    def refuse(api: Api) -> None:
        raise UnsupportedError(reason)

    return refuse


for _place, _reason in UNSUPPORTED.items():
    _method, _, _path = _place.partition(" ")
    unsupported.declare(_method, _path, OPERATOR_OF_DAG if "{dag_id}" in _path else ADMIN, name="unsupported")(_refuses(_reason))
