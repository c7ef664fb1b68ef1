"""Looks up Airflow's names in the table: which name is ours, and the reason for one that is not supported."""

import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from paceline.airflow.table import MODULE_REASONS, REASONS, RENAMED, ROWS, SERVICES, UNCHANGED, Row

ROOT = "airflow"
#: The provider package with the names of Airflow 2 and 3 in one place. It has all names that some other module has.
COMPAT = "airflow.providers.common.compat"
#: Folders of several provider packages, such as apache-airflow-providers-apache-hive. Elsewhere, the folder is one package.
FAMILIES = frozenset({"apache", "atlassian", "cncf", "common", "dbt", "edge3", "microsoft"})
_ALL_NAMES = ("airflow.sdk", "airflow.sdk.exceptions", "airflow.sdk.timezone", "airflow.sdk.bases.sensor")

#: Every module of Airflow in the table.
MODULES: dict[str, Row] = {module: row for row in ROWS for module in row.modules}
MODULES[f"{COMPAT}.sdk"] = Row(
    (f"{COMPAT}.sdk",),
    tuple(dict.fromkeys(place for module in _ALL_NAMES for place in MODULES[module].places)),
    tuple(dict.fromkeys(name for module in _ALL_NAMES for name in MODULES[module].names)),
)
#: The packages that hold these modules.
PACKAGES = frozenset(module[:at] for module in MODULES for at, letter in enumerate(module) if letter == ".")


@dataclass(frozen=True, slots=True)
class Ours:
    """A name of Paceline, or a whole module if `name` is empty."""

    module: str
    name: str = ""

    def get(self) -> object:
        module = importlib.import_module(self.module)
        return getattr(module, self.name) if self.name else module


def is_known(module: str) -> bool:
    """Whether this module of Airflow, or something below it, is in the table."""
    return module in MODULES or module in PACKAGES


@cache
def find(module: str, name: str) -> Ours | None:
    """The counterpart of a name of one of Airflow's modules; None if there is none. A submodule is found as a whole."""
    row = MODULES.get(module)
    if row is not None:
        for spelled in dict.fromkeys((name, RENAMED.get(name, name))):
            for place in dict.fromkeys((*row.places, "paceline")):
                if _has(place, spelled, listed=name in row.names):
                    return Ours(place, spelled)
    inner = MODULES.get(f"{'airflow.sdk' if module == f'{COMPAT}.sdk' else module}.{name}")
    # Only a module of paceline/airflow holds exactly the names of one module of Airflow.
    if inner is not None and len(inner.places) == 1 and inner.places[0].startswith("paceline.airflow."):
        return Ours(inner.places[0])
    return None


def unchanged(module: str, name: str) -> Ours | None:
    """As `find`, for a file that is not changed: with the counterparts that take the arguments of Airflow 2."""
    ours = find(module, name)
    return Ours(UNCHANGED[name], name) if ours is not None and name in UNCHANGED and name in MODULES[module].names else ours


def reason(module: str, name: str = "") -> str:
    """One sentence on a name or module that has no counterpart: what is missing, and what to use instead."""
    if name and f"{module}.{name}" in MODULE_REASONS:
        return reason(f"{module}.{name}")
    if name and name not in REASONS and is_known(module) and (place := home(name)) is not None:
        return f"{module} has no {name}: write `from {place} import {name}`."
    if name and is_known(module):
        return f"Paceline has no {name}: {REASONS.get(name, _of_module(module))}."
    if (moved := _modern(module)) is not None:
        return f"Paceline has no counterpart of {module}, which is {moved} now: import that module, and {_of_module(moved)}."
    return f"Paceline has no counterpart of {module}: {_of_module(module)}."


def _of_module(module: str) -> str:
    """Why there is no counterpart of a module or of a name in it; of a provider, with the name of its package."""
    longest = max((prefix for prefix in MODULE_REASONS if f"{module}.".startswith(f"{prefix}.")), key=len)
    parts = module.split(".")[2:]
    words = parts[: 2 if parts[:1] and parts[0] in FAMILIES else 1]
    return MODULE_REASONS[longest].replace("{}", f"apache-airflow-providers-{'-'.join(words)}")


@cache
def home(name: str) -> str | None:
    """The module of Airflow 3 that has this name; None if none has it that Paceline supports."""
    modules = [module for module, row in MODULES.items() if name in row.names and find(module, name) is not None]
    return next((module for module in modules if module.startswith((f"{ROOT}.sdk", f"{ROOT}.providers.standard"))), None)


def _modern(module: str) -> str | None:
    """The module of a provider package that replaces one of Airflow 1, such as airflow.hooks.postgres_hook."""
    old = re.fullmatch(r"airflow\.(?:contrib\.)?(hooks|operators|sensors)\.((?:[a-z0-9]+_)+)(?:hook|operator|sensor)", module)
    if old is None:
        return None
    service = next((word for word in old[2].split("_") if word in SERVICES), None)
    if service is None:
        return None
    place = ".".join(part for part in (SERVICES[service], "" if "." in SERVICES[service] else service) if part)
    return f"{ROOT}.providers.{place}.{old[1]}.{old[2].rstrip('_')}"


def complaints(module: str, given: Iterable[str]) -> list[str]:
    """The sentences on the names without a counterpart in an import from a module of Airflow; empty if all have one."""
    if not is_known(module):
        return [reason(module)]
    missing = [name for name in given if find(module, name) is None and not is_known(f"{module}.{name}")]
    # Names with the same reason are one sentence.
    by_reason: dict[str, list[str]] = {}
    for name in missing:
        first, _, why = reason(module, name).partition(": ")
        by_reason.setdefault(f"{first.removesuffix(name)}{{}}: {why}", []).append(name)
    return [text.replace("{}", ", ".join(found), 1) for text, found in by_reason.items()]


def names_of(module: str) -> Iterator[tuple[str, Ours | None]]:
    """The names of a module of the table, each with its counterpart."""
    for name in MODULES[module].names:
        yield name, find(module, name)


def _has(place: str, name: str, *, listed: bool) -> bool:
    """Whether our module has this name. A name that the table does not list must be public, and no submodule."""
    try:
        value = getattr(importlib.import_module(place), name)
    except (AttributeError, ImportError):
        return False
    return listed or not (name.startswith("_") or isinstance(value, ModuleType))
