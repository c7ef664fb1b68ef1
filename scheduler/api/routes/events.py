"""The event stream of pages."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from scheduler.api.access import VIEWER_OF_ANY
from scheduler.api.call import Api, new_router
from scheduler.api.stream import Scope, Session
from scheduler.store.accounts import logins

router = new_router(tags=["Paceline"])

TYPE = "text/event-stream"
#: Without these, nginx would collect events, and a cache could keep them.
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


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
