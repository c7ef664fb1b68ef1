"""docs/explanation/architecture.md names every package, and nothing that does not exist; few arrows join the rooms."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import support.imports

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
#: Packages that the page describes as parts of another one.
INNER = {"scheduler/store/db/migrations", "paceline/authoring/timetables", "workers/spark"}
#: The folders with the Python code of the house.
HOUSE = ("paceline", "scheduler", "workers", "bench", "dags")
#: Rooms in other languages. No arrow joins them.
WITHOUT_ARROWS = {"deploy", "web"}
#: Rooms, all arrows, and those of imports at start, without imports in functions and for types. scheduler/actions came last, with
#: arrows from the API, the commands and prune, and to what a change needs; commands import the store and the actions at start.
MOST = (31, 145, 137)
MOST_STORE_ROOMS = 11
#: Folders of tests without a folder of code of their name: about all processes, all statements that wait, and all code and the
#: scripts beside it.
ACROSS = {"security", "repository", "interleavings"}


def named() -> set[str]:
    return {one.rstrip("/") for one in re.findall(r"`((?:paceline|scheduler|workers)/[\w/.]*)`", PAGE)}


def packages() -> set[str]:
    found = {
        str(one.parent.relative_to(ROOT))
        for name in ("paceline", "scheduler", "workers")
        for one in (ROOT / name).rglob("__init__.py")
    }
    return {
        one
        for one in found - {"paceline", "scheduler"}
        if not any(one.startswith(f"{inner}/") for inner in INNER - {"workers/spark"})
    } - INNER


def test_every_file_and_folder_on_the_page_exists() -> None:
    assert len(named()) > 30, "the check no longer finds the names"

    assert [one for one in sorted(named()) if not (ROOT / one).exists()] == []


def test_every_package_is_on_the_page() -> None:
    assert packages() - named() == set()


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for name in HOUSE for path in (ROOT / name).rglob("*.py")}


def module(path: Path) -> str:
    """The name by which others import it. The folder of DAG files is on the path of imports."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").removeprefix("dags.")


def room(path: Path) -> str | None:
    """A folder of paceline/ or scheduler/ is a room, and so are a module of these two and all of each other folder.

    Their __init__.py are none: they load names at first use, and import nothing of Paceline.
    """
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] not in ("paceline", "scheduler"):
        return parts[0]
    return None if parts[1] == "__init__" else "/".join(parts[:2])


def imports(node: ast.AST, *, at_start: bool) -> Iterator[str]:
    """Every name that may be a module. `at_start` leaves out imports inside functions and for types."""
    if at_start and (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)):
        return
    yield from support.imports.of_node(node)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, at_start=at_start)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@cache
def arrows(*, at_start: bool) -> frozenset[tuple[str, str]]:
    """Each pair of rooms of which the first imports the second."""
    rooms = {module(path): room(path) for path in sources()}
    found = set()
    for path, code in sources().items():
        for name in imports(code, at_start=at_start):
            origin, target = room(path), rooms.get(name) or rooms.get(name.rpartition(".")[0])
            if origin is not None and target is not None and target != origin:
                found.add((origin, target))
    return frozenset(found)


def test_rooms_and_arrows_do_not_become_more() -> None:
    rooms = {room(path) for path in sources()} - {None} | WITHOUT_ARROWS
    found = (len(rooms), len(arrows(at_start=False)), len(arrows(at_start=True)))

    assert all(count <= limit for count, limit in zip(found, MOST, strict=True)), found
    assert "{} rooms and {} arrows ({} at start)".format(*MOST) in " ".join(PAGE.split())


def test_the_store_has_few_rooms() -> None:
    store = [path for path in (ROOT / "scheduler" / "store").iterdir() if (path / "__init__.py").exists()]

    assert len(store) <= MOST_STORE_ROOMS, sorted(one.name for one in store)


def test_folders_of_tests_have_the_names_of_their_subjects() -> None:
    for kind in ("unit", "integration"):
        folders = {path.parent.relative_to(ROOT / "tests" / kind) for path in (ROOT / "tests" / kind).glob("**/test_*.py")}
        subjects = [ROOT, ROOT / "paceline", ROOT / "scheduler", ROOT / "tests"]
        without_subject = [str(folder) for folder in folders if not any((subject / folder).is_dir() for subject in subjects)]

        assert set(without_subject) <= ACROSS, kind
