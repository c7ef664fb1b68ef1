"""The modules that commands import on first use, so that `--help` loads neither the database nor the terminal libraries."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.cli import progress
    from scheduler.messaging import wakeups
    from scheduler.services import prune, run_files
    from scheduler.settings import log_copies, log_paths
    from scheduler.store.accounts import accounts, audit, keys, passwords
    from scheduler.store.actions import backfills, clear, delete, mark, pools
    from scheduler.store.dags import assets, dags, schedules
    from scheduler.store.db import database, migrate, roles
    from scheduler.store.lists import overview
    from scheduler.store.queries import history, reads
    from scheduler.store.runs import manual_runs, selection
    from scheduler.store.secrets import connections, variables
    from scheduler.store.upkeep import notices, retention

__all__ = [
    "accounts", "assets", "audit", "backfills", "clear", "connections", "dags", "database", "delete",
    "history", "keys", "log_copies", "log_paths", "manual_runs", "mark", "migrate", "notices", "overview", "passwords", "pools",
    "progress", "prune", "reads", "retention", "roles", "run_files", "schedules", "selection", "variables",
    "wakeups",
]  # fmt: skip

_NAMES = {
    "scheduler.cli": ["progress"],
    "scheduler.messaging": ["wakeups"],
    "scheduler.services": ["prune", "run_files"],
    "scheduler.settings": ["log_copies", "log_paths"],
    "scheduler.store.accounts": ["accounts", "audit", "keys", "passwords"],
    "scheduler.store.actions": ["backfills", "clear", "delete", "mark", "pools"],
    "scheduler.store.dags": ["assets", "dags", "schedules"],
    "scheduler.store.db": ["database", "migrate", "roles"],
    "scheduler.store.lists": ["overview"],
    "scheduler.store.queries": ["history", "reads"],
    "scheduler.store.runs": ["manual_runs", "selection"],
    "scheduler.store.secrets": ["connections", "variables"],
    "scheduler.store.upkeep": ["notices", "retention"],
}


class _Later:
    """A module that is imported when one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


globals().update({name: _Later(f"{package}.{name}") for package, names in _NAMES.items() for name in names})
