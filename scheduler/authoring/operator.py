"""The base of every operator: a task that can also be mapped."""

from __future__ import annotations

from typing import Any

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.mapping import OperatorPartial


class Operator(AbstractOperator):
    """One task of a DAG. Subclasses write `execute`, list `template_fields`, and pass **kwargs on for the common arguments."""

    @classmethod
    def partial(cls, **given: Any) -> OperatorPartial:
        """The arguments that all instances of a mapped task share; `.expand(...)` adds those that differ."""
        return OperatorPartial(cls, given)


BaseOperator = Operator
