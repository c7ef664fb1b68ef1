"""Logins: passwords become JWTs or cookie sessions, and each request proves its account with one of these or an API token.

Through an OpenID Connect provider: authorization code with PKCE, and an ID token that its keys have signed. Web processes hold no
state: what such a login must remember between its two requests is in a signed cookie.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.common.security import generate_token
from authlib.integrations.requests_client import OAuth2Session
from fastapi import Request
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey
from joserfc.jwt import JWTClaimsRegistry
from sqlalchemy import Engine

from paceline.exceptions import NotFoundError, UnreachableError
from scheduler.actions.actor import ForbiddenError
from scheduler.api.errors import TooManyLoginsError, UnauthenticatedError
from scheduler.settings import Settings
from scheduler.store.accounts import accounts, audit, logins
from scheduler.store.accounts.accounts import ROLES, Account
from scheduler.store.db.database import read, transact
from scheduler.store.secrets import cipher

ALGORITHM = "HS256"


def sign(claims: Mapping[str, Any], secret: bytes) -> str:
    """A token with these claims; `exp` is the Unix time at which it ends."""
    return jwt.encode({"alg": ALGORITHM}, dict(claims), OctKey.import_key(secret))


def claims_of(token: str, secret: bytes, **wanted: str | None) -> dict[str, Any] | None:
    """The claims of a token that we signed and that has not ended; None for any other.

    It must have each of the `wanted` claims, with this value unless that is None.
    """
    essential = {name: {"essential": True} | ({} if value is None else {"value": value}) for name, value in wanted.items()}
    try:
        claims = jwt.decode(token, OctKey.import_key(secret), algorithms=[ALGORITHM]).claims
        JWTClaimsRegistry(**{"exp": {"essential": True}} | essential).validate(claims)  # type: ignore[arg-type]  # options
    except JoseError:
        return None
    return dict(claims)


#: Seconds for the provider to answer, for a person to log in there, and by which clocks may differ.
PATIENCE_S, LOGIN_S, LEEWAY_S = 10, 600, 60
#: Signatures of ID tokens that are accepted: never `none`, and never one with a shared secret.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
#: Seconds for which the addresses of the provider are remembered.
REMEMBERED_S = 3600.0


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user of the provider.

    `role` is None to keep the role of the account. `has_access` is False if the groups of the user give no role.
    """

    subject: str
    name: str
    role: str | None
    has_access: bool


class Provider:
    """The configured provider of one web process."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        self._oidc = settings.oidc
        self._secret = secret
        self._document: dict[str, Any] = {}
        self._read_at = -REMEMBERED_S

    @property
    def default_role(self) -> str | None:
        return self._oidc.default_role or None

    def begin(self, redirect_uri: str) -> tuple[str, str]:
        """The address to which the browser goes to log in, and the cookie for `finish`."""
        state, nonce, verifier = generate_token(32), generate_token(32), generate_token(64)
        with self._session(redirect_uri) as session:
            address, _ = session.create_authorization_url(
                self._endpoint("authorization_endpoint"), state=state, nonce=nonce, code_verifier=verifier
            )
        claims = {"state": state, "nonce": nonce, "verifier": verifier, "exp": int(time.time()) + LOGIN_S, "aud": "oidc"}
        return address, sign(claims, self._secret)

    def finish(self, address: str, cookie: str, redirect_uri: str) -> User:
        """The user whom the provider sent back to `address`. UnauthenticatedError, UnreachableError."""
        kept = claims_of(cookie, self._secret, aud="oidc")
        if kept is None:
            raise UnauthenticatedError("This login took too long, or began in another browser: begin again.")
        try:
            with self._session(redirect_uri, state=kept["state"]) as session:
                token = session.fetch_token(
                    self._endpoint("token_endpoint"),
                    authorization_response=address,
                    code_verifier=kept["verifier"],
                    timeout=PATIENCE_S,
                )
        except AuthlibBaseError as error:
            raise UnauthenticatedError(f"The provider refused the login: {error.description or error.error}.") from None
        except requests.RequestException as error:
            raise self._away(error) from None
        return self._user(self._claims(token, kept["nonce"]))

    def _claims(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token, whose signature, issuer, audience, time and nonce are checked."""
        registry = JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._oidc.issuer},
            aud={"essential": True, "value": self._oidc.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            keys = KeySet.import_key_set(self._get(self._endpoint("jwks_uri")))  # type: ignore[arg-type]  # checked there
            found = jwt.decode(str(token.get("id_token", "")), keys, algorithms=ALGORITHMS)
            registry.validate(found.claims)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise UnauthenticatedError(f"The ID token of the provider is not valid: {error}.") from None
        return dict(found.claims)

    def _user(self, claims: Mapping[str, Any]) -> User:
        groups = claims.get(self._oidc.groups_claim) or ()
        groups = {groups} if isinstance(groups, str) else {one for one in groups if isinstance(one, str)}
        pairs = [pair.split("=") for pair in self._oidc.roles.split(",") if pair]
        roles = [role for group, role in pairs if group.strip() in groups]
        role = max(roles, key=ROLES.index, default=self.default_role if pairs else None)
        name = next((str(claims[one]) for one in (self._oidc.name_claim, "email", "sub") if claims.get(one)), "")
        has_access = role is not None or (not pairs and self.default_role is not None)
        return User(f"{self._oidc.issuer} {claims['sub']}", name, role, has_access)

    def _session(self, redirect_uri: str, state: str | None = None) -> OAuth2Session:
        oidc = self._oidc
        return OAuth2Session(
            oidc.client_id,
            oidc.client_secret or None,
            scope=oidc.scopes,
            redirect_uri=redirect_uri,
            state=state,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if oidc.client_secret else "none",
        )

    def _endpoint(self, name: str) -> str:
        if not self._oidc.issuer:
            raise NotFoundError("No OpenID Connect provider is configured: set oidc.issuer.")
        if time.monotonic() - self._read_at > REMEMBERED_S:
            document = self._get(f"{self._oidc.issuer}/.well-known/openid-configuration")
            if document.get("issuer") != self._oidc.issuer:
                raise UnreachableError(f"The provider calls itself {document.get('issuer')!r}: correct oidc.issuer.")
            self._document, self._read_at = document, time.monotonic()
        if not isinstance(self._document.get(name), str):
            raise UnreachableError(f"The OpenID Connect provider has no {name}.")
        return str(self._document[name])

    def _get(self, address: str) -> dict[str, Any]:
        try:
            answer = requests.get(address, timeout=PATIENCE_S)
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
        except requests.RequestException as error:
            raise self._away(error) from None
        return found

    def _away(self, error: requests.RequestException) -> UnreachableError:
        return UnreachableError(f"The OpenID Connect provider does not answer ({type(error).__name__}): try again.")


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
        return sign(claims, self._secret)

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
        claims = claims_of(token, self._secret, sid=None)
        if claims is None:
            raise UnauthenticatedError("The token is not valid: get one from POST /auth/token.")
        return str(claims["sid"])

    def _record(self, event: str, name: str, address: str, status: int) -> None:
        entry = transact(self._engine, audit.begin, event, account=name[:250], address=address)
        transact(self._engine, audit.end, entry, status)
