"""The import hook for unchanged Airflow files: `airflow` and its modules, with our classes in them; and whether a file is of
Airflow 2.
"""

import ast
import importlib
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from paceline.airflow import names
from paceline.authoring import arguments
from paceline.exceptions import DagError, SettingsError

#: Modules whose names ended with Airflow 2. Airflow 3 still answers for some of them, with a warning.
OLD_MODULES = (
    "airflow.operators",
    "airflow.sensors",
    "airflow.hooks",
    "airflow.contrib",
    "airflow.utils.dates",
    "airflow.datasets",
)
NEW_MODULES = ("airflow.sdk", "airflow.providers.standard")
OLD_ARGUMENTS = frozenset((
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
    if any(_is_below(module, OLD_MODULES) for module in modules):
        return True
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return (
        not OLD_ARGUMENTS.isdisjoint({*keywords, *texts})
        or any(_VARIABLES.fullmatch(name) for name in parameters)
        or any("{{" in value and _VARIABLES.search(value) for value in texts)
    )


def _is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


ROOT = "airflow"
#: The versions that the modules of the hook report, which provider packages compare.
VERSIONS = {ROOT: "3.3.2", "airflow.sdk": "1.3.2"}


class AirflowInstalledError(SettingsError, DagError):
    """Apache Airflow is installed, and the import hook would hide it."""


def install() -> None:
    """Answer imports of Airflow's modules in this process from now on. AirflowInstalledError if Airflow is installed here."""
    if is_installed():
        return
    if (place := airflow_folder()) is not None:
        raise AirflowInstalledError(
            f"Apache Airflow is installed in {place}, and core.airflow_imports would hide it: uninstall Airflow from this"
            " environment, or set core.airflow_imports to false."
        )
    # Before the finder of files: a folder `airflow` in the DAGs folder or of a provider package must not be found first.
    sys.meta_path.insert(0, Finder())
    arguments.ACCEPTED.update(arguments.NO_EFFECT)


def remove() -> None:
    """Undo `install`, and remove the modules of the hook."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    arguments.ACCEPTED.clear()
    for name in [name for name, module in sys.modules.items() if isinstance(module, AirflowModule)]:
        del sys.modules[name]


def is_installed() -> bool:
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def airflow_folder() -> str | None:
    """The folder of the installed Apache Airflow; None if there is none. Provider packages alone have no airflow/__init__.py."""
    if isinstance(sys.modules.get(ROOT), AirflowModule):
        return None
    spec = PathFinder.find_spec(ROOT)
    return None if spec is None or spec.origin is None else spec.origin.removesuffix("/__init__.py")


class AirflowModule(ModuleType):
    """A module of Airflow: its attributes are Paceline's objects, and are looked up on first use."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [each for each, ours in names.names_of(self.__name__) if ours] if self.__name__ in names.MODULES else []
        if not name.startswith("__") and (ours := names.unchanged(self.__name__, name)) is not None:
            value = ours.get()
            setattr(self, name, value)
            return value
        if names.is_known(f"{self.__name__}.{name}"):
            # As in Airflow 2, `import airflow` is enough for airflow.utils.dates.
            return importlib.import_module(f"{self.__name__}.{name}")
        # Python turns this into an ImportError, which a file may catch; scheduler/dagfiles/problem.py adds the reason to it.
        raise AttributeError(f"{self.__name__} has no {name!r} here. {names.reason(self.__name__, name)}")


class Finder(MetaPathFinder):
    """Finds the modules of the table. All others below `airflow` belong to installed provider packages."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        if not names.is_known(fullname) or self._is_installed(fullname, path):
            return None
        spec = ModuleSpec(fullname, AirflowLoader(), is_package=fullname in names.PACKAGES)
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.extend(_folders(fullname, path))
        return spec

    @staticmethod
    def _is_installed(fullname: str, path: Sequence[str] | None) -> bool:
        """Whether this is a module that counts as it is installed: that of provider packages for both versions of Airflow."""
        if not fullname.startswith(names.COMPAT):
            return False
        spec = PathFinder.find_spec(fullname, path)
        return spec is not None and spec.origin is not None


class AirflowLoader(Loader):
    """Makes the modules that Finder finds."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AirflowModule(spec.name, f"Paceline's counterpart of {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in VERSIONS:
            module.__version__ = VERSIONS[module.__name__]  # type: ignore[attr-defined]


def _folders(fullname: str, path: Sequence[str] | None) -> list[str]:
    """The folders of this package in installed provider packages."""
    spec = PathFinder.find_spec(fullname, path)
    return [] if spec is None else list(spec.submodule_search_locations or ())
