"""The arguments of operators and DAGs: their declaration, names and defaults, and the creation of an operator from them.

The name, type, default and check of an argument are one line of a TypedDict.

    class Some(TypedDict, total=False):
        retries: Annotated[int, Field(0, integer(least=0))]

Editors then show the keyword arguments of a function with `**given: Unpack[Some]`, and `checked` returns their values.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from types import CodeType
from typing import Any

from paceline.authoring import source
from paceline.authoring.arguments import ACCEPTED, RENAMED, Arguments
from paceline.authoring.graph import Graph, Group
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


#: The arguments of tasks in RENAMED; the others are arguments of DAGs.
_RENAMED = {name: RENAMED[name] for name in ("task_concurrency", "execution_date")}


@cache
def parameters(kind: type) -> tuple[str, ...]:
    """Every argument of `kind`: its own and, if it takes **kwargs, those of its base classes."""
    names: dict[str, None] = {}
    for base in kind.__mro__:
        own = base.__dict__.get("__init__")
        signature = () if own is None else inspect.signature(own).parameters.values()
        names |= {p.name: None for p in signature if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD}}
        if "declared" in base.__dict__:  # declared in a TypedDict, and passed as **kwargs
            names |= dict.fromkeys(base.__dict__["declared"].__annotations__)
        if own is not None and not any(p.kind is p.VAR_KEYWORD for p in signature):
            break
    names.pop("self", None)
    return tuple(names)


@cache
def is_authored(kind: type) -> bool:
    """Whether an author's `__init__` takes **kwargs: only what is left of them at the base class may be unknown."""
    return any(code.co_flags & inspect.CO_VARKEYWORDS for code in _authored(kind))


@cache
def taken_from_kwargs(kind: type) -> frozenset[str]:
    """The names that an author's `__init__` with **kwargs mentions, such as "table" in `kwargs.pop("table")`."""
    codes = [code for code in _authored(kind) if code.co_flags & inspect.CO_VARKEYWORDS]
    return frozenset(name for code in codes for name in code.co_consts if isinstance(name, str))


def _authored(kind: type) -> list[CodeType]:
    """The code of each `__init__` of `kind` that is not Paceline's."""
    own = [base.__dict__["__init__"] for base in kind.__mro__ if "__init__" in base.__dict__]
    codes = [getattr(inspect.unwrap(init), "__code__", None) for init in own]
    return [code for code in codes if code is not None and not source.is_ours(code)]


def completed(init: Callable[..., None]) -> Callable[..., None]:
    """`init`, with the default_args of the task for each of its own parameters that is not given.

    As in Airflow, an `__init__` sees in its **kwargs what the DAG file gave: `super().__init__(retries=5, **kwargs)` works
    although default_args has retries, too.
    """
    parameters = list(inspect.signature(init).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD}]

    @wraps(init)
    def with_defaults(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in names[len(args) :]:
            if name not in kwargs and name in self._default_args:
                kwargs[name] = self._default_args[name]
        init(self, *args, **kwargs)

    return with_defaults


def construct(kind: type, at: source.Location, arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Any:
    """Create an operator without adding it to a DAG. `defaults` are the default_args that apply to it."""
    new: Any = kind
    task = new.__new__(new)
    task.at = at
    task._default_args = defaults or {}
    task.__init__(**arguments)
    return task


@cache
def required(kind: type) -> tuple[str, ...]:
    own = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    return tuple(p.name for p in own if p.default is p.empty and p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD})


def with_defaults(
    kind: type, kwargs: Mapping[str, Any], *, dag: Graph[Any] | None, group: Group | None, checks: Arguments
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`kwargs`, and what applies beside them: the default_args of the task, else of its groups, else of its DAG."""
    defaults = (dict(dag.default_args) if dag is not None else {}) | (group.default_args if group is not None else {})
    own = kwargs.get("default_args")
    if own is not None:
        defaults |= checks.mapping("default_args", own)
    known = parameters(kind)
    if ACCEPTED:  # in unchanged files for Airflow 2
        renamed = {old: new for old, new in _RENAMED.items() if old not in known and new in known}
        defaults, kwargs = ({renamed.get(name, name): value for name, value in each.items()} for each in (defaults, kwargs))
    return dict(kwargs), {name: value for name, value in defaults.items() if name != "task_id"}
