"""What all pages use: the stream of events, and the search from a part of a name to the things that have it."""

from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from scheduler.api import access
from scheduler.api.access import VIEWER_OF_ANY
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import jump as models
from scheduler.api.stream import Scope, Session
from scheduler.settings.model import keys
from scheduler.store.accounts import logins
from scheduler.store.dags import assets as asset_store
from scheduler.store.read import assets, dags, jump

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
