"""Passwords, hashed with argon2id."""

import functools
import secrets

import argon2
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from paceline.exceptions import PacelineError

#: In characters. The upper limit keeps a request from occupying the hash function for long.
SHORTEST, LONGEST = 8, 1000
#: What a hash costs: passes, memory in KiB, threads.
TIME_COST, MEMORY_COST, LANES = argon2.DEFAULT_TIME_COST, argon2.DEFAULT_MEMORY_COST, argon2.DEFAULT_PARALLELISM


def hashed(password: str) -> str:
    """Return the hash of a new password. PacelineError if it is too short or too long."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise PacelineError(f"A password has {SHORTEST} to {LONGEST} characters: choose another.")
    return _hasher().hash(password.encode("utf-8", "surrogatepass"))


def fits(password: str, hash_: str | None) -> bool:
    """Whether the password has this hash. It takes as long if there is none, so that account names cannot be tried out."""
    try:
        return _hasher().verify(hash_ or _unknown(), password[:LONGEST].encode("utf-8", "surrogatepass")) and hash_ is not None
    except (VerificationError, InvalidHashError):
        return False


def generated() -> str:
    """Return a random password."""
    return secrets.token_urlsafe(15)


def _hasher() -> PasswordHasher:
    return PasswordHasher(TIME_COST, MEMORY_COST, LANES)


@functools.cache
def _unknown() -> str:
    return _hasher().hash(secrets.token_urlsafe())
