"""Logs of tries."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from scheduler.api import logs
from scheduler.api.call import Api
from scheduler.api.models.task_instances import ExternalLogUrl, Log
from scheduler.exceptions import NotFoundError
from scheduler.store.lists import instances

router = APIRouter(tags=["Task Instance"])

TI = "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}"
NDJSON = "application/x-ndjson"
MapIndex = Annotated[int, Query(ge=-1, le=2**31 - 1)]
TryNumber = Annotated[int, Query(ge=0, le=2**31 - 1)]


@router.get(f"{TI}/logs/{{try_number}}", response_model=Log, responses={200: {"content": {NDJSON: {}}}})
def get_log(
    api: Api,
    dag_id: str,
    dag_run_id: str,
    task_id: str,
    try_number: int,
    map_index: MapIndex = -1,
    full_content: bool = False,
    token: str | None = None,
    accept: Annotated[str, Header()] = "*/*",
) -> StreamingResponse | dict[str, Any]:
    """The log of a try: as JSON in parts of 1 MiB, or whole as lines of JSON (application/x-ndjson).

    As long as there is a continuation_token, the log may have more lines after this part.
    """
    ti = api.read(instances.instance, dag_id, dag_run_id, task_id, map_index=map_index)
    file = logs.path(api.settings, ti, try_number)
    if accept.startswith(NDJSON):
        return StreamingResponse(_stream(file), media_type=NDJSON)
    ended = try_number < ti["try_number"] or ti["state"] not in logs.GOING_ON
    lines, offset = logs.part(file, logs.offset_of(token), ended=ended)
    while full_content and lines:
        more, offset = logs.part(file, offset, ended=ended)
        if not more:
            break
        lines += more
    finished = ended and offset >= file.stat().st_size
    return {"content": [{"event": line} for line in lines], "continuation_token": None if finished else logs.token(offset)}


@router.get(f"{TI}/externalLogUrl/{{try_number}}", response_model=ExternalLogUrl)
def get_external_log_url(
    api: Api, dag_id: str, dag_run_id: str, task_id: str, try_number: int, map_index: MapIndex = -1
) -> dict[str, Any]:
    """Always 404: Paceline has its logs itself."""
    raise NotFoundError("Paceline has no external logs: read the log with GET .../logs/{try_number}.")


def _stream(file: Path) -> Iterator[str]:
    for line in logs.lines(file):
        yield json.dumps({"event": line}) + "\n"
