"""Errors of the catalog as Iceberg's clients expect them: JSON with a message, a type and the status.

A client takes 500, 502 and 504 after a commit as "nobody knows whether it was stored", and leaves its files. So everything that was
certainly not stored has another status. What says that a name is taken, or that nothing has it, has Iceberg's words: engines show
them, and some programs compare them.
"""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from paceline.exceptions import PacelineError, StaleTryError

log = logging.getLogger("paceline.tables")


class CatalogError(PacelineError):
    """A request that the catalog refuses: the status, and the name of the error in Iceberg."""

    status, kind = 400, "BadRequestException"


class UnauthorizedError(CatalogError):
    """The token is unknown, or its try has ended."""

    status, kind = 401, "NotAuthorizedException"


class ForbiddenError(CatalogError):
    """The caller may not do that."""

    status, kind = 403, "ForbiddenException"


class NoSuchTableError(CatalogError):
    """There is no such table."""

    status, kind = 404, "NoSuchTableException"


class NoSuchViewError(CatalogError):
    """There is no such view."""

    status, kind = 404, "NoSuchViewException"


class NoSuchNamespaceError(CatalogError):
    """There is no such namespace."""

    status, kind = 404, "NoSuchNamespaceException"


class UnsupportedError(CatalogError):
    """Something of Iceberg that this catalog does not have."""

    status, kind = 406, "UnsupportedOperationException"


class ExistsError(CatalogError):
    """The name is taken."""

    status, kind = 409, "AlreadyExistsException"


class NotEmptyError(CatalogError):
    """The namespace has tables."""

    status, kind = 409, "NamespaceNotEmptyException"


class CommitFailedError(CatalogError):
    """The table has changed since the client read it: it reads it again, and repeats its commit."""

    status, kind = 409, "CommitFailedException"


def response(status: int, kind: str, message: str) -> JSONResponse:
    """An error as a response."""
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def install(app: FastAPI) -> None:
    """Turn every error of a request into such a response."""

    def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, CatalogError)
        return response(error.status, error.kind, str(error))

    def invalid(_: Request, error: Exception) -> JSONResponse:
        return response(400, "BadRequestException", f"The request is invalid: {_first(error)}")

    def unsendable(_: Request, error: Exception) -> JSONResponse:
        return response(400, "BadRequestException", str(error))

    def ended(_: Request, error: Exception) -> JSONResponse:
        return response(401, "NotAuthorizedException", str(error))

    def http(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return response(error.status_code, "UnsupportedOperationException", "This catalog has no such route or method.")

    def storage(_: Request, error: Exception) -> JSONResponse:
        log.warning("the storage of the tables does not answer: %s", error)
        return response(
            503, "ServiceUnavailableException", f"The storage of the tables does not answer: {error}. Nothing was stored."
        )

    def away(_: Request, error: Exception) -> JSONResponse:
        log.warning("PostgreSQL does not answer: %s", error)
        return response(500, "CommitStateUnknownException", "PostgreSQL does not answer: whether this was stored is unknown.")

    def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        return response(500, "InternalServerError", f"The catalog failed ({type(error).__name__}): see the log of its process.")

    app.add_exception_handler(CatalogError, refused)
    app.add_exception_handler(StaleTryError, ended)
    app.add_exception_handler(PacelineError, unsendable)
    for kind in (RequestValidationError, ValidationError):
        app.add_exception_handler(kind, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(OSError, storage)
    app.add_exception_handler(DBAPIError, away)
    app.add_exception_handler(PoolTimeoutError, away)
    app.add_exception_handler(Exception, unexpected)


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError | RequestValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error)
