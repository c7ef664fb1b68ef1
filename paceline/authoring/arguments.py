"""Checks of the arguments of DAGs and operators. Each failure is a DagError with a clear message and the author's line."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from paceline.authoring import zones
from paceline.authoring.asset import Asset, AssetRef
from paceline.authoring.source import Location, fault
from paceline.exceptions import DagError

ID_MAX_LENGTH = 250
_ID = re.compile(r"[\w.-]+")
#: A queue is a Redis list with its name. These names are keys of Paceline and Celery, and the lists of other priorities.
_RESERVED_QUEUE = re.compile(r"paceline:.*|_kombu\..*|unacked.*|celeryev.*|/.*|.*\.pidbox|.*:[369]", re.DOTALL)

_OFF: tuple[object, ...] = (None, False, (), [], {})
#: Airflow's arguments that Paceline does not support, and why. Values in REQUEST_NOTHING are accepted.
REFUSED_FOR_TASKS: Mapping[str, str] = {
    "executor": "Celery workers are the only executor, and queue= chooses them; remove it",
    "executor_config": "Celery workers are the only executor; set queue=, and give the workers of that queue what the task needs",
    "resources": "pool_slots= limits what tasks use at a time, and queue= chooses the workers; remove it",
    "run_as_user": "a task runs as the user of its worker; start workers of a queue of their own as that user, and set queue=",
}
REFUSED_FOR_DAGS: Mapping[str, str] = {
    "access_control": "the roles of `paceline users` apply to all DAGs; remove it",
    "auto_register": "every DAG of a file is loaded; create the DAG only where it is wanted",
    "task_group": "a DAG makes its root group itself; remove it",
}
REQUEST_NOTHING: Mapping[str, tuple[object, ...]] = {"access_control": (*_OFF, 0), "auto_register": (None, True)}

#: Arguments of older versions of Airflow with their new names.
RENAMED: Mapping[str, str] = {
    "schedule_interval": "schedule",
    "timetable": "schedule",
    "concurrency": "max_active_tasks",
    "task_concurrency": "max_active_tis_per_dag",
    "fail_stop": "fail_fast",
    "execution_date": "logical_date",
}
#: Arguments of older versions of Airflow that have no effect any more, and why.
NO_EFFECT: Mapping[str, str] = {
    "provide_context": "the function always gets the context variables that it has parameters for; remove it",
    "default_view": "remove it",
    "orientation": "remove it",
}
REPLACED: Mapping[str, str] = {**{name: f"write {new}" for name, new in RENAMED.items()}, **NO_EFFECT}
#: Why the loop of a single task is rejected, and what to write.
NO_LOOPS = (
    "only task groups run in loops; put the task into a @task_group, and call .loop(max_iterations=..., until=...) of the group."
)
#: The names in NO_EFFECT that are accepted. The import hook for unchanged Airflow files adds all of them.
ACCEPTED: set[str] = set()


def is_identifier(name: str) -> bool:
    """Whether a name of allowed length consists of letters, digits, dashes, dots and underscores, and not only of dots."""
    return _ID.fullmatch(name) is not None and bool(name.strip("."))


def is_reserved_queue(name: str) -> bool:
    """Whether a queue cannot have this name, because Redis has another key of that name."""
    return len(name) > ID_MAX_LENGTH or _RESERVED_QUEUE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Arguments:
    """Checks of the arguments of one DAG or task. Every error message starts with `owner`; `at` is the line of the error."""

    owner: str
    at: Location

    def refuse(self, complaint: str) -> DagError:
        """The error to raise, with the owner before the complaint."""
        return fault(f"{self.owner}: {complaint}", at=self.at)

    def identifier(self, name: str, value: object) -> str:
        """An ID: at most 250 letters, digits, dashes, dots and underscores; not only dots, since it names a folder of logs."""
        if not isinstance(value, str):
            raise self.refuse(f"{name} must be a str, not {_shown(value)}.")
        if len(value) > ID_MAX_LENGTH:
            raise self.refuse(f"{name} has {len(value)} characters; {ID_MAX_LENGTH} are allowed.")
        if not is_identifier(value):
            raise self.refuse(f"{name} {value!r} may contain only letters, digits, dashes, dots and underscores.")
        return value

    def text(self, name: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.refuse(f"{name} must be a non-empty str, not {_shown(value)}.")
        return value

    def queue(self, name: str, value: object) -> str:
        """The name of a queue: a str that is not another key of the broker."""
        text = self.text(name, value)
        if is_reserved_queue(text):
            raise self.refuse(f"{name} {text!r} is a key that Paceline or Celery keeps in Redis; choose another name.")
        return text

    def texts(self, name: str, value: object) -> list[str]:
        """A list, tuple or set of str. A single str is rejected: it would be read letter by letter."""
        if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(v, str) for v in value):
            raise self.refuse(f"{name} must be a list of str, not {_shown(value)}.")
        return sorted(value) if isinstance(value, set | frozenset) else list(value)

    def mapping(self, name: str, value: object) -> dict[str, object]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.refuse(f"{name} must be a dict with str keys, not {_shown(value)}.")
        return dict(value)

    def boolean(self, name: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.refuse(f"{name} must be True or False, not {_shown(value)}.")
        return value

    def integer(self, name: str, value: object, *, least: int | None = None) -> int:
        """An int of 32 bits, not a bool."""
        if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
            bound = "" if least is None else f" of at least {least}"
            raise self.refuse(f"{name} must be an int{bound}, not {_shown(value)}.")
        if abs(value) >= 2**31:
            raise self.refuse(f"{name} must fit into 32 bits, not {value}.")
        return value

    def limit(self, name: str, value: object) -> int | None:
        """At least 1, or None for no limit."""
        return None if value is None else self.integer(name, value, least=1)

    def callbacks(self, name: str, value: object) -> tuple[Callable[..., Any], ...]:
        """A function that takes the context, or a list of them."""
        functions = () if value is None else (value,) if callable(value) else value
        if not isinstance(functions, list | tuple) or not all(callable(function) for function in functions):
            raise self.refuse(f"{name} must be a function that takes the context, or a list of them, not {_shown(value)}.")
        return tuple(functions)

    def function(self, name: str, value: object) -> Callable[..., Any]:
        if not callable(value):
            raise self.refuse(f"{name} must be a function, not {_shown(value)}.")
        return value

    def inlets(self, name: str, value: object) -> tuple[Asset | AssetRef, ...]:
        """An Asset or a list of them, some of which may be known only by name."""
        if isinstance(value, list | tuple):
            refs = [asset for asset in value if isinstance(asset, AssetRef)]
            return (*self.assets(name, [asset for asset in value if not isinstance(asset, AssetRef)]), *refs)
        return self.assets(name, value)

    def assets(self, name: str, value: object) -> tuple[Asset, ...]:
        """An Asset or a list of them."""
        assets = () if value is None else (value,) if isinstance(value, Asset) else value
        if not isinstance(assets, list | tuple) or not all(isinstance(asset, Asset) for asset in assets):
            raise self.refuse(f"{name} must be a list of Asset, not {_shown(value)}.")
        return tuple(assets)

    def duration(self, name: str, value: object, *, seconds_allowed: bool = True, zero_allowed: bool = False) -> timedelta:
        """A timedelta, or a number of seconds where Airflow takes one."""
        if seconds_allowed and isinstance(value, int | float) and not isinstance(value, bool):
            try:
                value = timedelta(seconds=value)
            except (ValueError, OverflowError):
                raise self.refuse(f"{name} cannot be {value!r} seconds.") from None
        if not isinstance(value, timedelta):
            hint = f"timedelta(seconds={value})" if isinstance(value, int | float) else "timedelta(minutes=5)"
            raise self.refuse(f"{name} must be a timedelta such as {hint}, not {_shown(value)}.")
        if value < timedelta(0) or (not value and not zero_allowed):
            raise self.refuse(f"{name} must {'be zero or more' if zero_allowed else 'be longer than zero'}, not {value}.")
        return value

    def choice(self, name: str, value: object, allowed: Iterable[str]) -> str:
        """One of `allowed`; the error suggests the nearest one."""
        known = [str(name) for name in allowed]
        if not isinstance(value, str) or value not in known:
            raise self.refuse(f"{name} cannot be {value!r}{near(str(value), known)}")
        return str(value)

    def choices(self, name: str, values: Iterable[object], allowed: Iterable[str]) -> list[str]:
        """Each of `values` as text, if it is one of `allowed`."""
        return [self.choice(name, str(value), allowed) for value in values]

    def moment(self, name: str, value: object) -> datetime:
        """A datetime in its time zone, or without one in the default time zone; a wall-clock time that exists there."""
        if not isinstance(value, datetime):
            kind = "a date; write datetime" if isinstance(value, date) else f"{_shown(value)}; write datetime"
            raise self.refuse(f"{name} must be a datetime with a time zone, not {kind}(2026, 1, 1, tzinfo=UTC).")
        if value.utcoffset() is None:
            value = value.replace(tzinfo=zones.load(zones.default_name()))
        try:
            back = value.astimezone(UTC).astimezone(value.tzinfo)
        except (OverflowError, ValueError):
            raise self.refuse(f"{name} {value} is outside the years 1 to 9999 in UTC.") from None
        if back.replace(tzinfo=None) != value.replace(tzinfo=None):
            raise self.refuse(f"{name} {value} does not exist: the clocks of {value.tzinfo} skip it; write {back}.")
        return value

    def others(self, given: Mapping[str, object], *, known: Iterable[str], refused: Mapping[str, str]) -> None:
        """Reject arguments that are in no signature: those that are not supported, and unknown ones."""
        for name, value in given.items():
            if name in ACCEPTED:
                continue
            if name in REPLACED:
                raise self.refuse(f"the argument {name!r} does not exist any more: {REPLACED[name]}.")
            if name in {"until", "max_iterations"}:
                raise self.refuse(f"the argument {name!r}: {NO_LOOPS}")
            if name not in refused:
                raise self.refuse(f"unknown argument {name!r}{near(name, [*known, *refused])}")
            if not any(value is off or (type(value) is type(off) and value == off) for off in REQUEST_NOTHING.get(name, _OFF)):
                raise self.refuse(f"the argument {name!r} is not supported: {refused[name]}.")


def near(name: str, known: Iterable[str], *, least: float = 0.6) -> str:
    """The end of an error message about an unknown name: the nearest known one, else all if they are few.

    `least` is the similarity of the nearest one, from 0 to 1.
    """
    names = sorted(set(known))
    nearest = difflib.get_close_matches(name, names, 1, cutoff=least)
    if nearest:
        return f"; did you mean {nearest[0]!r}?"
    return f"; known are {', '.join(names)}." if names and len(names) <= 15 else "."


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
