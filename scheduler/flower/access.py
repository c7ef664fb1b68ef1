"""Access control of Flower: the login of a local stack, and the allowed host names."""

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

USER = "paceline"
#: Flower's own settings of access control. If one is set, Paceline adds no login.
CHOSEN = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH", "FLOWER_CONF")


def login(home: Path, environ: Mapping[str, str]) -> str | None:
    """Return user:password of this home's Flower, generated at its first start. None if the environment configures access."""
    if any(environ.get(name) for name in CHOSEN):
        return None
    path = home / "flower.password"
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{secrets.token_urlsafe(16)}\n")
    return f"{USER}:{path.read_text(encoding='utf-8').strip()}"


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
