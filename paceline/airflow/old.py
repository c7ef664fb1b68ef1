"""Whether a file speaks Airflow 2. Its cron schedules and timedeltas then have Airflow 2's data intervals.

In Airflow 2, the logical date of a scheduled run is the start of its data interval, and in Airflow 3 the time at which it runs.
"""

import ast
import re

#: Modules whose names ended with Airflow 2. Airflow 3 still answers for some of them, with a warning.
MODULES = ("airflow.operators", "airflow.sensors", "airflow.hooks", "airflow.contrib", "airflow.utils.dates", "airflow.datasets")
NEW_MODULES = ("airflow.sdk", "airflow.providers.standard")
ARGUMENTS = frozenset((
    "schedule_interval", "execution_date", "provide_context", "concurrency", "task_concurrency", "default_view", "orientation",
))  # fmt: skip
#: Names of the context and of templates.
_VARIABLES = re.compile(r"\b(execution_date|(prev|next)_execution_date|(prev|next|yesterday|tomorrow)_ds(_nodash)?)\b")


def speaks_airflow_2(text: str | bytes) -> bool:
    """Whether the file uses modules, arguments or dates that only Airflow 2 has, and no module that only Airflow 3 has."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return False
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    modules |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    if any(_is_below(module, NEW_MODULES) for module in modules) or not any(_is_below(module, ("airflow",)) for module in modules):
        return False
    if any(_is_below(module, MODULES) for module in modules):
        return True
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return (
        not ARGUMENTS.isdisjoint({*keywords, *texts})
        or any(_VARIABLES.fullmatch(name) for name in parameters)
        or any("{{" in value and _VARIABLES.search(value) for value in texts)
    )


def _is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)
