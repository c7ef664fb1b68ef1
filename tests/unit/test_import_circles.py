"""No modules import each other in a circle: at the top, inside functions, or for types only."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("scheduler", "workers", "bench")


def modules() -> dict[str, Path]:
    """The files of the packages by module name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """Every name that may be a module, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """The modules that each module imports: of `from a import b` the module b if it is one, else a."""
    found = {}
    for name, path in files.items():
        mentioned = imported(ast.parse(path.read_text(encoding="utf-8")))
        targets = {one if one in files else one.rpartition(".")[0] for one in mentioned}
        found[name] = (targets & files.keys()) - {name}
    return found


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """One circle as the modules along it; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = circle(graph(modules()))

    assert not found, " -> ".join(found)


def test_an_import_for_types_and_one_inside_a_function_count(tmp_path: Path) -> None:
    sources = {
        "a": "def f():\n    from scheduler import b",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from scheduler.a import f",
    }
    files = {}
    for name, source in sources.items():
        files[f"scheduler.{name}"] = tmp_path / f"{name}.py"
        files[f"scheduler.{name}"].write_text(source)

    assert sorted(set(circle(graph(files)))) == ["scheduler.a", "scheduler.b"]
