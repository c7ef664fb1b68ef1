"""Prints the arguments of Airflow's operators, sensors, triggers, decorators, DAGs and methods as JSON. It runs in Airflow."""

# ruff: noqa: E402
import datetime
import enum
import importlib
import inspect
import json
import logging
import pkgutil
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

from airflow import sdk
from airflow.sdk.definitions.mappedoperator import OperatorPartial
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger

REQUIRED, OTHER = "<required>", "<other>"
#: The arguments that the decorators fill in themselves.
DECORATORS = {"branch_python": "branch", "python_virtualenv": "virtualenv"}
OF_DECORATORS = {"python_callable", "op_args", "op_kwargs", "task_id", "bash_command", "kwargs_to_upstream"}


def default(parameter):
    value = parameter.default
    if value is parameter.empty:
        return REQUIRED
    if isinstance(value, enum.Enum) and not type(value).__module__.startswith("attr"):
        value = value.value
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value if value is None or isinstance(value, (bool, int, float, str)) else OTHER


def of_call(function):
    parameters = inspect.signature(inspect.unwrap(function)).parameters.values()
    return {
        p.name: default(p)
        for p in parameters
        if p.kind in {p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD} and p.name not in {"self", "cls"}
    }


def of_class(kind):
    found = {}
    for base in kind.__mro__:
        init = base.__dict__.get("__init__")
        if init is None or (base is sdk.BaseOperator and kind is not sdk.BaseOperator):
            continue
        found = of_call(init) | found
        if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(inspect.unwrap(init)).parameters.values()):
            break
    shared = of_call(sdk.BaseOperator.__init__) if issubclass(kind, sdk.BaseOperator) and kind is not sdk.BaseOperator else {}
    return {name: value for name, value in found.items() if name not in shared}


def entry(kind):
    fields = sorted(set(getattr(kind, "template_fields", ())) - set(getattr(sdk.BaseOperator, "template_fields", ())))
    return {
        "module": kind.__module__,
        "arguments": of_class(kind),
        "template_fields": fields,
        "template_ext": list(getattr(kind, "template_ext", ())),
    }


table = {}
for part in ("operators", "sensors", "triggers"):
    package = importlib.import_module(f"airflow.providers.standard.{part}")
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for name, kind in vars(module).items():
            is_public = isinstance(kind, type) and kind.__module__ == module.__name__ and not name.startswith("_")
            if is_public and issubclass(kind, (sdk.BaseOperator, BaseTrigger)):
                table[name] = entry(kind)
for name in (
    "BaseOperator",
    "BaseSensorOperator",
    "DAG",
    "TaskGroup",
    "Asset",
    "AssetAlias",
    "AssetWatcher",
    "DeadlineAlert",
    "Param",
    "CronTriggerTimetable",
    "CronDataIntervalTimetable",
    "DeltaTriggerTimetable",
    "DeltaDataIntervalTimetable",
    "MultipleCronTriggerTimetable",
    "EventsTimetable",
    "ExceptionRetryPolicy",
    "RetryRule",
    "Metadata",
):
    table[name] = entry(getattr(sdk, name)) | {"module": "airflow.sdk"}
package = importlib.import_module("airflow.providers.standard.decorators")
for found in pkgutil.iter_modules(package.__path__):
    module = importlib.import_module(f"{package.__name__}.{found.name}")
    for name, kind in vars(module).items():
        if isinstance(kind, type) and kind.__module__ == module.__name__ and "Decorated" in name:
            arguments = {argument: value for argument, value in of_class(kind).items() if argument not in OF_DECORATORS}
            decorator = DECORATORS.get(found.name, found.name)
            table[f"@task.{decorator}"] = {
                "module": module.__name__,
                "arguments": arguments,
                "template_fields": [],
                "template_ext": [],
            }
table["@task_group"] = {**entry(sdk.TaskGroup), "module": "airflow.sdk"}
table["@dag"] = {**entry(sdk.DAG), "module": "airflow.sdk"}
METHODS = {
    "TaskInstance": (
        RuntimeTaskInstance,
        [
            n
            for n, m in vars(RuntimeTaskInstance).items()
            if not n.startswith("_") and (inspect.isroutine(m) or isinstance(m, staticmethod)) and not n.startswith("model_")
        ],
    ),
    "Variable": (sdk.Variable, ["get", "set", "delete", "keys"]),
    "Connection": (sdk.Connection, ["get"]),
    "BaseHook": (sdk.BaseHook, ["get_connection", "get_hook"]),
    "XComArg": (sdk.XComArg, ["map", "zip", "concat", "as_setup", "as_teardown"]),
    "OperatorPartial": (OperatorPartial, ["expand", "expand_kwargs"]),
    "BaseOperator": (
        sdk.BaseOperator,
        [
            "defer",
            "pre_execute",
            "post_execute",
            "execute",
            "render_template_fields",
            "as_setup",
            "as_teardown",
            "set_upstream",
            "set_downstream",
            "xcom_push",
            "xcom_pull",
            "get_flat_relatives",
            "get_direct_relatives",
        ],
    ),
}
for owner, (kind, names) in METHODS.items():
    for name in names:
        if hasattr(kind, name):
            table[f"{owner}.{name}()"] = {
                "module": "airflow.sdk",
                "arguments": of_call(getattr(kind, name)),
                "template_fields": [],
                "template_ext": [],
            }
for name in ("chain", "chain_linear", "cross_downstream", "get_current_context", "get_parsing_context", "mask_secret", "literal"):
    if hasattr(sdk, name):
        table[f"{name}()"] = {
            "module": "airflow.sdk",
            "arguments": of_call(getattr(sdk, name)),
            "template_fields": [],
            "template_ext": [],
        }
with sdk.DAG("d", schedule=None):
    task = sdk.BaseOperator(task_id="t")
table["BaseOperator"]["attributes"] = sorted(name for name in dir(task) if not name.startswith("_"))
print(json.dumps(table, sort_keys=True))
