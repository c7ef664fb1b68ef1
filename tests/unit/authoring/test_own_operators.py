"""Operators that authors write: what their `__init__` may do with its arguments."""

from typing import Any

import pytest

from scheduler import DAG, BaseOperator
from scheduler.exceptions import DagError
from scheduler.operators import BashOperator


class Pops(BaseOperator):
    template_fields = ("table",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.table = kwargs.pop("table", "none")
        super().__init__(*args, **kwargs)


class Script(BashOperator):
    """Sets arguments of its base class, and passes the others on."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        folder = kwargs.pop("folder")
        kwargs.setdefault("retries", 4)
        super().__init__(bash_command=f"{folder}/{name}", pool="scripts", **kwargs)


def test_an_operator_may_take_its_arguments_out_of_kwargs() -> None:
    with DAG("d"):
        task: Any = Pops(task_id="t", table="x", retries=2)

    assert (task.table, task.retries) == ("x", 2)


def test_what_is_left_in_kwargs_is_an_unknown_argument() -> None:
    for make in (lambda: Pops(task_id="t", tabel="x"), lambda: Script(task_id="t", name="a", folder="b", retires=1)):
        with DAG("d"), pytest.raises(DagError, match=r"unknown argument '(tabel|retires)'") as error:
            make()
        assert (error.value.file, error.value.line) == (__file__, make.__code__.co_firstlineno)


def test_default_args_do_not_meet_arguments_that_an_operator_gives_itself() -> None:
    with DAG("d", default_args={"pool": "others", "retries": 1, "env": {"A": "1"}, "queue": "q", "name": "n"}):
        task: Any = Script(task_id="t", folder="f")  # type: ignore[call-arg]

    assert (task.pool, task.retries, task.env, task.queue, task.bash_command) == ("scripts", 4, {"A": "1"}, "q", "f/n")


def test_a_mapped_operator_may_take_its_arguments_out_of_kwargs() -> None:
    with DAG("d"):
        mapped = Pops.partial(task_id="t", retries=1).expand(table=["a", "b"])
        with pytest.raises(DagError, match="unknown argument 'tabel' in expand"):
            Pops.partial(task_id="u").expand(tabel=["a"])

    one: Any = mapped.unmap({}, 1)
    assert (one.table, one.retries) == ("b", 1)
