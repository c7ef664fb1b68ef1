"""Objects with template fields: operators and notifiers. Their methods have Airflow's names, for subclasses that override them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scheduler.authoring import templates

if TYPE_CHECKING:
    from jinja2 import Environment

    from scheduler.authoring.graph import Graph


class Templated:
    """An object whose `template_fields` are rendered for each try."""

    template_fields: Sequence[str] = ()
    #: A template field that ends with one of these is the path of a template file.
    template_ext: Sequence[str] = ()
    #: How a page may show a field, by field. Accepted as in Airflow and not used.
    template_fields_renderers: Mapping[str, str] = MappingProxyType({})
    #: The results of the templates of this try, by field.
    rendered_fields: Mapping[str, Any] = MappingProxyType({})
    #: Values that came from other tasks, which are never templates; only for an instance of a mapped task.
    resolved: Sequence[Any] = ()
    dag: Graph[Any] | None = None

    def get_template_env(self, dag: Graph[Any] | None = None) -> Environment:
        """The Jinja environment of the DAG, with its macros, filters and folders."""
        return templates.environment(dag or self.dag)

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

    def _renderer(self, jinja_env: Environment | None) -> templates.Renderer:
        renderer = templates.Renderer(self.dag, self.template_ext, owner=self.template_owner, resolved=self.resolved)
        if jinja_env is not None:
            renderer.environment = jinja_env
        return renderer
