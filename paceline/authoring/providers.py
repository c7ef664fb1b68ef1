"""The hooks of installed packages for Airflow, by the type of a connection."""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from paceline.exceptions import NotFoundError

#: The entry points of packages for Airflow. Each is a function that returns the description of the package.
PROVIDERS = "apache_airflow_provider"


def hook_of(connection: Any, hook_params: dict[str, Any] | None = None) -> Any:
    """A hook for a connection, of the class that an installed package for Airflow names for its type.

    `hook_params` are further arguments of the class. NotFoundError if no package names one.
    """
    hook_class = _classes().get(connection.conn_type)
    if hook_class is None:
        raise NotFoundError(
            f"No installed package has a hook for connections of the type {connection.conn_type!r} (connection "
            f"{connection.conn_id!r}); install one on the workers, or create the client yourself from Connection.get()."
        )
    path, argument = hook_class
    hook = pkgutil.resolve_name(path)
    # Only this hook is imported: others may need packages that are not installed.
    return hook(**{argument or _argument(path): connection.conn_id, **(hook_params or {})})


def task_decorator(name: str) -> Any:
    """The function of an installed package for `@task.<name>`; None if no package has one, or `airflow` cannot be imported."""
    for point in entry_points(group=PROVIDERS):
        try:
            about: dict[str, Any] = point.load()()
        except ImportError:
            continue
        for decorator in about.get("task-decorators", ()):
            if decorator["name"] == name:
                module, _, function = decorator["class-name"].rpartition(".")
                return getattr(importlib.import_module(module), function)
    return None


@cache
def _classes() -> dict[str, tuple[str, str]]:
    """The import path of the hook and the name of its argument for the connection, by the type of connections."""
    classes = {}
    for point in entry_points(group=PROVIDERS):
        about: dict[str, Any] = point.load()()
        for kind in about.get("connection-types", ()):
            classes[kind["connection-type"]] = (kind["hook-class-name"], kind.get("conn-id-argument") or "")
    return classes


def _argument(path: str) -> str:
    """The name of the argument that takes the connection: an attribute of the class, as in Airflow."""
    try:
        return str(pkgutil.resolve_name(path).conn_name_attr)
    except (ImportError, AttributeError):
        return "conn_id"
