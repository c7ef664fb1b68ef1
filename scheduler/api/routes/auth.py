"""Logging in and out."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from scheduler.actions.actor import ForbiddenError
from scheduler.api.call import address_of, service_of
from scheduler.api.errors import UnauthenticatedError, documented
from scheduler.api.login import CSRF_COOKIE, LOGIN_S, SESSION_COOKIE, Login
from scheduler.api.models.base import Body, Model
from scheduler.store.accounts import logins
from scheduler.store.db.database import transact

OIDC_COOKIE = "paceline_oidc"
ERRORS = documented({
    401: "The user name or the password is wrong.",
    403: "The CSRF token is missing.",
    404: "No OpenID Connect provider is configured.",
    409: "Another account has the name of this user.",
    429: "There were too many failed logins.",
})  # fmt: skip
router = APIRouter(prefix="/auth", tags=["Login"], responses=ERRORS)


class Credentials(Body):
    """The credentials of a login."""

    username: str
    password: str


class Token(Model):
    """A JWT, for `Authorization: Bearer`."""

    access_token: str
    token_type: str = "bearer"  # noqa: S105 - not a password


class Methods(Model):
    """The ways to log in besides a password."""

    oidc: bool


class Session(BaseModel):
    """A session in a cookie, and the text that each change must send as X-CSRF-Token."""

    username: str
    role: str | None
    tags: dict[str, str]
    csrf_token: str


@router.post("/token", status_code=201, name="create_token")
def create_token(request: Request, credentials: Credentials) -> Token:
    """Exchange a user name and a password for a JWT."""
    service = service_of(request)
    login = service.logins.log_in(credentials.username, credentials.password, address_of(request), "jwt")
    return Token(access_token=service.logins.token(login))


@router.post("/login", name="log_in")
def log_in(request: Request, response: Response, credentials: Credentials) -> Session:
    """Begin a session in a cookie, for pages."""
    service = service_of(request)
    login = service.logins.log_in(credentials.username, credentials.password, address_of(request), "session")
    csrf = _remember(request, response, login)
    account = login.account
    return Session(username=account.name, role=account.role, tags=dict(account.tags), csrf_token=csrf)


@router.get("/link", name="log_in_by_link", status_code=303, response_class=RedirectResponse)
def log_in_by_link(
    request: Request, key: Annotated[str, Query(max_length=200)], accept: Annotated[str, Header()] = "*/*"
) -> RedirectResponse:
    """Begin a session with a link that works once, as `paceline standalone` prints it, and go to the web UI."""
    service = service_of(request)
    try:
        login = service.logins.log_in_by_link(key, address_of(request))
    except UnauthenticatedError:
        if "text/html" not in accept:
            raise
        # A browser shows the login form with the reason, or the web UI if it still has a session.
        return RedirectResponse(f"{request.scope.get('root_path', '')}/?login=link-used", 303)
    return _to_pages(request, login)


@router.get("/methods", name="login_methods")
def login_methods(request: Request) -> Methods:
    """List the ways to log in."""
    service = service_of(request)
    return Methods(oidc=bool(service.settings.oidc.issuer))


@router.get("/oidc/login", name="begin_oidc_login", status_code=303, response_class=RedirectResponse)
def begin_oidc_login(request: Request) -> RedirectResponse:
    """Go to the OpenID Connect provider to log in."""
    service = service_of(request)
    address, kept = service.logins.provider.begin(_callback(request))
    response = RedirectResponse(address, 303)
    response.set_cookie(OIDC_COOKIE, kept, httponly=True, max_age=LOGIN_S, **_cookie(request))
    return response


@router.get("/oidc/callback", name="finish_oidc_login", status_code=303, response_class=RedirectResponse)
def finish_oidc_login(request: Request) -> RedirectResponse:
    """Begin a session when the provider sends the browser back, and go to the web UI."""
    service = service_of(request)
    kept = request.cookies.get(OIDC_COOKIE, "")
    user = service.logins.provider.finish(str(request.url), kept, _callback(request))
    login = service.logins.log_in_by_provider(user, address_of(request))
    response = _to_pages(request, login)
    response.delete_cookie(OIDC_COOKIE, path=_cookie(request)["path"])
    return response


def _callback(request: Request) -> str:
    return f"{str(request.base_url).rstrip('/')}/auth/oidc/callback"


def _cookie(request: Request) -> dict[str, Any]:
    """The scope of all cookies. Lax: a link from elsewhere opens a page, and the provider sends the browser back."""
    service = service_of(request)
    return {
        "path": request.scope.get("root_path") or "/",
        "secure": service.settings.web.secure_cookies or request.url.scheme == "https",
        "samesite": "lax",
    }


def _to_pages(request: Request, login: Login) -> RedirectResponse:
    """A redirect to the pages, with the cookies of a session."""
    response = RedirectResponse(f"{request.scope.get('root_path', '')}/", 303)
    _remember(request, response, login)
    return response


def _remember(request: Request, response: Response, login: Login) -> str:
    """Set the cookies of a session, and return its CSRF token."""
    service = service_of(request)
    csrf = service.logins.csrf(login.key)
    cookie = {"max_age": int(service.settings.web.session_timeout), **_cookie(request)}
    response.set_cookie(SESSION_COOKIE, login.key, httponly=True, **cookie)
    response.set_cookie(CSRF_COOKIE, csrf, **cookie)
    return csrf


@router.post("/logout", status_code=204, name="log_out")
def log_out(request: Request, response: Response) -> None:
    """End the session of the cookie."""
    service = service_of(request)
    session = request.cookies.get(SESSION_COOKIE)
    if session is None:
        return
    if not service.logins.same_origin(request, session):
        raise ForbiddenError("The header X-CSRF-Token is missing or wrong: reload the page.")
    transact(service.engine, logins.end, session)
    for name in (SESSION_COOKIE, CSRF_COOKIE):
        response.delete_cookie(name, path=_cookie(request)["path"])
