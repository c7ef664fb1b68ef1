"""A request without an answer gets 503 after a limit, and goes on; one that has begun to answer may take its time."""

import asyncio
from typing import Any

import pytest

from scheduler.api import asgi

SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


def late(scope: asgi.Scope) -> asgi.App:
    async def respond(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return respond


class Client:
    """One request: the parts of its body, and the status and bytes that it got."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.got: list[Any] = []

    async def send(self, message: Any) -> None:
        self.got.append(message.get("status", message.get("body")))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "ANSWER_S", 0.05)


def test_a_silent_answer_is_replaced_and_the_request_goes_on() -> None:
    async def check() -> None:
        client, silence, ended = Client(), asyncio.Event(), asyncio.Event()

        async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
            await silence.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            ended.set()

        await asgi.TimeLimit(app, late)(SCOPE, client.parts.get, client.send)
        assert client.got == [503, b""]
        silence.set()
        await asyncio.wait_for(ended.wait(), 10)
        assert client.got == [503, b""]

    asyncio.run(check())


def test_a_response_that_has_begun_is_not_cut() -> None:
    async def check() -> None:
        client = Client()

        async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b"a", b"b", b"c"):
                await asyncio.sleep(asgi.ANSWER_S)
                await send({"type": "http.response.body", "body": part})

        await asgi.TimeLimit(app, late)(SCOPE, client.parts.get, client.send)
        assert client.got == [200, b"a", b"b", b"c"]

    asyncio.run(check())


def test_an_error_of_the_request_is_raised() -> None:
    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(asgi.TimeLimit(app, late)(SCOPE, Client().parts.get, Client().send))


def test_a_client_that_goes_away_ends_its_request() -> None:
    async def check() -> None:
        started, canceled = asyncio.Event(), asyncio.Event()

        async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                canceled.set()
                raise

        request = asyncio.create_task(asgi.TimeLimit(app, late)(SCOPE, Client().parts.get, Client().send))  # type: ignore[arg-type]
        await started.wait()
        request.cancel()
        await asyncio.wait({request}, timeout=10)
        assert request.cancelled()
        await asyncio.wait_for(canceled.wait(), 10)

    asyncio.run(check())
