"""The installation at work: home, explanations, queues, workers, pools; the stream of events, and the search that all pages use."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from paceline.exceptions import UnreachableError, UsageError
from scheduler.actions import installation
from scheduler.api import access, params
from scheduler.api.access import OPERATOR, RUN, TI, VIEWER, VIEWER_OF_ANY, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import operations as models
from scheduler.api.params import TaskPlace
from scheduler.api.routes.task_instances import reader
from scheduler.api.stream import Scope, Session
from scheduler.settings.model import keys
from scheduler.store.accounts import logins
from scheduler.store.dags import assets as asset_store
from scheduler.store.db import clock
from scheduler.store.read import assets, dags, history, home, instances, jump, operations, records, why

router = new_router(tags=["Paceline"])

#: Characters from which on more than DAGs is searched.
LEAST = 2
TYPE = "text/event-stream"
#: Without these, nginx would collect events, and a cache could keep them.
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


@router.get("/jump", VIEWER_OF_ANY, response_model=models.Jump)
def get_jump(api: Api, text: Annotated[str, Query(max_length=250)] = "") -> dict[str, Any]:
    """Find DAGs, tasks, runs, assets, connections, variables and settings whose names contain a text, as far as the account may
    see them. A text with less than two characters finds DAGs only.
    """
    tags = api.tags()
    found = api.read(jump.dags, text, tags)
    operable = set(api.read(dags.visible, [row["dag_id"] for row in found], api.tags("operator"))) if found else set()
    shown: dict[str, Any] = {"dags": [row | {"may_operate": row["dag_id"] in operable} for row in found]}
    if len(text) < LEAST:
        return shown | {"tasks": [], "runs": [], "assets": [], "connections": [], "variables": [], "settings": []}
    role = api.account.role
    operator = access.at_least(role, access.OPERATOR.role)
    return shown | {
        "tasks": api.read(jump.tasks, text, tags),
        "runs": api.read(jump.runs, text, tags),
        "assets": _assets(api, text) if access.at_least(role, access.VIEWER.role) else [],
        "connections": api.read(jump.connections, text) if operator else [],
        "variables": api.read(jump.variables, text) if operator else [],
        "settings": _settings(text) if access.at_least(role, access.ADMIN.role) else [],
    }


def _assets(api: Call, text: str) -> list[dict[str, Any]]:
    uris = [row["uri"] for row in api.read(asset_store.assets) if text.lower() in f"{row['uri']} {row['name']}".lower()]
    numbers = api.read(assets.asset_numbers, uris[: jump.MOST])
    return [{"id": number, "uri": uri} for uri, number in numbers.items()]


def _settings(text: str) -> list[str]:
    return [name for name in keys() if text.lower() in name][: jump.MOST]


@router.get(
    "/events", VIEWER_OF_ANY, response_class=StreamingResponse, responses={200: {"content": {TYPE: {"schema": {"type": "string"}}}}}
)
def get_events(
    request: Request, api: Api, dag_id: Annotated[str | None, Query()] = None, dag_run_id: Annotated[str | None, Query()] = None
) -> StreamingResponse:
    """Stream changes as server-sent events.

    `changes` has the runs that changed and, with `dag_id`, their task instances. With `more`, or after `reset`, read the page
    again. `away` means that the database does not answer. A stream ends after 15 minutes: connect again. It also ends when the
    login ends or its rights change.
    """
    api.service.stream.refuse_too_many()
    if dag_id is not None:
        api.require(dag_id, "viewer")
    tags = api.tags()
    scope = Scope(dag_id, dag_run_id, None if tags is None else tuple(tags))
    session = Session(logins.digest(api.service.logins.key(request)[0]), api.account)
    return StreamingResponse(api.service.stream.follow(scope, session), media_type=TYPE, headers=HEADERS)


#: Points in one chart.
MOST_POINTS = 400
#: Bars in one chart.
MOST_BARS = 100


@router.get(f"{RUN}/why", VIEWER_OF_DAG, response_model=models.Why)
def get_run_why(api: Api, dag_id: str, dag_run_id: str) -> dict[str, Any]:
    """Explain what a run waits for, and how it got into its state."""
    now = api.read(why.why_run, api.settings, dag_id, dag_run_id, reader=reader(api))
    return now | {"history": api.read(history.of_dag_run, dag_id, dag_run_id)}


@router.get(f"{TI}/why", VIEWER_OF_DAG, response_model=models.InstanceWhy)
def get_task_instance_why(api: Api, place: TaskPlace) -> dict[str, Any]:
    """Explain what a task instance waits for, and what it waited for before each step."""
    ti = api.read(instances.instance, *place)
    account = reader(api)
    now = api.read(why.why, api.settings, *place[:3], map_index=place.map_index, reader=account)
    return now | {"history": api.read(history.of_instance, api.settings, ti["id"], reader=account)}


@router.get("/queues", VIEWER, response_model=models.QueueList)
def get_queues(api: Api) -> dict[str, Any]:
    """List queues with the tasks that wait in PostgreSQL and in Redis, the running tasks, and their workers."""
    rows = api.read(operations.queues, silent_after_s=api.settings.worker.heartbeat_timeout)[: params.LONGEST_PAGE]
    held: dict[str, int] = {}
    error = None
    try:
        held = api.service.broker.lengths([row["queue"] for row in rows])
        error = " ".join(api.service.broker.check()) or None
    except UnreachableError as problem:
        error = str(problem)
    return {"queues": [row | {"waiting_in_redis": held.get(row["queue"])} for row in rows], "redis_error": error}


@router.get("/queues/history", VIEWER, response_model=models.Depths)
def get_queue_history(api: Api, queue: str | None = None, hours: Annotated[float, Query(gt=0, le=24 * 366)] = 24) -> dict[str, Any]:
    """The depth of queues over the last hours, at most 400 points for each queue."""
    minutes = max(1, round(hours * 60 / MOST_POINTS))
    return {"depths": api.read(operations.depths, queue=queue, hours=hours, minutes=minutes)}


@router.get("/processes", VIEWER, response_model=models.ProcessList)
def get_processes(api: Api, kind: str | None = None, stopped: bool = False) -> dict[str, Any]:
    """List schedulers, workers and waiters."""
    return {"processes": _processes(api, kind, stopped=stopped)}


@router.get("/workers", VIEWER, response_model=models.WorkerList)
def get_workers(api: Api) -> dict[str, Any]:
    """List workers that have not stopped, with the task instances that each one runs."""
    found = _processes(api, "worker")
    tasks = api.read(operations.running, [row["id"] for row in found])
    return {"workers": [row | {"tasks": tasks.get(row["id"], [])[: operations.MOST_LISTED]} for row in found]}


@router.post("/workers/{worker:path}/drain", OPERATOR, response_model=models.WorkerList, status_code=202)
def drain_worker(api: Api, worker: str) -> dict[str, Any]:
    """Drain a worker: it takes no more tasks, and ends when its running tasks have ended. Its supervisor may start it again."""
    drained = set(installation.drain(api.actor, worker))
    return {"workers": [row for row in get_workers(api)["workers"] if row["id"] in drained]}


@router.get("/poolLines/{pool_name:path}", VIEWER, response_model=models.PoolLine)
def get_pool_line(api: Api, pool_name: str) -> dict[str, Any]:
    """Show the tasks that hold slots of a pool, and those that wait for slots, the next one first."""
    return api.read(operations.line, pool_name)


@router.get("/home", VIEWER_OF_ANY, response_model=models.Home)
def get_home(api: Api) -> dict[str, Any]:
    """Running, failed and waiting runs, why task instances wait, the last 24 hours, deadlines at risk, and processes."""
    tags = api.tags()

    def read(work: Any) -> Any:
        return api.read(work, home.filters().visible(tags))

    by_hour: dict[datetime, dict[str, Any]] = {}
    key = ("last day", None if tags is None else tuple(tags))
    for row in api.service.kept.get(key, lambda: read(home.last_day)):
        by_hour.setdefault(row["hour"], {"hour": row["hour"], "success": 0, "failed": 0})[row["state"]] = row["count"]
    now, questions = api.read(clock.now), read(home.questions)
    waiting = [*api.read(home.waiting, home.filters().visible(tags), api.settings), *read(home.waiting_runs)]
    return {
        "now": now,
        "runs": {row["state"]: row["count"] for row in read(home.open_runs)},
        "task_instances": {row["state"]: row["count"] for row in read(home.open_instances)},
        "running": read(home.running_runs),
        "failed": read(home.failed_runs),
        "waiting": sorted(waiting, key=lambda row: row["oldest_at"] or now),
        "questions": questions,
        "question_count": questions[0]["total"] if questions else 0,
        "hours": list(by_hour.values()),
        "next_runs": api.read(home.next_runs, tags),
        "deadlines": read(home.deadlines),
        "processes": _counted(api),
        "import_errors": api.read(records.IMPORT_ERRORS.count, records.error_filters(tags)),
    }


@router.get("/home/trend", VIEWER_OF_ANY, response_model=models.Trend)
def get_home_trend(
    api: Api,
    since: datetime,
    bar_hours: Annotated[int, Query(ge=1, le=24 * 7)] = 1,
    bars: Annotated[int, Query(ge=1, le=MOST_BARS)] = 24,
) -> dict[str, Any]:
    """How the runs ended that ended from `since` on, in so many bars of so many hours: of all DAGs, and of those with each tag."""
    if since.tzinfo is None:
        raise UsageError("since needs a time zone, such as 2026-01-02T03:00:00Z.")
    tags = api.tags()

    def read() -> list[dict[str, Any]]:
        return api.read(operations.trend, home.filters().visible(tags), since=since, bar_hours=bar_hours, bars=bars)

    rows = api.service.kept.get(("trend", None if tags is None else tuple(tags), since, bar_hours, bars), read)
    found: dict[str | None, dict[datetime, dict[str, Any]]] = {None: {}}
    for row in rows:
        bar = found.setdefault(row["tag"], {}).setdefault(row["start"], {"start": row["start"], "success": 0, "failed": 0})
        bar[row["state"]] = row["count"]
    shown = {tag: [by_start[start] for start in sorted(by_start)] for tag, by_start in found.items()}
    return {"bars": shown.pop(None), "tags": [{"tag": tag, "bars": each} for tag, each in shown.items()]}


def _counted(api: Call) -> list[dict[str, Any]]:
    """The kinds and states of the processes. Their hosts and numbers need a role on the installation: see get_processes."""
    return [{name: row[name] for name in ("kind", "state", "heartbeat_at")} for row in _processes(api, None)]


def _processes(api: Call, kind: str | None, *, stopped: bool = False) -> list[dict[str, Any]]:
    silent_s = api.settings.scheduler.scheduler_health_check_threshold
    found = api.read(operations.processes, kind=kind, silent_after_s=silent_s, stopped=stopped)
    # Stopped ones last: they are dropped first.
    return sorted(found, key=lambda row: row["state"] == "stopped")[: params.LONGEST_PAGE]
