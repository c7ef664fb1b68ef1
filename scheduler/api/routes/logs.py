"""Logs of tries."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Header, Query
from fastapi.responses import StreamingResponse

from paceline.exceptions import NotFoundError, UsageError
from paceline.states import CAN_LOG
from scheduler.actions.tasks import Place
from scheduler.api import log_lines, logs
from scheduler.api.access import RUN, TI, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.log_lines import Level
from scheduler.api.models.pictures import LogLines, LogMatches
from scheduler.api.models.task_instances import ExternalLogUrl, Log
from scheduler.api.params import LARGEST, TaskPlace
from scheduler.store.read import instances, runs

router = new_router(tags=["Task Instance"])

NDJSON = "application/x-ndjson"
#: Lines of one response.
MOST_LINES = 5000


@router.get(f"{TI}/logs/{{try_number}}", VIEWER_OF_DAG, response_model=Log, responses={200: {"content": {NDJSON: {}}}})
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


@router.get(f"{TI}/externalLogUrl/{{try_number}}", VIEWER_OF_DAG, response_model=ExternalLogUrl)
def get_external_log_url(api: Api, place: TaskPlace, try_number: int) -> dict[str, Any]:
    """Always 404: Paceline stores the logs itself."""
    raise NotFoundError("Paceline has no external logs: read the log with GET .../logs/{try_number}.")


@router.get(f"{TI}/logs/{{try_number}}/lines", VIEWER_OF_DAG, response_model=LogLines, tags=["Paceline"])
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
        found = log_lines.lines(file, first=line, limit=limit)
    elif offset is not None:
        found = log_lines.after(file, offset, limit)
    else:
        found = log_lines.tail(file, limit)
    return found | {"is_final": is_final}


@router.get(f"{TI}/callbackLog", VIEWER_OF_DAG, response_model=LogLines, tags=["Paceline"])
def get_callback_log(api: Api, place: TaskPlace, limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000) -> dict[str, Any]:
    """The last lines that the callbacks of a task instance printed, over all its tries."""
    api.read(instances.instance, *place)
    return log_lines.tail(logs.callbacks(api.settings, **place._asdict()), limit) | {"is_final": False}


@router.get(f"{RUN}/callbackLog", VIEWER_OF_DAG, response_model=LogLines, tags=["Paceline"])
def get_run_callback_log(
    api: Api, dag_id: str, dag_run_id: str, limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 1000
) -> dict[str, Any]:
    """The last lines that the callbacks of the DAG printed for a run."""
    api.read(runs.run, dag_id, dag_run_id)
    return log_lines.tail(logs.callbacks(api.settings, dag_id=dag_id, run_id=dag_run_id), limit) | {"is_final": False}


@router.get(f"{TI}/logs/{{try_number}}/search", VIEWER_OF_DAG, response_model=LogMatches, tags=["Paceline"])
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
    return log_lines.search(file, text, limit=limit, offset=offset, line=line, match_case=match_case, level=least)


def _file(api: Call, place: Place, try_number: int) -> tuple[Path, bool]:
    """The log of a try, and whether the try has ended."""
    return _file_of(api, api.read(instances.instance, *place), try_number)


def end_of_log(api: Call, ti: dict[str, Any], try_number: int, limit: int) -> dict[str, Any]:
    """The last lines of the log of a try. NotFoundError."""
    file, is_final = _file_of(api, ti, try_number)
    return log_lines.tail(file, limit) | {"is_final": is_final}


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
