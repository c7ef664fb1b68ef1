"""Notifiers: callbacks as objects, with templates in their fields."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from paceline.authoring.templates import Templated

if TYPE_CHECKING:
    from paceline.authoring.typed_context import Context


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
