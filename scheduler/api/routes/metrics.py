"""The metrics of the installation and of this web process, in the text format of Prometheus."""

from fastapi import APIRouter, Request, Response

from paceline.exceptions import NotFoundError
from scheduler.api.call import Api

router = APIRouter()


@router.get("/metrics", name="metrics", include_in_schema=False)
def metrics(request: Request, api: Api) -> Response:
    """All metrics that the database has, and those of this process, if metrics.prometheus is on."""
    page = request.app.state.metrics
    if page is None:
        raise NotFoundError("metrics.prometheus is off in this web process.")
    content_type, body = page()
    return Response(body, headers={"Content-Type": content_type})
