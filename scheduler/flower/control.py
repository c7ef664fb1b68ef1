"""What Flower says to its Revoke and Terminate: it does not wait for the workers' answers, so the refusal is given here."""

from typing import Any, NoReturn

from flower.api.control import TaskRevoke
from tornado import web

from workers.remote_control import refusal


def refuse_revoke() -> None:
    """From now on Flower answers both with the sentence that a worker answers."""
    TaskRevoke.post = web.authenticated(_refuse)


async def _refuse(_handler: Any, _task_id: str) -> NoReturn:
    raise web.HTTPError(403, refusal("revoke").replace("%", "%%"))
