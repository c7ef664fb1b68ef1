"""The pages: the built files of web/, and the HTML page that loads them at every path that no route has."""

import hashlib
import html
import mimetypes
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

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
