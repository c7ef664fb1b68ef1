"""The rooms of the house: docs/explanation/architecture.md names each, few arrows join them, and no modules import in a circle."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tools.sources import PRODUCT, ROOT, check, imported, modules, read, spaced

PAGE = "docs/explanation/architecture.md"
#: Packages that the page describes as parts of another one.
INNER = {"scheduler/store/db/migrations", "paceline/authoring/timetables", "workers/spark"}
#: The folders with the Python code of the house.
HOUSE = ("paceline", "scheduler", "workers", "bench", "dags")
#: Rooms in other languages. No arrow joins them.
WITHOUT_ARROWS = {"deploy", "web"}
#: Rooms, all arrows, and those of imports at start, without imports in functions and for types. scheduler/actions came last, with
#: arrows from the API, the commands and prune, and to what a change needs.
MOST = (33, 162, 148)
MOST_STORE_ROOMS = 12
#: Folders of tests without a folder of code of their name: about all processes, all statements that wait, and all code and the
#: scripts beside it.
ACROSS = {"security", "repository", "interleavings"}


def named() -> set[str]:
    """The files and folders on the page."""
    return {one.rstrip("/") for one in re.findall(r"`((?:paceline|scheduler|workers)/[\w/.]*)`", read(PAGE))}


@check
def the_page_of_architecture_names_every_package_and_nothing_else() -> Iterator[str]:
    """Each package is on the page, and each name on the page is a file or folder."""
    yield from (f"{PAGE} names {one}, which does not exist" for one in sorted(named()) if not (ROOT / one).exists())
    packages = {str(path.parent.relative_to(ROOT)) for name in PRODUCT for path in (ROOT / name).rglob("__init__.py")}
    inside = tuple(f"{inner}/" for inner in INNER - {"workers/spark"})
    for one in sorted(packages - named() - INNER - {"paceline", "scheduler"}):
        if not one.startswith(inside):
            yield f"{PAGE} does not name {one}"


def module(path: str) -> str:
    """The name by which others import a file. The folder of DAG files is on the path of imports."""
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__").removeprefix("dags.")


def room(path: str) -> str | None:
    """A folder of paceline/ or scheduler/ is a room, and so are a module of these two and all of each other folder.

    Their __init__.py are none: they load names at first use, and import nothing of Paceline.
    """
    parts = Path(path).with_suffix("").parts
    if parts[0] not in ("paceline", "scheduler"):
        return parts[0]
    return None if parts[1] == "__init__" else "/".join(parts[:2])


def imports(node: ast.AST, *, at_start: bool) -> Iterator[str]:
    """Every name that may be a module. `at_start` leaves out imports inside functions and for types."""
    for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    if at_start and (for_types or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
        return
    yield from imported(node)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, at_start=at_start)


@cache
def arrows(*, at_start: bool) -> frozenset[tuple[str, str]]:
    """Each pair of rooms of which the first imports the second."""
    rooms = {module(path): room(path) for path in modules(*HOUSE)}
    found = set()
    for path, code in modules(*HOUSE).items():
        for name in imports(code, at_start=at_start):
            origin, target = room(path), rooms.get(name) or rooms.get(name.rpartition(".")[0])
            if origin is not None and target is not None and target != origin:
                found.add((origin, target))
    return frozenset(found)


@check
def rooms_and_arrows_do_not_become_more() -> Iterator[str]:
    """The page states their numbers."""
    rooms = {room(path) for path in modules(*HOUSE)} - {None} | WITHOUT_ARROWS
    found = (len(rooms), len(arrows(at_start=False)), len(arrows(at_start=True)))
    if any(count > most for count, most in zip(found, MOST, strict=True)):
        yield f"there are {found} rooms, arrows and arrows at start; at most {MOST} are allowed"
    if "{} rooms and {} arrows ({} at start)".format(*MOST) not in spaced(read(PAGE)):
        yield f"{PAGE} does not say that there are {MOST} rooms and arrows"
    store = [path.name for path in (ROOT / "scheduler" / "store").iterdir() if (path / "__init__.py").exists()]
    if len(store) > MOST_STORE_ROOMS:
        yield f"the store has the rooms {sorted(store)}; at most {MOST_STORE_ROOMS} are allowed"


@check
def folders_of_tests_have_the_names_of_their_subjects() -> Iterator[str]:
    """A folder below tests/unit or tests/integration is named after a folder of the product."""
    subjects = [ROOT, ROOT / "paceline", ROOT / "scheduler", ROOT / "tests"]
    for kind in ("unit", "integration"):
        folders = {path.parent.relative_to(ROOT / "tests" / kind) for path in (ROOT / "tests" / kind).glob("**/test_*.py")}
        for folder in sorted(folders):
            if str(folder) not in ACROSS and not any((subject / folder).is_dir() for subject in subjects):
                yield f"tests/{kind}/{folder} has no folder of the product with its name"


def graph(files: Mapping[str, ast.AST]) -> dict[str, set[str]]:
    """The modules that each module imports: of `from a import b` the module b if it is one, else a."""
    found = {}
    for name, code in files.items():
        targets = {one if one in files else one.rpartition(".")[0] for node in ast.walk(code) for one in imported(node)}
        found[name] = (targets & files.keys()) - {name}
    return found


def circle(files: Mapping[str, ast.AST]) -> list[str]:
    """One circle as the modules along it; empty if there is none."""
    try:
        TopologicalSorter(graph(files)).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


@check
def no_modules_import_each_other_in_a_circle() -> Iterator[str]:
    """At the top, inside functions, for types only, or by name."""
    found = circle({module(path): code for path, code in modules(*PRODUCT, "bench").items()})
    if found:
        yield " -> ".join(found)
