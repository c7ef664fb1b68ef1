"""The columns that the tasks of a DAG take of a result. A task writes no column of a DataFrame that no task takes.

It prunes only what the DAG file shows to be unread: each task that takes the DataFrame names its columns, and no text of a task
pulls it. Any other reader of a column that was left out gets an error, see DataFrameReference.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from types import CodeType

from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.xcom import RETURN_KEY
from paceline.authoring.xcom_arg import Step, XComArg, entries_in, results_in


def taken(producer: AbstractOperator, path: tuple[Step, ...]) -> Collection[str] | None:
    """In lower case, the columns that are taken of the DataFrame at `path` in the result of `producer`.

    None for all of them: a task may take the whole, or none takes it.
    """
    names: set[str] = set()
    if producer.dag is None:
        return None
    for task in producer.downstream_list:
        for result in results_in(task.linked_values()):
            if producer.task_id in {leaf.task_id for leaf in result.leaves}:
                columns = _columns(task, result, path)
                if columns is None:
                    return None
                names |= {name.lower() for name in columns}
    pulled = names and any(_may_pull(task, producer.task_id) for task in producer.dag.task_dict.values())
    return None if pulled or not names else names


def _columns(task: AbstractOperator, result: XComArg, path: tuple[Step, ...]) -> Collection[str] | None:
    """The columns that a task takes of the DataFrame at `path` with one of its arguments; None for all of them."""
    if type(result) is not XComArg:  # part of a combination, or mapped over
        return None
    steps = (*(() if result.key == RETURN_KEY else (result.key,)), *result.path)
    columns = steps[-1] if steps and isinstance(steps[-1], tuple) else None
    steps = steps if columns is None else steps[:-1]
    if any(step != own and not _from_the_end(step) for step, own in zip(steps, path, strict=False)):
        return ()
    if len(steps) != len(path):
        return None
    return task.columns_taken(result) if columns is None else columns


def _from_the_end(step: Step) -> bool:
    return isinstance(step, int) and step < 0


def _may_pull(task: AbstractOperator, task_id: str) -> bool:
    """Whether a template or the function of a task has `xcom_pull` and the ID of the other task."""
    function = getattr(task, "given", vars(task)).get("python_callable")
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    texts = [one for one in entries_in(task.linked_values()) if isinstance(one, str)]
    if code is not None:
        texts.append(" ".join(_words(code)))
    return any("xcom_pull" in text and task_id in text for text in texts)


def _words(code: CodeType) -> Iterator[str]:
    """The names and literals in a function and in those inside it."""
    yield from code.co_names
    for one in code.co_consts:
        yield from _words(one) if isinstance(one, CodeType) else [str(one)]
