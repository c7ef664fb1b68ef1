"""Airflow's example files load unchanged with core.airflow_imports, and each name of Airflow has a place or a reason."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from differential import examples
from paceline.airflow import names
from paceline.airflow.table import ROWS
from scheduler.dagfiles.migrate.folder import Loaded, load
from scheduler.settings import Settings

WANTED = 40
#: Examples that load only after the rewrite. Some import modules of their own folder by the name of Airflow's package.
REWRITTEN = {
    "example_asset_allow_teams.py",
    "example_custom_weight.py",
    "example_kubernetes_executor.py",
    "example_local_kubernetes_executor.py",
}
#: Modules of Airflow 3.3 with names that DAG files import: all their names are in the table.
WHOLE = ("airflow.sdk", "airflow.sdk.exceptions")
#: Names that are no names for DAG files.
INNER = {"__version__", "ErrorType"}
#: The first modules of rows that Airflow 3.3 does not have: it has removed two, and adds one in 3.4.
OF_OTHER_RELEASES = {
    "airflow.utils.dag_parsing_context", "airflow.operators.subdag", "airflow.operators.sensors", "airflow.sdk.definitions.loop"
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(example_folders: list[Path], provider_packages: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    settings = Settings.load({"PACELINE_HOME": str(tmp_path_factory.mktemp("home"))})
    return {
        file: one
        for folder in example_folders
        for file, one in load(folder, settings, unchanged=True).items()
        if "/" not in file and examples.is_example(folder / file)
    }


def test_unchanged_examples_load_except_those_with_a_reason(loaded: dict[str, Loaded], figures: dict[str, Any]) -> None:
    failed = {file: one.problem for file, one in loaded.items() if one.problem}
    print(json.dumps(failed, indent=2))
    figures["example files unchanged"] = {"load": len(loaded) - len(failed), "not": sorted(failed)}

    assert len(loaded) == examples.COUNT
    assert len(loaded) - len(failed) >= WANTED, failed
    assert failed.keys() == examples.NOT_MIGRATED.keys() | REWRITTEN


@pytest.mark.parametrize("module", WHOLE)
def test_every_name_of_a_module_is_in_the_table(module: str, ask_airflow: Callable[..., Any]) -> None:
    source = (
        "import importlib, json, sys; module = importlib.import_module(sys.argv[1]);"
        "print(json.dumps(getattr(module, '__all__', None) or [name for name, value in vars(module).items()"
        " if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith('_')]))"
    )
    theirs = set(ask_airflow(source, module)) - INNER

    assert theirs - set(names.MODULES[module].names) == set()


def test_the_modules_of_the_table_are_airflows(ask_airflow: Callable[..., Any]) -> None:
    source = """
import importlib.util, json, sys
found = []
for module in json.loads(sys.argv[1]):
    try:
        found += [module] if importlib.util.find_spec(module) else []
    except ImportError:
        pass
    except ValueError:  # a module that Airflow makes without a file
        found.append(module)
print(json.dumps(found))
"""
    listed = [row.modules for row in ROWS if not any(module.startswith("airflow.providers.apache") for module in row.modules)]
    theirs = set(ask_airflow(source, json.dumps([module for modules in listed for module in modules])))

    assert {modules[0] for modules in listed if theirs.isdisjoint(modules)} == OF_OTHER_RELEASES
