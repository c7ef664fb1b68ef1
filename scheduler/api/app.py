"""The web application: its routes, its middleware, and what all requests share."""

import contextlib
import functools
import hashlib
import html
import logging
import mimetypes
import threading
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from paceline.exceptions import PacelineError, UnreachableError
from scheduler.api import asgi, errors, routes
from scheduler.api.access import LOGIN
from scheduler.api.call import Service, new_router, operation_id, service_of
from scheduler.dagfiles import bundle_files
from scheduler.process import measures
from scheduler.process.health import Page
from scheduler.settings import Settings
from scheduler.store.accounts import audit
from scheduler.store.db.database import transact

log = logging.getLogger("paceline.web")

TITLE = "Paceline"
DESCRIPTION = "Paceline's REST API. Paths and fields are those of Airflow's stable API where Airflow has the same thing."


def create(settings: Settings, stopping: threading.Event | None = None) -> FastAPI:
    """The application of one web process."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # More threads than connections would only wait for one.
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.web.pool_size + 2
        yield
        app.state.service.close()
        measures.record_with(None)

    app = FastAPI(
        title=TITLE,
        description=DESCRIPTION,
        version=version("paceline"),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=operation_id,
        redirect_slashes=False,
    )
    app.state.service = Service.of(settings, stopping)
    app.state.metrics = _measured(app.state.service)
    errors.install(app)
    for router in (*routes.PUBLIC, *routes.OUTSIDE):
        app.include_router(router)
    api = new_router()

    @api.get("/openapi.json", LOGIN, include_in_schema=False)
    def openapi(request: Request) -> JSONResponse:
        return JSONResponse(request.app.openapi())

    for router in (*routes.ROUTERS, api):
        # In one list. A request would be compared with the routes of an included router once for each level.
        app.router.routes.extend(router.routes)
    if settings.tables.warehouse:
        # Not before: it needs pyiceberg.
        from scheduler.api import tables

        app.mount("/catalog", tables.create(settings, app.state.service.engine, app.state.service.logins))
    install(app)
    app.add_middleware(_Audited)
    app.add_middleware(asgi.TimeLimit, late=_late)
    app.add_middleware(
        asgi.BodyLimit,
        most_bytes=settings.web.max_request_bytes,
        upload_bytes=bundle_files.most_archive_bytes(settings.bundles),
        authenticate=_refusal,
    )
    app.add_middleware(asgi.EntityTags)
    app.add_middleware(asgi.Prefix, base_path=settings.web.base_path)
    return app


def _measured(service: Service) -> Page | None:
    """Let this process measure; the page /metrics if it is on."""
    config = service.settings.metrics
    if not config.prometheus and not config.statsd:
        return None
    from scheduler.telemetry import parts

    return parts.start_web(service.settings, service.engine)


class _Audited:
    """Completes the audit entry of a change with the status of its response."""

    def __init__(self, app: asgi.App) -> None:
        self._app = app

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        has_begun = False

        async def noted(message: Any) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun, status = True, message["status"]
                measures.count("paceline.web_requests", method=scope["method"], status=str(status))
                state = scope.get("state", {})
                entry, unrecorded = state.pop("audit", None), state.pop("audit_if_failed", None)
                # Before the response: a client that has it finds the complete entry.
                if entry is not None:
                    await _record(scope["app"].state.service, status, audit.end, entry, status)
                elif unrecorded is not None and status >= 400:
                    await _record(scope["app"].state.service, status, audit.add, status=status, **unrecorded)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            # Here, since Starlette's own handler is outside all middleware: its responses are not counted and have no headers.
            if scope["type"] != "http" or has_begun:
                raise
            await errors.unexpected(Request(scope), error)(scope, receive, noted)


def _refusal(scope: asgi.Scope) -> JSONResponse | None:
    """The response to a request with a large body and without a login; None if it has one."""
    request = Request(scope)
    try:
        service_of(request).logins.account(request)
    except PacelineError as error:
        return errors.response(error)
    except (DBAPIError, PoolTimeoutError):
        return errors.response(UnreachableError("PostgreSQL does not answer: try again."))
    return None


def _late(scope: asgi.Scope) -> JSONResponse:
    """The response to a request whose own does not come."""
    measures.count("paceline.web_requests", method=scope["method"], status="503")
    seconds = f"{asgi.ANSWER_S:.0f} s"
    return errors.response(UnreachableError(f"PostgreSQL or the provider of logins has not answered for {seconds}: try again."))


async def _record(service: Service, status: int, work: Callable[..., None], /, *args: Any, **kwargs: Any) -> None:
    try:
        await anyio.to_thread.run_sync(functools.partial(transact, service.engine, work, *args, **kwargs))
    except Exception:
        log.exception("The status %d of a request is not in the audit log", status)


FOLDER = Path(__file__).parent / "static"
#: Only files of this installation: no inline script or style, and no other address.
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
#: The names of assets contain the hash of their content.
FOREVER = "public, max-age=31536000, immutable"
ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
ASSETS = "/assets/"
#: Paths that belong to no page.
RESERVED = ("/api/", "/auth/", "/metrics", "/health")
NOT_BUILT = "The web UI is not built: run `make setup` in the checkout. The REST API is at /api/v2."


def install(app: FastAPI) -> None:
    """Serve the pages at paths that no route has. A route keeps its answer to a wrong method."""
    otherwise = app.router.default

    async def pages(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if not path or path.startswith(RESERVED) or scope["method"] not in {"GET", "HEAD"}:
            await otherwise(scope, receive, send)
            return
        request = Request(scope)
        response = _asset(request, path.removeprefix(ASSETS)) if path.startswith(ASSETS) else _page(request)
        await response(scope, receive, send)

    app.router.default = pages


def _asset(request: Request, name: str) -> Response:
    file = FOLDER / "assets" / name
    if "/" in name or "\0" in name or name in {"", ".", ".."} or not file.is_file():
        return PlainTextResponse("There is no such file.", 404)
    headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    accepted = {one.split(";")[0].strip() for one in request.headers.get("accept-encoding", "").split(",")}
    for encoding, suffix in ENCODINGS:
        packed = file.with_name(name + suffix)
        if encoding in accepted and packed.is_file():
            return FileResponse(packed, media_type=kind, headers=headers | {"Content-Encoding": encoding})
    return FileResponse(file, media_type=kind, headers=headers)


def _page(request: Request) -> Response:
    try:
        text = (FOLDER / "index.html").read_text(encoding="utf-8")
    except FileNotFoundError:
        return PlainTextResponse(NOT_BUILT, 503)
    base = html.escape(f"{request.scope.get('root_path', '')}/", quote=True)
    content = text.replace('<base href="/" />', f'<base href="{base}" />').encode()
    tag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="text/html; charset=utf-8", headers=headers)
