"""The ASGI middleware of every request: path prefix, entity tags and security headers."""

import gzip
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Bytes of a response.
WORTH_COMPRESSING = 2000
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
#: Of all responses but pages.
POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class Prefix:
    """Serves the application under a path prefix, whether the reverse proxy removes the prefix or not."""

    def __init__(self, app: App, base_path: str) -> None:
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._base_path:
            scope = dict(scope)
            if not scope["path"].startswith(f"{self._base_path}/"):
                scope["path"] = self._base_path + scope["path"]
                scope["raw_path"] = self._base_path.encode() + scope.get("raw_path", b"")
            scope["root_path"] = self._base_path
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses a body with too many bytes as the other errors are: Starlette's own limit answers in plain text."""

    def __init__(self, app: App, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0
        announced = dict(scope["headers"]).get(b"content-length", b"0") if scope["type"] == "http" else b"0"

        async def limited() -> Any:
            nonlocal read
            message = {} if announced.isdigit() and int(announced) > self._most_bytes else await receive()
            read += len(message.get("body", b""))
            if not message or read > self._most_bytes:
                limit = f"web.max_request_bytes allows {self._most_bytes:,}"
                raise HTTPException(413, f"The body of the request has too many bytes: {limit}.")
            return message

        await self._app(scope, limited, send)


class EntityTags:
    """Gives each JSON response of a GET an ETag, answers 304 to a client that has it already, and compresses long ones."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]) if scope["method"] == "GET" else {}
        known = sent.get(b"if-none-match", b"")
        start: Any = None

        async def tagged(message: Any) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                own = message.get("headers", [])
                message["headers"] = [*own, *HEADERS, *([] if any(name == POLICY[0] for name, _ in own) else [POLICY])]
                if scope["method"] == "GET" and message["status"] == 200 and _is_json(message["headers"]):
                    start = message
                    return
            elif start is not None:
                begun, start = start, None
                if not message.get("more_body"):
                    tag = b'"' + hashlib.blake2b(message.get("body", b""), digest_size=12).hexdigest().encode() + b'"'
                    begun["headers"] += [(b"etag", tag), (b"cache-control", b"private, no-cache")]
                    if tag in [one.strip().removeprefix(b"W/") for one in known.split(b",")]:
                        begun["status"] = 304
                        begun["headers"] = [one for one in begun["headers"] if one[0] not in {b"content-length", b"content-type"}]
                        message = message | {"body": b""}
                    elif b"gzip" in sent.get(b"accept-encoding", b"") and len(message.get("body", b"")) >= WORTH_COMPRESSING:
                        message = message | {"body": gzip.compress(message["body"], 3, mtime=0)}
                        begun["headers"] = [one for one in begun["headers"] if one[0] != b"content-length"]
                        begun["headers"] += [
                            (b"content-encoding", b"gzip"),
                            (b"content-length", str(len(message["body"])).encode()),
                            (b"vary", b"accept-encoding"),
                        ]
                await send(begun)
            await send(message)

        await self._app(scope, receive, tagged)


def _is_json(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/json") for name, value in headers)
