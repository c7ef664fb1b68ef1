"""The ASGI middleware of every request: path prefix, limits of bodies and of time, entity tags and security headers."""

import asyncio
import gzip
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
from starlette.exceptions import HTTPException

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Bytes of a body that is read before the account is known; lists and objects of a body, each of which takes up to 100 bytes.
SMALL_BODY, MOST_LISTS = 64 << 10, 250_000
#: Seconds for the next part of a body, and for all of it.
PART_S, BODY_S = 20.0, 120.0
#: The upload of a bundle, whose archive is no JSON, and the seconds for it.
UPLOAD, UPLOAD_S = re.compile(r"/api/v2/bundles/[^/]+/versions"), 600.0
#: Seconds for the first byte of a response, from the last byte of the request.
ANSWER_S = 60.0
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
    """Refuses a body with too many bytes, lists or objects, or one that arrives too slowly, as the other errors are: Starlette's
    own limit answers in plain text. An upload may have `upload_bytes`.

    `authenticate` is called in a thread before more than SMALL_BODY bytes are read, and returns the refusal if there is one.
    """

    def __init__(self, app: App, most_bytes: int, upload_bytes: int, authenticate: Callable[[Scope], Any]) -> None:
        self._app = app
        self._most_bytes, self._upload_bytes = most_bytes, upload_bytes
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = lists = 0
        is_whole = False
        began = time.monotonic()
        is_upload = self._is_upload(scope)
        most_bytes, most_s = (self._upload_bytes, UPLOAD_S) if is_upload else (self._most_bytes, BODY_S)
        announced = dict(scope["headers"]).get(b"content-length", b"0") if scope["type"] == "http" else b"0"

        async def limited() -> Any:
            nonlocal read, lists, is_whole
            if is_whole:
                return await receive()  # it waits for the end of the connection
            message = {} if announced.isdigit() and int(announced) > most_bytes else await in_time()
            part = message.get("body", b"")
            is_whole = not message.get("more_body")
            read += len(part)
            lists += 0 if is_upload else part.count(b"[") + part.count(b"{")
            if not message or read > most_bytes:
                limit = f"{'bundles.max_bytes' if is_upload else 'web.max_request_bytes'} allows {most_bytes:,}"
                raise HTTPException(413, f"The body of the request has too many bytes: {limit}.")
            if lists > MOST_LISTS:
                raise HTTPException(413, f"The body of the request has more than {MOST_LISTS:,} lists and objects.")
            return message

        async def in_time() -> Any:
            try:
                async with asyncio.timeout(min(PART_S, max(0.0, began + most_s - time.monotonic()))):
                    return await receive()
            except TimeoutError:
                late = f"each part within {PART_S:.0f} s and the whole within {most_s:.0f} s"
                raise HTTPException(408, f"The body of the request arrives too slowly: send {late}.") from None

        if scope["type"] == "http" and self._is_large(scope, announced):
            refusal = await anyio.to_thread.run_sync(self._authenticate, scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, limited, send)

    def _is_upload(self, scope: Scope) -> bool:
        """Whether the body is the archive of a bundle."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return False
        return UPLOAD.fullmatch(scope["path"].removeprefix(scope.get("root_path", ""))) is not None

    def _is_large(self, scope: Scope, announced: bytes) -> bool:
        """Whether the body may have more than SMALL_BODY bytes: one in chunks announces no number."""
        if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            return True
        return not announced.isdigit() or int(announced) > SMALL_BODY


class TimeLimit:
    """Gives a request that has no answer after ANSWER_S the response of `late`: the database or the provider of logins is silent.

    The request goes on in its thread: a change that it made after all is audited with its own status.
    """

    def __init__(self, app: App, late: Callable[[Scope], App]) -> None:
        self._app = app
        self._late = late
        #: The event loop keeps no reference to them.
        self._left: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        since = time.monotonic()
        has_begun = is_left = False

        async def received() -> Any:
            nonlocal since
            message = await receive()
            since = time.monotonic()
            return message

        async def sent(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            if not is_left:
                await send(message)

        async def run() -> None:
            await self._app(scope, received, sent)

        answer = asyncio.create_task(run())
        try:
            while not has_begun and not answer.done() and (remaining_s := since + ANSWER_S - time.monotonic()) > 0:
                await asyncio.wait({answer}, timeout=remaining_s)
            if has_begun or answer.done():
                await answer
                return
        except asyncio.CancelledError:
            answer.cancel()
            raise
        is_left = True
        self._left.add(answer)
        answer.add_done_callback(self._left.discard)
        await self._late(scope)(scope, receive, send)


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
                    tag = _tag(message.get("body", b""))
                    begun["headers"] += [(b"etag", tag), (b"cache-control", b"private, no-cache")]
                    if tag in _tags(known):
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


def _tag(body: bytes) -> bytes:
    """The ETag of a response."""
    return b'"' + hashlib.blake2b(body, digest_size=12).hexdigest().encode() + b'"'


def _tags(header: bytes) -> list[bytes]:
    return [one.strip().removeprefix(b"W/") for one in header.split(b",")]


def _is_json(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-type" and value.startswith(b"application/json") for name, value in headers)
