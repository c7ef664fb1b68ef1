"""Operators that authors write: what their `__init__` may do with its arguments."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tries import run

from paceline import DAG, BaseOperator, TaskGroup
from paceline.exceptions import DagError
from paceline.operators import BashOperator, EmptyOperator
from scheduler.serialized import authored
from scheduler.settings import Settings


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


#: Attributes that Airflow's operators do not have. An operator of an author or a provider that sets one of them breaks here, so
#: their names must be unusual: KubernetesPodOperator sets callbacks, Slack's operators blocks and text, AWS Lambda's runtime.
NOT_IN_AIRFLOW = {
    "argument_checks", "at", "branches", "columns_taken", "declared", "event_callbacks", "exclusive", "execute_hooks",
    "expand_spec", "link_results", "linked_values", "mapped_group_id", "noticed_events", "outlet_uris", "parent_group_id",
    "put_after", "put_before", "refused", "render", "rendered_fields", "resolved", "setup_blocks", "sla", "template_owner",
    "text_or_result", "worker_runtime", "xcom_pull", "xcom_push",
}  # fmt: skip


def test_operators_have_few_attributes_that_those_of_airflow_have_not() -> None:
    table = json.loads(Path(__file__).with_name("airflow_arguments.json").read_text(encoding="utf-8"))
    with DAG("d", schedule=None):
        own = {name for name in dir(EmptyOperator(task_id="t")) if not name.startswith("_")}

    assert own - set(table["BaseOperator"]["attributes"]) == NOT_IN_AIRFLOW


class Pod(BaseOperator):
    """An operator whose attributes have names that were ours."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.callbacks = self.hooks = self.blocks = self.checks = self.text = self.notify = self.runtime = self.group_id = (
            self.line
        ) = "own"

    def execute(self, context: Any) -> str:
        return str(self.callbacks)


def test_an_operator_may_have_attributes_of_the_usual_names() -> None:
    with DAG("d", schedule=None) as dag:
        with TaskGroup("g"):
            pod = Pod(task_id="t", on_failure_callback=print, pre_execute=lambda context: None)
        pod.as_teardown(setups=EmptyOperator(task_id="up").as_setup())

    settings = Settings()
    stored = authored.from_dag(dag, file="d.py", core=settings.core, scheduler=settings.scheduler).tasks[1]

    assert (stored.runtime, stored.group, stored.notify) == ("python", "g", ("on_failure",))
    assert run(pod)[0] == "own"
