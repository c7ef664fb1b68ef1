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
INNER = {"scheduler/store/db/migrations", "scheduler/authoring/timetables", "workers/spark"}
#: The parts beside the engine: the rooms that observe it, those that serve pages and the REST API, those for files of Airflow, and
#: that for tests. An arrow between two parts belongs to the first one.
BESIDE = {
    "telemetry": {"scheduler/telemetry"},
    "web": {"scheduler/api"},
    "airflow": {"scheduler/airflow"},
    "testing": {"scheduler/testing"},
}
#: Of the engine, and the additions of each other part: rooms, arrows of imports at start, and all arrows, with imports in
#: functions and for types.
MOST = {"engine": (21, 79, 88), "telemetry": (1, 8, 10), "web": (1, 6, 7), "airflow": (2, 12, 12), "testing": (1, 7, 7)}
#: All parts: rooms, all arrows, and those of imports at start.
MOST_IN_ALL = (26, 124, 112)
MOST_STORE_ROOMS = 11
#: Folders of tests without a folder of code of their name: about all processes, and about all code and the scripts beside it.
ACROSS = {"security", "repository"}


def named() -> set[str]:
    return {one.rstrip("/") for one in re.findall(r"`((?:scheduler|workers)/[\w/.]*)`", PAGE)}


def packages() -> set[str]:
    found = {str(one.parent.relative_to(ROOT)) for name in ("scheduler", "workers") for one in (ROOT / name).rglob("__init__.py")}
    return {
        one for one in found - {"scheduler"} if not any(one.startswith(f"{inner}/") for inner in INNER - {"workers/spark"})
    } - INNER


def test_every_file_and_folder_on_the_page_exists() -> None:
    assert len(named()) > 30, "the check no longer finds the names"

    assert [one for one in sorted(named()) if not (ROOT / one).exists()] == []


def test_every_package_is_on_the_page() -> None:
    assert packages() - named() == set()


def room(path: Path) -> str:
    """A folder of scheduler/ is a room, and so are a module of scheduler/ and all of workers/."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[1] == "__init__" or parts[0] == "workers" else "/".join(parts[:2])


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
    rooms = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): room(path)
        for name in ("scheduler", "workers")
        for path in (ROOT / name).rglob("*.py")
    }
    found = set()
    for name in ("scheduler", "workers"):
        for path in (ROOT / name).rglob("*.py"):
            for one in imports(ast.parse(path.read_text(encoding="utf-8")), at_start=at_start):
                target = rooms.get(one) or rooms.get(one.rpartition(".")[0])
                if target is not None and target != room(path):
                    found.add((room(path), target))
    return frozenset(found)


def counts() -> dict[str, tuple[int, int, int]]:
    """As MOST has them. An arrow from or to a room of a part beside the engine is one that this part adds."""
    rooms = {room(path) for name in ("scheduler", "workers") for path in (ROOT / name).rglob("*.py")}
    drawn = [arrows(at_start=True), arrows(at_start=False)]
    found = {}
    for part, own in BESIDE.items():
        found[part] = (len(rooms & own), *(sum(not own.isdisjoint(arrow) for arrow in one) for one in drawn))
        rooms -= own
        drawn = [frozenset(arrow for arrow in one if own.isdisjoint(arrow)) for one in drawn]
    return {"engine": (len(rooms), *map(len, drawn)), **found}


def test_rooms_and_arrows_do_not_become_more() -> None:
    found = counts()

    for part, most in MOST.items():
        assert all(count <= limit for count, limit in zip(found[part], most, strict=True)), (part, found[part], most)


def test_the_whole_house_has_few_rooms_and_arrows() -> None:
    rooms = {room(path) for name in ("scheduler", "workers") for path in (ROOT / name).rglob("*.py")}
    found = (len(rooms), len(arrows(at_start=False)), len(arrows(at_start=True)))

    assert all(count <= limit for count, limit in zip(found, MOST_IN_ALL, strict=True)), found
    assert "{} rooms and {} arrows ({} at start)".format(*MOST_IN_ALL) in " ".join(PAGE.split())


def test_the_page_states_the_limits() -> None:
    for part, most in MOST.items():
        assert f"| {part} | {' | '.join(map(str, most))} |" in PAGE


def test_the_store_has_few_rooms() -> None:
    store = [path for path in (ROOT / "scheduler" / "store").iterdir() if (path / "__init__.py").exists()]

    assert len(store) <= MOST_STORE_ROOMS, sorted(one.name for one in store)


def test_folders_of_tests_have_the_names_of_their_subjects() -> None:
    for kind in ("unit", "integration"):
        folders = {path.parent.relative_to(ROOT / "tests" / kind) for path in (ROOT / "tests" / kind).glob("**/test_*.py")}
        subjects = [ROOT, ROOT / "scheduler", ROOT / "tests"]
        without_subject = [str(folder) for folder in folders if not any((subject / folder).is_dir() for subject in subjects)]

        assert set(without_subject) <= ACROSS, kind
