"""Declared arguments: the name, type, default and check of an argument are one line of a TypedDict.

    class Some(TypedDict, total=False):
        retries: Annotated[int, Field(0, integer(least=0))]

Editors then show the keyword arguments of a function with `**given: Unpack[Some]`, and `checked` returns their values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.authoring.arguments import Arguments
from paceline.authoring.params import Param, authored
from paceline.authoring.source import Location

#: Takes the checks of the DAG or task, and the name and value of the argument; returns the checked value or raises.
Check = Callable[[Arguments, str, Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """The default of an argument and its check. The default is checked once, like any other value."""

    default: Any
    check: Check


@cache
def fields_of(declared: type) -> Mapping[str, Field]:
    """The arguments of a TypedDict that have a Field, the ones of its base classes first."""
    return {name: hint.__metadata__[0] for name, hint in declared.__annotations__.items() if hasattr(hint, "__metadata__")}


def checked(declared: type, given: Mapping[str, Any], checks: Arguments) -> dict[str, Any]:
    """The value of each argument of `declared` that has a Field."""
    values = {name: value.copy() if value.__class__ in {dict, list} else value for name, value in _defaults(declared).items()}
    for name, field in fields_of(declared).items():
        if name in given:
            values[name] = field.check(checks, name, given[name])
    return values


@cache
def _defaults(declared: type) -> Mapping[str, Any]:
    checks = Arguments("A default", Location(__file__, 0))
    return {name: field.check(checks, name, field.default) for name, field in fields_of(declared).items()}


def anything(_checks: Arguments, _name: str, value: Any) -> Any:
    return value


def optional(check: Check) -> Check:
    """Accept None, and what `check` accepts."""
    return lambda checks, name, value: None if value is None else check(checks, name, value)


def integer(*, least: int | None = None) -> Check:
    return lambda checks, name, value: checks.integer(name, value, least=least)


def duration(*, seconds_allowed: bool = True, zero_allowed: bool = False) -> Check:
    return lambda checks, name, value: checks.duration(name, value, seconds_allowed=seconds_allowed, zero_allowed=zero_allowed)


def choice(allowed: Any) -> Check:
    return lambda checks, name, value: checks.choice(name, value, allowed)


def mapping(checks: Arguments, name: str, value: Any) -> dict[str, object]:
    """A dict; None means an empty one."""
    return checks.mapping(name, value or {})


def one_or_more(checks: Arguments, name: str, value: Any) -> tuple[str, ...]:
    """A str, or a list of them; None stands for none."""
    return tuple(checks.texts(name, [value] if isinstance(value, str) else value or ()))


def params(checks: Arguments, name: str, value: Any) -> dict[str, Param]:
    """Params by name; None stands for none."""
    return authored(checks.mapping(name, value or {}), checks)


boolean: Check = Arguments.boolean
text: Check = Arguments.text
moment: Check = Arguments.moment
limit: Check = Arguments.limit
callbacks: Check = Arguments.callbacks
