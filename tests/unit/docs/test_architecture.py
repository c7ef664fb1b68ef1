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
#: The folders with the Python code of the house.
HOUSE = ("scheduler", "workers", "bench", "dags")
#: Further folders in a drawing of the whole project. No arrow joins them.
WITHOUT_ARROWS = (".make", "deploy", "web")
#: The parts beside the engine: the rooms that observe it, those that serve pages and the REST API, that for files of Airflow, that
#: for tests, the benchmarks, and the examples. An arrow between two parts belongs to the first one.
BESIDE = {
    "telemetry": {"scheduler/telemetry"},
    "web": {"scheduler/api"},
    "airflow": {"scheduler/airflow"},
    "testing": {"scheduler/testing"},
    "bench": {"bench"},
    "dags": {"dags"},
}
#: Of the engine, and the additions of each other part: rooms, arrows of imports at start, and all arrows, with imports in
#: functions and for types.
MOST = {
    "engine": (18, 69, 77),
    "telemetry": (1, 8, 10),
    "web": (1, 6, 7),
    "airflow": (1, 5, 5),
    "testing": (1, 7, 7),
    "bench": (1, 10, 10),
    "dags": (1, 4, 4),
}
#: All parts and the folders without arrows: rooms, all arrows, and those of imports at start.
MOST_IN_ALL = (27, 120, 109)
MOST_STORE_ROOMS = 11
#: A folder of tests that spans all processes, so no folder of code has its name.
ACROSS = {"security"}


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


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for name in HOUSE for path in (ROOT / name).rglob("*.py")}


def is_face(path: Path) -> bool:
    """Whether this is the only module of a folder of scheduler/, and only imports names and lists them in `__all__`."""
    if path.name != "__init__.py" or path.parents[1] != ROOT / "scheduler" or len(list(path.parent.rglob("*.py"))) > 1:
        return False
    code = sources()[path].body[1:]  # after the docstring
    return all(isinstance(node, ast.ImportFrom) or ast.unparse(node).startswith("__all__ = [") for node in code)


def passed_on() -> dict[str, set[str]]:
    """What an import of a face, or of a name of it, means: the names where they are defined."""
    found: dict[str, set[str]] = {}
    for path in filter(is_face, sources()):
        face = module(path)
        for node in ast.walk(sources()[path]):
            if isinstance(node, ast.ImportFrom):
                found.setdefault(face, set()).update(f"{node.module}.{one.name}" for one in node.names)
                found |= {f"{face}.{one.asname or one.name}": {f"{node.module}.{one.name}"} for one in node.names}
    return found


def module(path: Path) -> str:
    """The name by which others import it. The folder of DAG files is on the path of imports."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").removeprefix("dags.")


def room(path: Path) -> str:
    """A folder of scheduler/ is a room, and so are a module of scheduler/ and all of each other folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0] if parts[1] == "__init__" or parts[0] != "scheduler" else "/".join(parts[:2])


def rooms() -> set[str]:
    return {room(path) for path in sources() if not is_face(path)}


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
def arrows(*, at_start: bool) -> set[tuple[str, str]]:
    """Each pair of rooms of which the first imports the second. An import from a face is one from the code behind it."""
    owners, means = {module(path): room(path) for path in sources()}, passed_on()
    found = set()
    for path in sources():
        for name in imports(sources()[path], at_start=at_start) if not is_face(path) else ():
            for one in means.get(name, {name}):
                target = owners.get(one) or owners.get(one.rpartition(".")[0])
                if target is not None and target != room(path):
                    found.add((room(path), target))
    return found


def counts() -> dict[str, tuple[int, int, int]]:
    """As MOST has them. An arrow from or to a room of a part beside the engine is one that this part adds."""
    left, drawn = rooms(), [arrows(at_start=True), arrows(at_start=False)]
    found = {}
    for part, own in BESIDE.items():
        found[part] = (len(left & own), *(sum(not own.isdisjoint(arrow) for arrow in one) for one in drawn))
        left -= own
        drawn = [{arrow for arrow in one if own.isdisjoint(arrow)} for one in drawn]
    return {"engine": (len(left), *map(len, drawn)), **found}


def test_rooms_and_arrows_do_not_become_more() -> None:
    found = counts()

    for part, most in MOST.items():
        assert all(count <= limit for count, limit in zip(found[part], most, strict=True)), (part, found[part], most)


def test_the_whole_house_has_few_rooms_and_arrows() -> None:
    found = (len(rooms() | set(WITHOUT_ARROWS)), len(arrows(at_start=False)), len(arrows(at_start=True)))

    assert all(count <= limit for count, limit in zip(found, MOST_IN_ALL, strict=True)), found
    assert "{} rooms and {} arrows ({} at start)".format(*MOST_IN_ALL) in " ".join(PAGE.split())


def test_a_face_is_no_room_and_an_import_from_it_is_one_from_the_code_behind_it() -> None:
    faces = {str(path.parent.relative_to(ROOT)) for path in filter(is_face, sources())}

    assert faces == {"scheduler/sensors", "scheduler/triggers"}
    assert faces.isdisjoint(rooms())
    assert passed_on()["scheduler.sensors.FileSensor"] == {"scheduler.operators.sensors.file.FileSensor"}
    assert "scheduler.authoring.deferral.BaseTrigger" in passed_on()["scheduler.triggers"]


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
