"""Each argument of Airflow's operators, sensors, triggers, decorators, DAGs and methods: the same here, other, or refused.

airflow_arguments.json lists them, as tests/differential/arguments.py reads them in Airflow.
"""

import inspect
import json
import re
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline import DAG
from paceline.airflow import names
from paceline.authoring import task_instance
from paceline.authoring.arguments import REFUSED_FOR_DAGS, REFUSED_FOR_TASKS
from paceline.authoring.fields import fields_of
from paceline.authoring.operator import OperatorPartial
from paceline.authoring.xcom_arg import XComArg
from paceline.decorators.task_decorator import _KINDS
from paceline.exceptions import DagError
from paceline.operators import EmptyOperator, TriggerDagRunOperator
from workers.task.context import TaskInstance

HERE = Path(__file__)
TABLE: dict[str, dict[str, Any]] = json.loads(HERE.with_name("airflow_arguments.json").read_text(encoding="utf-8"))
DOCS = HERE.parents[3] / "docs" / "reference" / "airflow-parity.md"
ARGUMENTS = [(owner, name) for owner, entry in TABLE.items() for name in entry["arguments"]]
#: The rows of the table "Arguments with another meaning".
ROWS = re.findall(r"^\| `([^`]+)` \| ((?:`[^`]+`(?:, )?)+) \| .+ \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
DOCUMENTED = {(owner, name) for owner, cell in ROWS for name in re.findall(r"`([^`]+)`", cell)}
#: They have other names here, or do not exist: Python's error names the argument.
REFUSED_BY_PYTHON = {
    ("CronTriggerTimetable", "expression"),
    ("CronDataIntervalTimetable", "expression"),
    ("DateTimeTrigger", "target_time"),
    ("FileTrigger", "context"),
    ("FileDeleteTrigger", "context"),
    ("Asset", "access_control"),
    ("BaseOperator.get_flat_relatives()", "depth"),
    ("XComArg.map()", "f"),
    *(
        (f"BaseOperator.set_{side}()", name)
        for side in ("upstream", "downstream")
        for name in ("edge_modifier", "task_or_task_list")
    ),
    ("Variable.keys()", "prefix"),
}
#: They have defaults that settings of both may change, or another value with the same meaning.
SAME_DEFAULT = {
    *(("BaseOperator", name) for name in ("retries", "retry_delay", "queue", "dag", "default_args", "task_group", "task_id")),
    *((owner, "timeout") for owner, entry in TABLE.items() if "timeout" in entry["arguments"]),
    ("Asset", "group"),
    ("Asset", "watchers"),
    ("HITLEntryOperator", "options"),
    ("DateTimeTrigger", "moment"),
}
ALSO_TEMPLATES = {(owner, "env_vars") for owner in TABLE if owner.endswith("Operator") and "env_vars" in TABLE[owner]["arguments"]}
NO_TEMPLATES = {"index_urls_from_connection_ids"}
REQUIRED, OTHER, MISSING = "<required>", "<other>", "<missing>"


def counterpart(owner: str) -> Any:
    """Paceline's class or function under Airflow's name; None if an import of it is an error."""
    if owner.startswith("@task."):
        return _KINDS.get(owner.removeprefix("@task."))
    if owner.startswith("@"):
        return {"@dag": paceline.DAG, "@task_group": paceline.TaskGroup}[owner]
    name, _, method = owner.removesuffix("()").partition(".")
    if owner.endswith("()"):
        kinds: dict[str, Any] = {"TaskInstance": TaskInstance, "XComArg": XComArg, "OperatorPartial": OperatorPartial}
        kind = kinds.get(name) or getattr(paceline, name)
        return getattr(kind, method, None) if method else kind
    ours = names.find(TABLE[owner]["module"], name)
    return None if ours is None else ours.get()


def default_of(kind: Any, name: str) -> Any:
    """The default of an argument here; MISSING if there is no such argument."""
    for base in kind.__mro__ if isinstance(kind, type) and hasattr(kind, "declared") else ():
        init, declared = base.__dict__.get("__init__"), base.__dict__.get("declared")
        found = None if init is None else inspect.signature(inspect.unwrap(init)).parameters.get(name)
        if found is not None:
            return found.default
        if declared is not None and name in declared.__annotations__:
            return fields_of(declared)[name].default if name in fields_of(declared) else OTHER
    found = inspect.signature(kind).parameters.get(name)
    return MISSING if found is None else found.default


def plain(default: Any) -> Any:
    if default is inspect.Parameter.empty:
        return REQUIRED
    value = default.value if isinstance(default, Enum) else default
    return value.total_seconds() if isinstance(value, timedelta) else value


def takes_all(kind: Any) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(kind).parameters.values())


def is_same(owner: str, name: str) -> bool:
    ours, expected = plain(default_of(counterpart(owner), name)), TABLE[owner]["arguments"][name]
    return ours != MISSING and (OTHER in {ours, expected} or ours == expected or (owner, name) in SAME_DEFAULT)


def refusal(owner: str, name: str) -> str | None:
    """Why an argument is refused; None if it is accepted."""
    kind = counterpart(owner)
    if kind is None:
        method = owner.removesuffix("()").partition(".")[2]
        return task_instance.ADVICE.get(method) if method else names.reason(TABLE[owner]["module"], owner)
    if owner in {"DAG", "@dag"}:
        return REFUSED_FOR_DAGS.get(name)
    if owner == "BaseOperator":
        return REFUSED_FOR_TASKS.get(name)
    return getattr(kind, "refused", {}).get(name)


@pytest.mark.parametrize(("owner", "name"), ARGUMENTS)
def test_an_argument_is_the_same_or_other_as_documented_or_refused(owner: str, name: str) -> None:
    if (owner, name) in REFUSED_BY_PYTHON:
        assert counterpart(owner) is None or default_of(counterpart(owner), name) == MISSING
    elif (why := refusal(owner, name)) is not None:
        assert len(why) > 20
    elif (owner, name) in DOCUMENTED:
        assert default_of(counterpart(owner), name) != MISSING or takes_all(counterpart(owner))
    else:
        assert is_same(owner, name)


@pytest.mark.parametrize("owner", [owner for owner, entry in TABLE.items() if not owner.startswith("@") and entry["arguments"]])
def test_template_fields_are_those_of_airflow(owner: str) -> None:
    kind, entry = counterpart(owner), TABLE[owner]
    if kind is None or owner.endswith("()"):
        return
    more = {name for of, name in ALSO_TEMPLATES if of == owner}
    assert set(getattr(kind, "template_fields", ())) == (set(entry["template_fields"]) | more) - set(NO_TEMPLATES)
    assert set(getattr(kind, "template_ext", ())) == set(entry["template_ext"])


def test_the_lists_name_arguments_of_airflow() -> None:
    known = set(ARGUMENTS)
    assert DOCUMENTED and known >= {*DOCUMENTED, *REFUSED_BY_PYTHON, *SAME_DEFAULT, *ALSO_TEMPLATES}


@pytest.mark.parametrize("name", REFUSED_FOR_TASKS)
def test_a_refused_argument_of_tasks_says_what_to_do(name: str) -> None:
    with DAG("d", schedule=None), pytest.raises(DagError, match=re.escape(f"{name!r} is not supported: {REFUSED_FOR_TASKS[name]}")):
        EmptyOperator(task_id="t", **{name: {"a": 1}})


@pytest.mark.parametrize("name", TriggerDagRunOperator.refused)
def test_a_refused_argument_of_one_operator_says_what_to_do(name: str) -> None:
    with DAG("d", schedule=None):
        for make in (TriggerDagRunOperator, TriggerDagRunOperator.partial):
            with pytest.raises(DagError, match=f"{name!r} is not supported: "):
                make(task_id=f"t{name}", trigger_dag_id="c", **{name: "x"})


@pytest.mark.parametrize("name", REFUSED_FOR_DAGS)
def test_a_refused_argument_of_dags_says_what_to_do(name: str) -> None:
    with pytest.raises(DagError, match=f"{name!r} is not supported: "):
        DAG("d", schedule=None, **{name: {"a": 1}})
