"""About the installation: version, account, settings, processes, and what Airflow has and Paceline lacks."""

from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import PlainTextResponse, Response

from paceline.exceptions import NotFoundError
from scheduler.api import other_dags, params
from scheduler.api.access import ADMIN, LOGIN, VIEWER, VIEWER_OF_ANY
from scheduler.api.call import PREFIX, Api, Call, new_router
from scheduler.api.models import installation as models
from scheduler.api.models.base import Moment
from scheduler.api.models.installation import JOBS, Config, JobPage
from scheduler.api.params import Number, Page, Strings, patterns, ranges
from scheduler.settings import Settings
from scheduler.settings.model import effective, keys
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
