"""Tasks that are plain Python, and the part that every kind of task shares: render, then execute."""

from scheduler.authoring import context
from scheduler.authoring.operator import Operator


def run(operator: Operator, values: context.Context) -> object:
    """Render the template fields, then execute; `get_current_context()` works inside both."""
    with context.current(values):
        rendered = operator.render(values)
        return rendered.execute({**values, "task": rendered})
