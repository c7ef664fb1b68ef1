"""Access control of Flower: the allowed host names, and the refusal of Revoke and Terminate."""

import ipaddress
from collections.abc import Collection
from typing import Any, NoReturn


def is_allowed(host: str, names: Collection[str]) -> bool:
    """Whether requests with this host name are allowed.

    This prevents DNS rebinding: a web page whose own name resolves to our address sends that name, never an address.
    """
    if "*" in names:
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower().rstrip(".") in {"localhost", *names}
    return True


def guard(names: Collection[str]) -> None:
    """Make `celery flower` refuse requests for hosts that are not allowed."""
    from flower import command
    from tornado.httputil import HTTPServerRequest
    from tornado.web import RequestHandler

    class Refusal(RequestHandler):
        def prepare(self) -> None:
            self.set_status(421)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish("Flower does not answer under this name: use its IP address, or add the name to flower.allowed_hosts.\n")

    class Guarded(command.Flower):  # type: ignore[misc]
        def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
            if is_allowed(request.host_name, names):
                return super().find_handler(request, **kwargs)
            return self.get_handler_delegate(request, Refusal)

    command.Flower = Guarded


def refuse_revoke() -> None:
    """Make Flower answer Revoke and Terminate with the error message of the workers, for whose replies it does not wait."""
    from flower.api.control import TaskRevoke
    from tornado import web

    from workers.celery_worker.remote_control import refusal

    async def refuse(_handler: Any, _task_id: str) -> NoReturn:
        raise web.HTTPError(403, refusal("revoke").replace("%", "%%"))

    TaskRevoke.post = web.authenticated(refuse)
