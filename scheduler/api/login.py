"""Logins: passwords become JWTs or cookie sessions, and each request proves its account with one of these or an API token."""

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass
from datetime import datetime

from fastapi import Request
from sqlalchemy import Engine

from scheduler.actions.actor import ForbiddenError
from scheduler.api import oidc
from scheduler.api.errors import TooManyLoginsError, UnauthenticatedError
from scheduler.api.oidc import Provider, User
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, audit, logins
from scheduler.store.accounts.accounts import Account
from scheduler.store.db.database import read, transact
from scheduler.store.secrets import cipher

SESSION_COOKIE, CSRF_COOKIE, CSRF_HEADER = "paceline_session", "paceline_csrf", "x-csrf-token"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: argon2 takes 64 MB for each hash, and a processor for a tenth of a second.
_hashing = threading.BoundedSemaphore(2)


@dataclass(frozen=True, slots=True)
class Login:
    """The result of a successful login."""

    account: Account
    key: str
    expires_at: datetime


class Logins:
    """Signs and checks logins of one web process. All web processes of a database share the secret."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._web = settings.web
        self._engine = engine
        self._secret = (settings.web.signing_key or cipher.derived(settings, "web logins")).encode()
        self.provider = Provider(settings, self._secret)

    def log_in(self, name: str, password: str, address: str, kind: str) -> Login:
        """Check a password and begin a session of this kind. UnauthenticatedError, TooManyLoginsError."""
        self._refuse_too_many(name, address)
        found = transact(self._engine, accounts.password_of, name)
        with _hashing:
            # Concurrent attempts that failed are counted by now.
            self._refuse_too_many(name, address)
            fits = accounts.fits(password, found.password_hash if found else None)
            if not fits:
                transact(self._engine, logins.failed, name, address, window_s=self._web.login_window)
        if found is None or not fits:
            self._record("login_failed", name, address, 401)
            raise UnauthenticatedError("The user name or the password is wrong.")
        transact(self._engine, logins.succeeded, name, address)
        return self.begin(found.id, address, kind)

    def _refuse_too_many(self, name: str, address: str) -> None:
        attempts, window_s = self._web.login_attempts, self._web.login_window
        wait_s = transact(self._engine, logins.seconds_to_wait, name, address, attempts=attempts, window_s=window_s)
        if wait_s > 0:
            raise TooManyLoginsError(wait_s)

    def log_in_by_link(self, key: str, address: str) -> Login:
        """Begin a session with a link that works once. UnauthenticatedError."""
        account_id = transact(self._engine, logins.use_link, key)
        if account_id is None:
            raise UnauthenticatedError("This link was used already, or is too old: log in with a password.")
        return self.begin(account_id, address, "session")

    def begin(self, account_id: int, address: str, kind: str) -> Login:
        """Begin a session of an authenticated account. UnauthenticatedError if the account was deleted meanwhile."""
        lasts_s = self._web.session_timeout if kind == "session" else self._web.token_timeout
        key, expires_at = transact(self._engine, logins.issue, account_id, kind, lasts_s=lasts_s, address=address)
        account = transact(self._engine, logins.account, key, kind)
        if account is None:
            raise UnauthenticatedError("The account was deleted.")
        self._record("login", account.name, address, 200)
        return Login(account, key, expires_at)

    def log_in_by_provider(self, user: User, address: str) -> Login:
        """Begin a session of a user of the OpenID Connect provider, whose account the first login creates.

        ForbiddenError if none of the user's groups has a role. An account from an earlier login then loses all rights.
        """
        if not user.has_access:
            transact(self._engine, accounts.revoke_subject, user.subject)
            self._record("login_failed", user.name, address, 403)
            raise ForbiddenError("None of your groups has a role in Paceline: ask an administrator.")
        default = self.provider.default_role
        account_id = transact(self._engine, accounts.of_subject, user.subject, user.name, user.role, default_role=default)
        return self.begin(account_id, address, "session")

    def token(self, login: Login) -> str:
        """The JWT of a login. It is valid as long as its session is."""
        claims = {
            "sub": str(login.account.id),
            "name": login.account.name,
            "sid": login.key,
            "exp": int(login.expires_at.timestamp()),
        }
        return oidc.sign(claims, self._secret)

    def csrf(self, session: str) -> str:
        """The text that a page must send with each change that its cookie authenticates."""
        return hmac.new(self._secret, b"csrf " + session.encode(), hashlib.sha256).hexdigest()

    def account(self, request: Request) -> Account:
        """The account of a request. UnauthenticatedError; ForbiddenError for a change without the CSRF token."""
        key, kind = self.key(request)
        found = read(self._engine, logins.account, key, kind)
        if found is None:
            hint = "session has ended: log in again" if kind == "session" else "token has ended: get one from POST /auth/token"
            raise UnauthenticatedError(f"The {hint}.")
        if kind == "session" and request.method not in SAFE and not self.same_origin(request, key):
            raise ForbiddenError("The header X-CSRF-Token is missing or wrong: reload the page.")
        return found

    def key(self, request: Request) -> tuple[str, str]:
        """The key that a request presents, and its kind. UnauthenticatedError."""
        scheme, _, credential = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            credential = credential.strip()
            return (credential, "token") if credential.startswith(logins.PREFIX) else (self._session_of(credential), "jwt")
        session = request.cookies.get(SESSION_COOKIE)
        if not session:
            raise UnauthenticatedError
        return session, "session"

    def same_origin(self, request: Request, session: str) -> bool:
        """Whether a request with a session cookie comes from a page of this session."""
        return secrets.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), self.csrf(session).encode())

    def _session_of(self, token: str) -> str:
        claims = oidc.claims_of(token, self._secret, sid=None)
        if claims is None:
            raise UnauthenticatedError("The token is not valid: get one from POST /auth/token.")
        return str(claims["sid"])

    def _record(self, event: str, name: str, address: str, status: int) -> None:
        entry = transact(self._engine, audit.begin, event, account=name[:250], address=address)
        transact(self._engine, audit.end, entry, status)
