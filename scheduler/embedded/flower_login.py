"""The login of the Flower of a local stack."""

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

USER = "paceline"
#: Flower's own settings of access control. If one is set, Paceline adds no login.
CHOSEN = ("FLOWER_BASIC_AUTH", "FLOWER_AUTH", "FLOWER_CONF")


def login(home: Path, environ: Mapping[str, str]) -> str | None:
    """Return user:password of this home's Flower, generated at its first start. None if the environment configures access."""
    if any(environ.get(name) for name in CHOSEN):
        return None
    path = home / "flower.password"
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{secrets.token_urlsafe(16)}\n")
    return f"{USER}:{path.read_text(encoding='utf-8').strip()}"
