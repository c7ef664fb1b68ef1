"""Signatures for the filter org.apache.spark.ui.JWSFilter of a Spark master, made with a shared password."""

import base64
import hashlib
import hmac
import json
import time

from paceline.exceptions import FailTask

#: Java rejects a shorter key for HMAC-SHA256.
KEY_BYTES = 32
#: Seconds for which a signature is valid; the clocks of two machines may differ by less.
VALID_S = 300


def headers(conn_id: str, password: str | None) -> dict[str, str]:
    """The header that proves the password of a connection without sending it; FailTask if it is not a valid key."""
    if not password:
        return {}
    try:
        key = base64.urlsafe_b64decode(password + "=" * (-len(password) % 4))
    except ValueError:
        key = b""
    if len(key) < KEY_BYTES:
        raise FailTask(
            f"The password of connection {conn_id!r} signs requests to the Spark master, so it must be {KEY_BYTES} bytes or more "
            "in URL-safe base64: set it to the JWSFilter.param.secretKey of the master."
        )
    claims = {"exp": int(time.time()) + VALID_S}
    signed = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
    return {"Authorization": f"Bearer {signed}.{_base64(hmac.digest(key, signed.encode(), hashlib.sha256))}"}


def _encoded(value: object) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
