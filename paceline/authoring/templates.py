"""Jinja templates in the fields of operators and notifiers, rendered for one try. An error names the field and the name."""

from __future__ import annotations

import copy
import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from paceline.authoring.arguments import near
from paceline.authoring.graph import Graph
from paceline.authoring.params import DagParam
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import PacelineError, TemplateError

if TYPE_CHECKING:
    from jinja2 import Environment

    from paceline.authoring.task_instance import Context


_MARKS = ("{{", "{%", "{#")
_UNDEFINED = re.compile(r"'(\w+)' is undefined")
#: The usual formats of a datetime, by the name of the filter and of the context variable with the logical date.
DATE_FORMATS: Mapping[str, Callable[[datetime], str]] = {
    "ds": methodcaller("strftime", "%Y-%m-%d"),
    "ds_nodash": methodcaller("strftime", "%Y%m%d"),
    "ts": datetime.isoformat,
    "ts_nodash": methodcaller("strftime", "%Y%m%dT%H%M%S"),
}


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is not a template, see `literal`."""

    value: Any

    def resolve(self, _context: Mapping[str, Any]) -> Any:
        return self.value


def literal(value: Any) -> Any:
    """A value that a template field keeps unchanged: `bash_command=literal("echo {{ this }}")`."""
    return Literal(value)


class Renderer:
    """Renders the fields of one task of `dag`. A str that ends with one of `extensions` is the path of a template file."""

    def __init__(
        self,
        dag: Graph[Any] | None,
        extensions: Sequence[str] = (),
        *,
        owner: str = "The task",
        resolved: Sequence[Any] = (),
        native: bool | None = None,
    ) -> None:
        self._dag = dag
        self._resolved = {id(value) for value in resolved}
        self._extensions = tuple(extensions)
        self._owner = owner
        self._native = is_native(dag) if native is None else native
        #: The results of templates by field, for people.
        self.rendered: dict[str, Any] = {}

    def render(self, value: Any, context: Mapping[str, Any], field: str) -> Any:
        """`value` with every template and task result replaced, at any depth of lists, tuples, sets and dicts.

        TemplateError names the field.
        """
        return value if id(value) in self._resolved else self._render(value, context, field)

    def _render(self, value: Any, context: Mapping[str, Any], field: str) -> Any:
        if isinstance(value, str):
            return self._render_text(value, context, field)
        if isinstance(value, XComArg | DagParam | Literal):
            return value.resolve(context)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*self._render_items(value, context, field))
        if type(value) in {list, tuple, set, frozenset}:
            return type(value)(self._render_items(value, context, field))
        if isinstance(value, dict):
            return {key: self.render(item, context, f"{field}[{key!r}]") for key, item in value.items()}
        return value

    @functools.cached_property
    def environment(self) -> Environment:
        """The Jinja environment, created only when a field needs it."""
        return environment(self._dag, native=self._native)

    def _render_items(self, items: Any, context: Mapping[str, Any], field: str) -> list[Any]:
        return [self.render(item, context, f"{field}[{index}]") for index, item in enumerate(items)]

    def _render_text(self, text: str, context: Mapping[str, Any], field: str) -> Any:
        is_file = bool(self._extensions) and text.endswith(self._extensions)
        if not is_file and not self._native and not any(mark in text for mark in _MARKS):
            return text.removesuffix("\n")  # as Jinja does
        from jinja2 import StrictUndefined, TemplateNotFound, UndefinedError

        try:
            template = self.environment.get_template(text) if is_file else self.environment.from_string(text)
            rendered = template.render(context)
            # A native template that is only an undefined name returns that object instead of raising.
            self.rendered[field] = str(rendered) if isinstance(rendered, StrictUndefined) else rendered
            return self.rendered[field]
        except PacelineError:
            raise
        except UndefinedError as error:
            raise self._error(field, self._about_undefined(str(error.message), context)) from None
        except TemplateNotFound as error:
            folders = ", ".join(folders_of(self._dag))
            raise self._error(
                field,
                f"the template file {error.name!r} is in none of {folders}; if it is not a file name, put a space at its end.",
            ) from None
        except Exception as error:
            raise self._error(field, f"the template cannot be rendered: {type(error).__name__}: {error}.") from error

    def _about_undefined(self, message: str, context: Mapping[str, Any]) -> str:
        name = _UNDEFINED.fullmatch(message)
        return message + (near(name[1], [*context, *self.environment.globals]) if name else ".")

    def _error(self, field: str, complaint: str) -> TemplateError:
        return TemplateError(f"{self._owner}, field {field}: {complaint}")


def is_native(dag: Graph[Any] | None) -> bool:
    """Whether the templates of `dag` give native Python objects."""
    return dag is not None and dag.render_template_as_native_obj


def environment(dag: Graph[Any] | None, *, native: bool) -> Environment:
    """A Jinja environment with the macros, filters and folders of `dag`, in which an undefined name is an error.

    It is sandboxed: templates cannot access names that start with an underscore. So they reach neither the connection and settings
    behind `ti` nor the globals of a function.
    """
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.nativetypes import NativeEnvironment
    from jinja2.sandbox import SandboxedEnvironment

    class SandboxedNative(SandboxedEnvironment, NativeEnvironment):
        """Sandboxed, with native Python objects as results."""

    options: dict[str, Any] = {
        "undefined": StrictUndefined,
        "extensions": ["jinja2.ext.do"],
        "cache_size": 0,
        "loader": FileSystemLoader(folders_of(dag)),
    }
    if dag is not None:
        options |= {"undefined": dag.template_undefined or StrictUndefined, **dag.jinja_environment_kwargs}
    jinja = (SandboxedNative if native else SandboxedEnvironment)(**options)
    jinja.filters |= DATE_FORMATS
    jinja.filters["ts_nodash_with_tz"] = lambda moment: moment.isoformat().replace("-", "").replace(":", "")
    if dag is not None:
        jinja.globals |= dag.user_defined_macros
        jinja.filters |= dag.user_defined_filters
    return jinja


def folders_of(dag: Graph[Any] | None) -> list[str]:
    """The folders that are searched for template files: that of the DAG file, then template_searchpath."""
    return [str(Path(dag.fileloc).parent), *dag.template_searchpath] if dag is not None else []


class Templated:
    """An object whose `template_fields` are rendered for each try. Its methods have Airflow's names, for subclasses."""

    template_fields: Sequence[str] = ()
    #: A template field that ends with one of these is the path of a template file.
    template_ext: Sequence[str] = ()
    #: The format in which a page may show a field, by field. Accepted as in Airflow and not used.
    template_fields_renderers: Mapping[str, str] = MappingProxyType({})
    #: The results of the templates of this try, by field.
    rendered_fields: Mapping[str, Any] = MappingProxyType({})
    #: Values that came from other tasks, which are never templates; only for an instance of a mapped task.
    resolved: Sequence[Any] = ()
    #: Whether templates give native Python objects; None takes that of the DAG.
    render_template_as_native_obj: bool | None = None
    dag: Graph[Any] | None = None

    def get_template_env(self, dag: Graph[Any] | None = None) -> Environment:
        """The Jinja environment of the DAG, with its macros, filters and folders."""
        return self._renderer(None).environment if dag is None else environment(dag, native=is_native(dag))

    def render_template(
        self, content: Any, context: Mapping[str, Any], jinja_env: Environment | None = None, seen_oids: set[int] | None = None
    ) -> Any:
        """`content` with every template and task result in it replaced, at any depth. TemplateError if that fails."""
        return self._renderer(jinja_env).render(content, context, "content")

    def render_template_fields(self, context: Mapping[str, Any], jinja_env: Environment | None = None) -> None:
        """Replace the template fields of this object by their values. TemplateError names the field."""
        renderer = self._renderer(jinja_env)
        for field in self.template_fields:
            setattr(self, field, renderer.render(getattr(self, field), context, field))
        self.rendered_fields = renderer.rendered

    def prepare_template(self) -> None:
        """Called before the template fields are rendered. Subclasses may change them here."""

    def resolve_template_files(self) -> None:
        """Does nothing: template files are read when a field is rendered."""

    @property
    def template_owner(self) -> str:
        """The subject of an error message about a template."""
        return type(self).__name__

    def _renderer(self, jinja_env: Environment | None) -> Renderer:
        native = self.render_template_as_native_obj
        renderer = Renderer(self.dag, self.template_ext, owner=self.template_owner, resolved=self.resolved, native=native)
        if jinja_env is not None:
            renderer.environment = jinja_env
        return renderer


class BaseNotifier(Templated):
    """A callback for `on_failure_callback` and similar arguments. Subclasses implement `notify`.

    `template_fields` are rendered before each call, on a copy of the object.
    """

    def __init__(self, context: Mapping[str, Any] | None = None) -> None:
        self.context = dict(context or {})

    @property
    def log(self) -> logging.Logger:
        """A logger with the name of the class."""
        return logging.getLogger(f"{type(self).__module__}.{type(self).__qualname__}")

    def notify(self, context: Context) -> None:
        """Send the notification. `context` is that of the callback."""
        raise NotImplementedError(f"{type(self).__name__} has no notify().")

    async def async_notify(self, context: Mapping[str, Any]) -> None:
        """Send the notification from a coroutine. Airflow's triggerer calls it; here `notify` is called."""
        raise NotImplementedError(f"{type(self).__name__} has no async_notify().")

    def __call__(self, *args: Any) -> None:
        """Render the template fields and call `notify`. An sla_miss_callback gets several values in place of a context."""
        names = ("dag", "task_list", "blocking_task_list", "slas", "blocking_tis")
        context = dict(args[0]) if len(args) == 1 else dict(zip(names, args, strict=False))
        sent = copy.copy(self)
        sent.dag = context.get("dag")
        context.update((field, getattr(self, field)) for field in self.template_fields)
        sent.render_template_fields(context)
        sent.notify(cast("Context", context))
