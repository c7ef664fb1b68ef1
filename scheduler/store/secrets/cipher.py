"""The encryption of variables and connections: Fernet, with the keys of core.fernet_key or the key file in PACELINE_HOME.

Only a process that encrypts or decrypts imports `cryptography`, which takes 6 MB.
"""

import hashlib
import hmac
import os
from collections.abc import Sequence
from pathlib import Path

from paceline.exceptions import PacelineError
from scheduler.settings import Settings

KEY_FILE = "fernet.key"
#: A command that prints a new key.
NEW_KEY = "`openssl rand -base64 32 | tr '+/' '-_'`"


class Cipher:
    """Encrypts with the first key, and decrypts with any of them."""

    def __init__(self, keys: Sequence[str]) -> None:
        from cryptography.fernet import Fernet, InvalidToken, MultiFernet

        self._fernet = MultiFernet([Fernet(key) for key in keys])
        self._refusal = InvalidToken

    @classmethod
    def of(cls, settings: Settings, *, make: bool) -> "Cipher":
        """A cipher with the keys of the settings, or else of the key file, which `make` creates if it is missing.

        PacelineError without a key. With an external database, no key file is created: a container loses its home, and other
        machines have another, so that other processes could not decrypt.
        """
        return cls(_keys(settings, make=make))

    def encrypt(self, text: str) -> str:
        return self._fernet.encrypt(text.encode()).decode()

    def decrypt(self, token: str, what: str) -> str:
        """The decrypted text; PacelineError about `what` if no key fits."""
        try:
            return self._fernet.decrypt(token).decode()
        except self._refusal:
            raise _unreadable(what) from None

    def reads(self, token: str) -> bool:
        """Whether one of the keys fits."""
        try:
            self._fernet.decrypt(token)
        except self._refusal:
            return False
        return True

    def rotate(self, token: str, what: str) -> str:
        """The same text, encrypted with the first key."""
        try:
            return self._fernet.rotate(token).decode()
        except self._refusal:
            raise _unreadable(what) from None


def derived(settings: Settings, purpose: str) -> str:
    """A secret of its own for `purpose`, the same in every process that has the newest key. PacelineError without a key."""
    return hmac.new(_keys(settings, make=True)[0].encode(), purpose.encode(), hashlib.sha256).hexdigest()


def _keys(settings: Settings, *, make: bool) -> list[str]:
    if settings.core.fernet_key:
        return [key.strip() for key in settings.core.fernet_key.split(",")]
    path = settings.home / KEY_FILE
    if make and not path.exists():
        if not settings.database_is_embedded:
            raise PacelineError(
                f"There is no key to encrypt with: set PACELINE_CORE_FERNET_KEY, the same for every process ({NEW_KEY} prints"
                f" one), or copy the key of the other processes to {path}."
            )
        _make(path)
    try:
        from cryptography.fernet import Fernet

        key = path.read_text(encoding="ascii").strip()
        Fernet(key)
        return [key]
    except FileNotFoundError:
        raise PacelineError(
            "There is no key to decrypt with:",
            fix=f"set PACELINE_CORE_FERNET_KEY to the key that encrypted it, or copy it to {path}.",
        ) from None
    except (OSError, ValueError) as error:
        raise PacelineError(
            f"{path} cannot be read as a Fernet key: {error}.", fix="Correct it, or set PACELINE_CORE_FERNET_KEY."
        ) from None


def _make(path: Path) -> None:
    """Create the key file atomically; if another process creates it first, that one is used."""
    from cryptography.fernet import Fernet

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{KEY_FILE}.{os.getpid()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(Fernet.generate_key() + b"\n")
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink()


def _unreadable(what: str) -> PacelineError:
    return PacelineError(
        f"{what} was encrypted with another key: add that key to core.fernet_key, separated by a comma, or set the value again."
    )
