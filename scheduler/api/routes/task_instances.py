"""Task instances: lists, tries, logs, and what they wait for."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Query
from fastapi.responses import StreamingResponse

from paceline.exceptions import NotFoundError, UnreadableVersionError, UsageError
from paceline.states import CAN_LOG
from scheduler.actions.tasks import Place
from scheduler.api import logs, params
from scheduler.api.access import RUN, TI, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.logs import Level
from scheduler.api.models import task_instances as models
from scheduler.api.models.pictures import LogLines, LogMatches
from scheduler.api.models.task_instances import ExternalLogUrl, Log
from scheduler.api.params import LARGEST, CursorPage, MappedPlace, Number, Strings, TaskPlace, TaskStates, patterns, ranges
from scheduler.store.read import dags, instances, runs, why
from scheduler.store.read.listing import Filters, Page
from scheduler.store.read.why import Reader

router = new_router(tags=["Task Instance"])

RANGES = ("run_after", "logical_date", "start_date", "end_date", "updated_at", "duration")
PATTERNS = patterns(pool_name="pool", queue_name="queue", operator_name="operator", rendered_map_index="rendered_map_index")
#: Airflow's names of states that have another one here.
OURS = {"restarting": "shutdown", "no_status": "none"}
Numbers = Annotated[list[int] | None, Query()]


async def _filters(
    ranges_: Annotated[params.Ranges, Depends(ranges(*RANGES))],
    patterns_: Annotated[params.Patterns, Depends(PATTERNS)],
    state: TaskStates = None,
    pool: Strings = None,
    queue: Strings = None,
    executor: Strings = None,
    version_number: Numbers = None,
    try_number: Numbers = None,
    operator: Strings = None,
    map_index: Numbers = None,
) -> Filters:
    filters = instances.INSTANCES.filters().one_of("state", ours(state), null="none").one_of("pool", pool).one_of("queue", queue)
    filters.in_ranges(ranges_)
    filters.one_of("version_number", version_number).one_of("try_number", try_number).one_of("map_index", map_index)
    filters.one_of("operator", operator).like_each(patterns_)
    if executor and "~" not in executor:
        filters.nothing()
    return filters


Chosen = Annotated[Filters, Depends(_filters)]


@router.get(f"{RUN}/taskInstances", VIEWER_OF_DAG, response_model=models.TaskInstancePage)
def get_task_instances(
    api: Api,
    dag_id: str,
    dag_run_id: str,
    filters: Chosen,
    page: CursorPage,
    patterns_: Annotated[params.Patterns, Depends(patterns(task_display_name="task_id", dag_id="dag_id", run_id="run_id"))],
    task_id: str | None = None,
    task_group_id: str | None = None,
) -> dict[str, Any]:
    """List task instances of a run; ~ stands for any DAG or any run."""
    of_run(api, filters, dag_id, dag_run_id)
    filters.equals("task_id", task_id).like_each(patterns_)
    if task_group_id is not None:
        if "~" in {dag_id, dag_run_id}:
            raise UsageError("task_group_id needs a DAG and a run in the path.")
        filters.one_of("task_id", of_group(api, dag_id, dag_run_id, task_group_id))
    return _page(api, filters, page)


@router.post(f"{RUN}/taskInstances/list", VIEWER_OF_DAG, only_reads=True, response_model=models.TaskInstancePage)
def get_task_instances_batch(api: Api, dag_id: str, dag_run_id: str, body: models.TaskInstancesFilter) -> dict[str, Any]:
    """List task instances by filters in the body. DAG and run in the path are ~."""
    filters = instances.INSTANCES.filters()
    of_run(api, filters, dag_id, dag_run_id)
    filters.one_of("dag_id", body.dag_ids).one_of("run_id", body.dag_run_ids).one_of("task_id", body.task_ids)
    filters.one_of("state", ours(body.state)).one_of("pool", body.pool).one_of("queue", body.queue)
    filters.in_ranges(params.bounds_in(body, "run_after", "logical_date", "start_date", "end_date", "duration"))
    if body.executor:
        filters.nothing()
    return _page(api, filters, params.page(body.page_limit, body.page_offset, [body.order_by] if body.order_by else None))


@router.get(TI, VIEWER_OF_DAG, response_model=models.TaskInstance)
def get_task_instance(api: Api, dag_id: str, dag_run_id: str, task_id: str) -> dict[str, Any]:
    """Show a task instance that is not mapped."""
    return shown(api, Place(dag_id, dag_run_id, task_id))


@router.get(f"{TI}/listMapped", VIEWER_OF_DAG, response_model=models.TaskInstancePage)
def get_mapped_task_instances(
    api: Api, dag_id: str, dag_run_id: str, task_id: str, filters: Chosen, page: params.Page
) -> dict[str, Any]:
    """List the instances of a mapped task."""
    of_run(api, filters, dag_id, dag_run_id)
    if not api.read(instances.exists, dag_id, dag_run_id, task_id):
        raise NotFoundError(f"Run {dag_run_id!r} of DAG {dag_id!r} has no task {task_id!r}.")
    filters.equals("task_id", task_id).between("map_index", {"gte": 0})
    return _page(api, filters, page)


@router.get(f"{TI}/tries", VIEWER_OF_DAG, response_model=models.TaskInstanceTries)
def get_task_instance_tries(api: Api, place: TaskPlace) -> dict[str, Any]:
    """List all tries of a task instance."""
    return _tries(api, place)


@router.get(f"{TI}/tries/{{task_try_number}}", VIEWER_OF_DAG, response_model=models.TaskInstanceTry)
def get_task_instance_try_details(api: Api, place: TaskPlace, task_try_number: Number) -> dict[str, Any]:
    """Show a try of a task instance."""
    return of_try(api, place, task_try_number)


@router.get(f"{TI}/dependencies", VIEWER_OF_DAG, response_model=models.Dependencies)
def get_task_instance_dependencies(api: Api, place: TaskPlace) -> dict[str, Any]:
    """Explain why a task instance is in its state and has not moved on."""
    return _dependencies(api, place)


@router.get(f"{TI}/links", VIEWER_OF_DAG, response_model=models.ExtraLinks, tags=["Extra Links"])
def get_extra_links(api: Api, place: TaskPlace, try_number: int | None = None) -> dict[str, Any]:
    """Always empty: Paceline has no extra links."""
    api.read(instances.instance, *place)
    return {"extra_links": {}, "total_entries": 0}


# The same for one instance of a mapped task. These come last: their path also fits those above. -----------------------------


@router.get(f"{TI}/{{map_index}}/tries", VIEWER_OF_DAG, response_model=models.TaskInstanceTries)
def get_mapped_task_instance_tries(api: Api, place: MappedPlace) -> dict[str, Any]:
    """List all tries of one instance of a mapped task."""
    return _tries(api, place)


@router.get(f"{TI}/{{map_index}}/tries/{{task_try_number}}", VIEWER_OF_DAG, response_model=models.TaskInstanceTry)
def get_mapped_task_instance_try_details(api: Api, place: MappedPlace, task_try_number: Number) -> dict[str, Any]:
    """Show a try of one instance of a mapped task."""
    return of_try(api, place, task_try_number)


@router.get(f"{TI}/{{map_index}}/dependencies", VIEWER_OF_DAG, response_model=models.Dependencies)
def get_task_instance_dependencies_by_map_index(api: Api, place: MappedPlace) -> dict[str, Any]:
    """Explain why one instance of a mapped task is in its state and has not moved on."""
    return _dependencies(api, place)


@router.get(f"{TI}/{{map_index}}", VIEWER_OF_DAG, response_model=models.TaskInstance)
def get_mapped_task_instance(api: Api, place: MappedPlace) -> dict[str, Any]:
    """Show one instance of a mapped task."""
    return shown(api, place)


def of_run(api: Call, filters: Filters, dag_id: str, run_id: str) -> None:
    """Only what belongs to this DAG and run, of which ~ stands for any that the account may see. NotFoundError."""
    if dag_id == "~":
        filters.visible(api.tags())
    else:
        filters.equals("dag_id", dag_id)
    if run_id != "~":
        filters.equals("run_id", run_id)
    if "~" not in {dag_id, run_id}:
        api.read(runs.run, dag_id, run_id)
    elif dag_id != "~":
        api.read(dags.dag, dag_id)


def ours(names: Iterable[str | None] | None) -> list[str | None] | None:
    """Our names of Airflow's states."""
    return None if names is None else [OURS.get(name, name) if name else None for name in names]


def _page(api: Call, filters: Filters, page: Page) -> dict[str, Any]:
    found = api.page("task_instances", instances.INSTANCES, filters, page)
    with_operators(api, found["task_instances"])
    return found


def with_operators(api: Call, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the operators to rows of task instances: they stand in the versions of the DAG, each of which is read once."""
    operators = {version_id: _operators(api, version_id) for version_id in {row["version_id"] for row in rows}}
    for row in rows:
        row["operator"] = row["operator_name"] = operators[row["version_id"]].get(row["task_id"])
    return rows


def _operators(api: Call, version_id: int) -> dict[str, str]:
    """The operators of a version by task ID; none if only another version of Paceline can read it."""
    try:
        return {task.task_id: task.operator for task in api.read(api.service.versions.dag, version_id).tasks}
    except UnreadableVersionError:
        return {}


def shown(api: Call, place: Place) -> dict[str, Any]:
    """A task instance as a response. NotFoundError."""
    row = with_operators(api, [api.read(instances.instance, *place)])[0]
    return row | {"rendered_fields": logs.rendered(api.settings, row)}


def _tries(api: Call, place: Place) -> dict[str, Any]:
    row = api.read(instances.instance, *place)
    rows = with_operators(api, api.read(instances.tries, row["id"]))
    return {"task_instances": rows, "total_entries": len(rows)}


def of_try(api: Call, place: Place, number: int) -> dict[str, Any]:
    """A try of a task instance. NotFoundError."""
    for row in reversed(_tries(api, place)["task_instances"]):
        if row["try_number"] == number:
            return dict(row)
    raise NotFoundError(f"Task {place.task_id!r} of run {place.run_id!r} has no try {number}.")


def _dependencies(api: Call, place: Place) -> dict[str, Any]:
    api.read(instances.instance, *place)
    answer = api.read(why.why, api.settings, *place[:3], map_index=place.map_index, reader=reader(api))
    return {"dependencies": [{"name": answer["state"] or "none", "reason": reason} for reason in answer["waiting_for"]]}


def reader(api: Call) -> Reader:
    """The account of a request, as the reader of explanations."""
    return Reader(api.tags(), api.service.versions)


def of_group(api: Call, dag_id: str, run_id: str, group_id: str) -> list[str]:
    """The tasks of a group and of the groups in it. NotFoundError."""
    dag = api.read(api.service.versions.dag, api.read(runs.run, dag_id, run_id)["version_id"])
    inner = {group_id}
    for group in dag.groups:  # outer groups first
        if group.get("parent") in inner:
            inner.add(group["group_id"])
    found = [task.task_id for task in dag.tasks if task.group in inner]
    if not found:
        raise NotFoundError(f"DAG {dag_id!r} has no task group {group_id!r} with tasks.")
    return found


log_routes = new_router(tags=["Task Instance"])

NDJSON = "application/x-ndjson"
#: Lines of one response.
MOST_LINES = 5000


@log_routes.get(f"{TI}/logs/{{try_number}}", VIEWER_OF_DAG, response_model=Log, responses={200: {"content": {NDJSON: {}}}})
def get_log(
    api: Api,
    place: TaskPlace,
    try_number: int,
    full_content: bool = False,
    token: str | None = None,
    accept: Annotated[str, Header()] = "*/*",
) -> StreamingResponse | dict[str, Any]:
    """The log of a try: as JSON in parts of 1 MiB, or whole with full_content or as lines of JSON (application/x-ndjson).

    As long as there is a continuation_token, the log may have more lines after this part.
    """
    file, ended = _file(api, place, try_number)
    if accept.startswith(NDJSON):
        return StreamingResponse(_stream(file), media_type=NDJSON)
    offset = logs.offset_of(token)
    if full_content:
        return StreamingResponse(_whole(file, offset, ended=ended), media_type="application/json")
    lines, offset = logs.part(file, offset, ended=ended)
    return {"content": [logs.structured(line) for line in lines], "continuation_token": _next(file, offset, ended=ended)}


@log_routes.get(f"{TI}/externalLogUrl/{{try_number}}", VIEWER_OF_DAG, response_model=ExternalLogUrl)
def get_external_log_url(api: Api, place: TaskPlace, try_number: int) -> dict[str, Any]:
    """Always 404: Paceline stores the logs itself."""
    raise NotFoundError("Paceline has no external logs: read the log with GET .../logs/{try_number}.")


@log_routes.get(f"{TI}/logs/{{try_number}}/lines", VIEWER_OF_DAG, response_model=LogLines, tags=["Paceline"])
def get_log_lines(
    api: Api,
    place: TaskPlace,
    try_number: int,
    line: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    offset: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000,
) -> dict[str, Any]:
    """Lines of a log from a line number on, or from the byte offset of an earlier response on; without both, the last lines."""
    file, is_final = _file(api, place, try_number)
    if line is not None:
        found = logs.lines(file, first=line, limit=limit)
    elif offset is not None:
        found = logs.after(file, offset, limit)
    else:
        found = logs.tail(file, limit)
    return found | {"is_final": is_final}


@log_routes.get(f"{TI}/callbackLog", VIEWER_OF_DAG, response_model=LogLines, tags=["Paceline"])
def get_callback_log(api: Api, place: TaskPlace, limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000) -> dict[str, Any]:
    """The last lines that the callbacks of a task instance printed, over all its tries."""
    api.read(instances.instance, *place)
    return logs.tail(logs.callbacks(api.settings, **place._asdict()), limit) | {"is_final": False}


@log_routes.get(f"{RUN}/callbackLog", VIEWER_OF_DAG, response_model=LogLines, tags=["Paceline"])
def get_run_callback_log(
    api: Api, dag_id: str, dag_run_id: str, limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000
) -> dict[str, Any]:
    """The last lines that the callbacks of the DAG printed for a run."""
    api.read(runs.run, dag_id, dag_run_id)
    return logs.tail(logs.callbacks(api.settings, dag_id=dag_id, run_id=dag_run_id), limit) | {"is_final": False}


@log_routes.get(f"{TI}/logs/{{try_number}}/search", VIEWER_OF_DAG, response_model=LogMatches, tags=["Paceline"])
def search_log(
    api: Api,
    place: TaskPlace,
    try_number: int,
    text: Annotated[str, Query(max_length=1000)] = "",
    level: Literal["warning", "error"] | None = None,
    match_case: bool = False,
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    line: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 500,
) -> dict[str, Any]:
    """Search the whole log of a try for a text. A search of a huge log ends after 1.5 seconds and can be continued.

    Without match_case, the case of the letters A to Z is ignored. With level, only lines of at least this level are found, also
    those of other programs than Paceline, such as Spark; the text can be left out then.
    """
    if not text and level is None:
        raise UsageError("Give a text or a level to search for.")
    file, _ = _file(api, place, try_number)
    least = None if level is None else Level[level.upper()]
    return logs.search(file, text, limit=limit, offset=offset, line=line, match_case=match_case, level=least)


def _file(api: Call, place: Place, try_number: int) -> tuple[Path, bool]:
    """The log of a try, and whether the try has ended."""
    return _file_of(api, api.read(instances.instance, *place), try_number)


def end_of_log(api: Call, ti: dict[str, Any], try_number: int, limit: int) -> dict[str, Any]:
    """The last lines of the log of a try. NotFoundError."""
    file, is_final = _file_of(api, ti, try_number)
    return logs.tail(file, limit) | {"is_final": is_final}


def _file_of(api: Call, ti: dict[str, Any], try_number: int) -> tuple[Path, bool]:
    ended = try_number < ti["try_number"] or (ti["state"] or "none") not in CAN_LOG
    return logs.path(api.settings, ti, try_number), ended


def _next(file: Path, offset: int, *, ended: bool) -> str | None:
    return None if ended and offset >= file.stat().st_size else logs.token(offset)


def _whole(file: Path, offset: int, *, ended: bool) -> Iterator[str]:
    """A log from an offset to its present end as JSON, of which one part at a time is in memory."""
    yield '{"content":['
    end, separator = file.stat().st_size, ""
    while offset < end:
        lines, offset = logs.part(file, offset, ended=ended)
        if not lines:
            break
        yield separator + ",".join(json.dumps(logs.structured(line)) for line in lines)
        separator = ","
    yield f'],"continuation_token":{json.dumps(_next(file, offset, ended=ended))}}}'


def _stream(file: Path) -> Iterator[str]:
    for lines in logs.parts(file):
        yield "".join(json.dumps(logs.structured(line)) + "\n" for line in lines)
