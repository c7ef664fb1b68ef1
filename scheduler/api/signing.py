"""The JSON Web Tokens that web processes sign for themselves (HMAC with SHA-256), so that they need hold no state.

Every web process of an installation has the same secret.
"""

from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jwt import JWTClaimsRegistry

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
