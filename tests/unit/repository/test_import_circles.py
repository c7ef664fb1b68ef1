"""No modules import each other in a circle: at the top, inside functions, for types only, or by name."""

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from support import imports

ROOT = Path(__file__).parents[3]
PACKAGES = ("paceline", "scheduler", "workers", "bench")


def modules() -> dict[str, Path]:
    """The files of the packages by module name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def graph(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules that each module imports: of `from a import b` the module b if it is one, else a."""
    found = {}
    for name, path in files.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        targets = {one if one in files else one.rpartition(".")[0] for node in nodes for one in imports.of_node(node)}
        found[name] = (targets & files.keys()) - {name}
    return found


def circle(imported: Mapping[str, set[str]]) -> list[str]:
    """One circle as the modules along it; empty if there is none."""
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circle(graph(modules()))

    assert not found, " -> ".join(found)


@pytest.mark.parametrize(
    "function", ["from scheduler import b", "importlib.import_module('scheduler.b')", "import_module('scheduler.b').f()"]
)
def test_an_import_for_types_and_one_inside_a_function_count(tmp_path: Path, function: str) -> None:
    sources = {
        "a": f"def f():\n    {function}",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from scheduler.a import f",
    }
    files = {}
    for name, source in sources.items():
        files[f"scheduler.{name}"] = tmp_path / f"{name}.py"
        files[f"scheduler.{name}"].write_text(source)

    assert sorted(set(circle(graph(files)))) == ["scheduler.a", "scheduler.b"]
