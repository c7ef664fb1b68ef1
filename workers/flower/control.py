"""Refuses Flower's Revoke and Terminate. Flower does not wait for the replies of the workers, so it must refuse them itself."""

from typing import Any, NoReturn

from flower.api.control import TaskRevoke
from tornado import web

from workers.celery_worker.remote_control import refusal


def refuse_revoke() -> None:
    """Make Flower answer both with the error message of the workers."""
    TaskRevoke.post = web.authenticated(_refuse)


async def _refuse(_handler: Any, _task_id: str) -> NoReturn:
    raise web.HTTPError(403, refusal("revoke").replace("%", "%%"))
