"""Errors as responses: `{"detail": ...}` with the status of the error."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from paceline.exceptions import (
    BackfillError,
    ConflictError,
    NotFoundError,
    PacelineError,
    StaleTryError,
    UnreachableError,
    UnreadableVersionError,
)
from scheduler.actions.actor import ForbiddenError, UnprocessableError
from scheduler.api.models.base import Detail
from scheduler.dagfiles.bundle_files import TooLargeError
from scheduler.store.db import database, sqlstates

log = logging.getLogger("paceline.web")

#: The meanings of the statuses that any route can return.
MEANINGS = {
    400: "The request is invalid.",
    401: "There is no valid login or token.",
    403: "The account may not do that.",
    404: "There is no such thing.",
    409: "The request conflicts with what is there.",
    503: "PostgreSQL does not answer, or all connections are in use.",
}
UNREADABLE = "The body cannot be read: it must be JSON in UTF-8, and not nested too deeply."
NOT_JSON = "The body must be JSON, and the request needs the header Content-Type: application/json."
#: Seconds after which a client may repeat a request that failed with 503.
RETRY_AFTER_S = 2


class UnauthenticatedError(PacelineError):
    """Log in, or send a token as `Authorization: Bearer`."""


class TooManyLoginsError(PacelineError):
    """Too many failed logins."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"Too many failed logins: try again in {wait_s:.0f} seconds.")
        self.wait_s = wait_s


class StaleError(PacelineError):
    """The thing has changed since the client read it."""


class UnsupportedError(PacelineError):
    """Paceline does not have this."""


#: The status of an error. Others are 400: the request is invalid.
STATUS: dict[type[PacelineError], int] = {
    UnauthenticatedError: 401,
    ForbiddenError: 403,
    NotFoundError: 404,
    ConflictError: 409,
    StaleTryError: 409,
    UnreadableVersionError: 409,
    StaleError: 412,
    TooLargeError: 413,
    BackfillError: 422,
    UnprocessableError: 422,
    TooManyLoginsError: 429,
    UnsupportedError: 501,
    UnreachableError: 503,
}


def status_of(error: PacelineError) -> int:
    """The HTTP status of an error, which is that of the nearest class."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 400)


def documented(meanings: Mapping[int, str] | None = None) -> dict[int | str, dict[str, Any]]:
    """The error responses of routes for the OpenAPI document; `meanings` are those of their own."""
    return {status: {"model": Detail, "description": text} for status, text in (MEANINGS | dict(meanings or {})).items()}


def install(app: FastAPI) -> None:
    """Answer each error of a route with its status and message."""
    app.add_exception_handler(PacelineError, _paceline)
    app.add_exception_handler(DBAPIError, _database)
    app.add_exception_handler(PoolTimeoutError, _busy)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _cut_off)


def response(error: PacelineError) -> JSONResponse:
    """The response to an error."""
    status = status_of(error)
    headers = {}
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, TooManyLoginsError):
        headers["Retry-After"] = str(int(error.wait_s) + 1)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"detail": str(error)}, status, headers)


def _paceline(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PacelineError)
    return response(error)


def _database(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DBAPIError)
    if isinstance(error, DataError):
        return JSONResponse({"detail": f"PostgreSQL cannot use a value: {sqlstates.first_line(error)}."}, 400)
    if sqlstates.is_passing(error.orig) or getattr(error.orig, "pgcode", None) == sqlstates.NO_RIGHT:
        return response(database.translate(error))
    return unexpected(request, error)


def _busy(request: Request, error: Exception) -> JSONResponse:
    return response(UnreachableError("All database connections of this web process are in use: try again."))


def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Without the values: they may be secret, and JSON cannot hold each of them."""
    assert isinstance(error, RequestValidationError)
    detail: list[dict[str, Any]] = [
        {"loc": list(one["loc"]), "msg": one["msg"].removeprefix("Value error, "), "type": one["type"]} for one in error.errors()
    ]
    if "json" not in request.headers.get("content-type", ""):
        for one in detail:
            if one["loc"] == ["body"] and one["type"] != "missing":
                one["msg"] = NOT_JSON
    return JSONResponse({"detail": detail}, 422)


def _http(request: Request, error: Exception) -> JSONResponse:
    """An error of FastAPI, whose text does not explain a body that it cannot read."""
    assert isinstance(error, HTTPException)
    detail = UNREADABLE if error.detail == "There was an error parsing the body" else error.detail
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


def _cut_off(request: Request, error: Exception) -> JSONResponse:
    """For the audit log: nobody reads the response."""
    return JSONResponse({"detail": "The connection ended before the body did."}, 400)


def unexpected(request: Request, error: Exception) -> JSONResponse:
    """The response to an error that no handler knows."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse({"detail": "Unexpected error: the log of the web process has the details."}, 500)
