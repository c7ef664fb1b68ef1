"""The routes of Iceberg's REST protocol. Paths and bodies are those of its OpenAPI description."""

import dataclasses
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pyiceberg.view.metadata import ViewMetadata

from scheduler.catalog import commits, errors, files
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import CatalogError, NoSuchTableError, UnauthorizedError
from scheduler.catalog.tables import Tables
from scheduler.catalog.views import Views
from scheduler.store.tables import publish

JSON = "application/json"
#: Between the parts of a namespace in a path.
SEPARATOR = "\x1f"
ONE = "/v1/namespaces/{namespace}"
TABLE, VIEW = f"{ONE}/tables/{{table}}", f"{ONE}/views/{{view}}"
FOLLOW, BATCH = "/v1/follow", "/v1/batches/{query}/{number}"
#: What clients may call. They find out by this list what this catalog does not have.
ENDPOINTS = [
    "GET /v1/{prefix}/namespaces", "POST /v1/{prefix}/namespaces", "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}", "DELETE /v1/{prefix}/namespaces/{namespace}",
    "POST /v1/{prefix}/namespaces/{namespace}/properties", "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "POST /v1/{prefix}/namespaces/{namespace}/tables", "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}", "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/tables/{table}", "POST /v1/{prefix}/namespaces/{namespace}/register",
    "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics", "POST /v1/{prefix}/tables/rename",
    "POST /v1/{prefix}/transactions/commit", "GET /v1/{prefix}/namespaces/{namespace}/views",
    "POST /v1/{prefix}/namespaces/{namespace}/views", "GET /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/views/{view}", "POST /v1/{prefix}/namespaces/{namespace}/views/{view}",
    "DELETE /v1/{prefix}/namespaces/{namespace}/views/{view}", "POST /v1/{prefix}/views/rename",
]  # fmt: skip
#: The token of a try never changes, so a client must not try to renew it. What a scan or a commit cost is not kept, so Iceberg for
#: Java need not send it: a request for each table that a query reads.
OVERRIDES = {"token-refresh-enabled": "false", "rest-metrics-reporting-enabled": "false"}

#: How long a client may repeat a request that has an idempotency key: as a duration of ISO 8601, at most that of
#: retention.housekeeping_days.
LIFETIME = "PT24H"

#: Who sends a request. UnauthorizedError.
Authenticate = Callable[[Request], Caller]


def bearer(request: Request) -> str:
    """The token of a request. UnauthorizedError without one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise UnauthorizedError("The request has no token: send it as `Authorization: Bearer`.")
    return token


def of_tries(tables: Tables) -> Authenticate:
    """Accept the tokens of running tries only."""

    def authenticate(request: Request) -> Caller:
        caller = tables.caller(bearer(request))
        if caller is None:
            raise UnauthorizedError("This token is not that of a running try: the try has ended, or another one has begun.")
        return caller

    return authenticate


def create(tables: Tables, authenticate: Authenticate) -> FastAPI:
    """The catalog as an application, to serve alone or below a path."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    errors.install(app)

    async def sender(request: Request, caller: Annotated[Caller, Depends(authenticate)]) -> Caller:
        """Who sends a request, with its digest if it has an idempotency key."""
        key = request.headers.get("idempotency-key")
        if key is None or request.method in ("GET", "HEAD"):
            return caller
        body = (await request.body()).decode("utf-8", "replace")
        digest = publish.request_digest(caller.name, key, request.method, request.url.path, request.url.query, body)
        return dataclasses.replace(caller, request=digest)

    asks, content = Depends(sender), Body()
    _namespaces(app, tables, asks, content)
    _tables(app, tables, asks, content)
    _views(app, Views(tables), asks, content)

    @app.get("/v1/config")
    def config(caller: Caller = asks) -> Any:
        return {"defaults": {}, "overrides": OVERRIDES, "endpoints": ENDPOINTS, "idempotency-key-lifetime": LIFETIME}

    @app.post("/v1/tables/rename")
    def rename(caller: Caller = asks, body: dict[str, Any] = content) -> Response:
        (source, target) = commits.names([{"identifier": body.get("source")}, {"identifier": body.get("destination")}])
        tables.rename(caller, source, target)
        return Response(status_code=204)

    @app.post("/v1/transactions/commit")
    def commit(caller: Caller = asks, body: dict[str, Any] = content) -> Response:
        changes = body.get("table-changes") or []
        tables.commit(caller, dict(zip(commits.names(changes), changes, strict=True)))
        return Response(status_code=204)

    # Not in Iceberg's protocol: for run_until_stopped and paceline.tables.published.
    @app.post(FOLLOW)
    def follow(caller: Caller = asks) -> Response:
        tables.follow(caller)
        return Response(status_code=204)

    @app.put(BATCH)
    def begin_batch(query: str, number: int, caller: Caller = asks) -> Any:
        return {"is_published": not tables.begin_batch(caller, query, number)}

    @app.post(BATCH)
    def publish_batch(query: str, number: int, caller: Caller = asks) -> Any:
        tables.publish_batch(caller, query, number)
        return {"is_published": True}

    return app


def _namespaces(app: FastAPI, tables: Tables, asks: Any, content: Any) -> None:
    @app.get("/v1/namespaces")
    def list_namespaces(caller: Caller = asks, parent: str | None = None) -> Any:
        found = tables.namespaces.listed(caller, _dotted(parent) if parent else None)
        return {"namespaces": [name.split(".") for name in found]}

    @app.post("/v1/namespaces")
    def create_namespace(caller: Caller = asks, body: dict[str, Any] = content) -> Any:
        parts, properties = body.get("namespace"), body.get("properties") or {}
        if not isinstance(parts, list) or not parts or not isinstance(properties, dict):
            raise CatalogError("A namespace needs its name as a list, and its properties as an object.")
        files.check_name("namespace", *(str(part) for part in parts))
        properties = {str(key): str(value) for key, value in properties.items()}
        tables.namespaces.create(caller, ".".join(parts), properties)
        return {"namespace": parts, "properties": properties}

    @app.get(ONE)
    def load_namespace(namespace: str, caller: Caller = asks) -> Any:
        name = _dotted(namespace)
        return {"namespace": name.split("."), "properties": tables.namespaces.properties(caller, name)}

    @app.head(ONE)
    def has_namespace(namespace: str, caller: Caller = asks) -> Response:
        tables.namespaces.properties(caller, _dotted(namespace))
        return Response(status_code=204)

    @app.delete(ONE)
    def drop_namespace(namespace: str, caller: Caller = asks) -> Response:
        tables.namespaces.drop(caller, _dotted(namespace))
        return Response(status_code=204)

    @app.post(f"{ONE}/properties")
    def update_properties(namespace: str, caller: Caller = asks, body: dict[str, Any] = content) -> Any:
        updates, removals = body.get("updates") or {}, body.get("removals") or []
        updated, removed, missing = tables.namespaces.update(
            caller, _dotted(namespace), {str(key): str(value) for key, value in updates.items()}, [str(key) for key in removals]
        )
        return {"updated": updated, "removed": removed, "missing": missing}


def _tables(app: FastAPI, tables: Tables, asks: Any, content: Any) -> None:
    @app.get(f"{ONE}/tables")
    def list_tables(namespace: str, caller: Caller = asks) -> Any:
        name = _dotted(namespace)
        return {"identifiers": [{"namespace": name.split("."), "name": table} for table in tables.names(caller, name)]}

    @app.post(f"{ONE}/tables")
    def create_table(namespace: str, caller: Caller = asks, body: dict[str, Any] = content) -> Response:
        table, location = tables.create(caller, _dotted(namespace), body)
        answer = {"metadata": json.loads(table.model_dump_json()), "config": {}}
        return JSONResponse(answer if location is None else {"metadata-location": location, **answer})

    @app.post(f"{ONE}/register")
    def register(namespace: str, caller: Caller = asks, body: dict[str, Any] = content) -> Response:
        name, location = body.get("name"), body.get("metadata-location")
        if not isinstance(name, str) or not isinstance(location, str):
            raise CatalogError("To register a table, send its name and its metadata-location.")
        found = tables.register(caller, _dotted(namespace), name, location, overwrite=body.get("overwrite") is True)
        return Response(files.body(found), media_type=JSON)

    @app.get(TABLE)
    def load(namespace: str, table: str, caller: Caller = asks) -> Response:
        return Response(files.body(tables.load(caller, _dotted(namespace), table)), media_type=JSON)

    @app.head(TABLE)
    def has(namespace: str, table: str, caller: Caller = asks) -> Response:
        if table not in tables.names(caller, _dotted(namespace)):
            raise NoSuchTableError(f"Table does not exist: {_dotted(namespace)}.{table}")
        return Response(status_code=204)

    @app.post(TABLE)
    def commit(namespace: str, table: str, caller: Caller = asks, body: dict[str, Any] = content) -> Response:
        key = (_dotted(namespace), table)
        named = body.get("identifier")
        if named is not None and commits.names([{"identifier": named}]) != [key]:
            raise CatalogError(f"The commit is for another table than its path says: {'.'.join(key)}.")
        return Response(files.body(tables.commit(caller, {key: body})[key]), media_type=JSON)

    @app.delete(TABLE)
    def drop(namespace: str, table: str, caller: Caller = asks) -> Response:
        tables.drop(caller, _dotted(namespace), table)
        return Response(status_code=204)

    @app.post(f"{TABLE}/metrics")
    def metrics(namespace: str, table: str, caller: Caller = asks) -> Response:
        """Engines report what a scan or a commit cost. Nothing is kept."""
        return Response(status_code=204)


def _views(app: FastAPI, views: Views, asks: Any, content: Any) -> None:
    @app.get(f"{ONE}/views")
    def list_views(namespace: str, caller: Caller = asks) -> Any:
        name = _dotted(namespace)
        return {"identifiers": [{"namespace": name.split("."), "name": view} for view in views.names(caller, name)]}

    @app.post(f"{ONE}/views")
    def create_view(namespace: str, caller: Caller = asks, body: dict[str, Any] = content) -> Any:
        return _view(*views.create(caller, _dotted(namespace), body))

    @app.get(VIEW)
    def load_view(namespace: str, view: str, caller: Caller = asks) -> Any:
        return _view(*views.load(caller, _dotted(namespace), view))

    @app.head(VIEW)
    def has_view(namespace: str, view: str, caller: Caller = asks) -> Response:
        views.load(caller, _dotted(namespace), view)
        return Response(status_code=204)

    @app.post(VIEW)
    def replace_view(namespace: str, view: str, caller: Caller = asks, body: dict[str, Any] = content) -> Any:
        return _view(*views.replace(caller, _dotted(namespace), view, body))

    @app.delete(VIEW)
    def drop_view(namespace: str, view: str, caller: Caller = asks) -> Response:
        views.drop(caller, _dotted(namespace), view)
        return Response(status_code=204)

    @app.post("/v1/views/rename")
    def rename_view(caller: Caller = asks, body: dict[str, Any] = content) -> Response:
        (source, target) = commits.names([{"identifier": body.get("source")}, {"identifier": body.get("destination")}])
        views.rename(caller, source, target)
        return Response(status_code=204)


def _view(view: ViewMetadata, location: str) -> dict[str, Any]:
    return {"metadata-location": location, "metadata": json.loads(view.model_dump_json(exclude_none=True)), "config": {}}


def _dotted(namespace: str) -> str:
    return ".".join(namespace.split(SEPARATOR))
