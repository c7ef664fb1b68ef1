"""A reverse proxy that serves a web process under /paceline, as an organization puts it beside other sites."""

import contextlib
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from support.waiting import eventually

from scheduler.embedded import stack

PREFIX = "/paceline"
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
#: They are about one connection, so a proxy does not pass them on.
OF_CONNECTION = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"}


@contextlib.contextmanager
def below_a_prefix(environment: dict[str, str]) -> Iterator[str]:
    """A web process on the installation of `environment`, behind the proxy: the address of the proxy with the prefix."""
    port = stack.free_port("127.0.0.1", 0)
    own = {"PACELINE_WEB_PORT": str(port), "PACELINE_WEB_BASE_PATH": PREFIX, "PACELINE_WEB_PROXIES": "127.0.0.1"}
    with subprocess.Popen([*stack.PACELINE, "web"], env=environment | own) as process:
        try:
            with _proxy(f"http://127.0.0.1:{port}") as address:
                eventually(lambda: _answers(f"{address}/alive"), timeout=60)
                yield address
        finally:
            process.terminate()


@contextlib.contextmanager
def _proxy(target: str) -> Iterator[str]:
    client = httpx.AsyncClient(base_url=target, timeout=None)

    async def forward(request: Request) -> Response:
        path = request.scope["raw_path"].removeprefix(PREFIX.encode())
        url = httpx.URL(target).copy_with(raw_path=path + (b"?" + request.scope["query_string"] if request.url.query else b""))
        headers = [*request.headers.raw, (b"x-forwarded-for", b"127.0.0.1"), (b"x-forwarded-proto", b"http")]
        answer = await client.send(
            client.build_request(request.method, url, headers=headers, content=await request.body()), stream=True
        )
        response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        response.raw_headers = [one for one in answer.headers.raw if one[0].lower() not in OF_CONNECTION]
        return response

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = Starlette(routes=[Route(PREFIX + "/{path:path}", forward, methods=METHODS)], lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started, timeout=30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}{PREFIX}"
    finally:
        server.should_exit = True
        thread.join(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False
