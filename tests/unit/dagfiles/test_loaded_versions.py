import pickle
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from support.bundles import Published, cache_of, versions_in

from scheduler.dagfiles import loaded_versions
from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.loaded_versions import LoadedVersions

FILE = """
from paceline import DAG, task
{head}

with DAG("d"):
    @task
    def t():
{body}
    t()
"""


def one_task(body: str, head: str = "") -> str:
    """A DAG file with one task, whose function has this body."""
    return FILE.format(head=head, body="\n".join(f"        {line}" for line in body.splitlines()))


def loaded_from(published: Published, folder: Path) -> LoadedVersions:
    (folder / "local").mkdir(exist_ok=True)
    return LoadedVersions(folder / "local", cache_of(published, folder / "bundles"))


def call(loaded: LoadedVersions, version: int | None, file: str = "d.py") -> Any:
    """The result of the task of a version, run as a pool process does: with the path of Python restored afterwards."""
    path = list(sys.path)
    try:
        return loaded.of(version).task(file, "d", "t").python_callable()
    finally:
        sys.path[:] = path


@pytest.mark.parametrize(
    ("dag_file", "modules"),
    [
        (one_task("return VALUE", "from lib import VALUE"), {"lib.py": "VALUE = {}"}),
        (one_task("return lib.VALUE", "import lib"), {"lib.py": "VALUE = {}"}),
        (one_task("import lib\nreturn lib.VALUE"), {"lib.py": "VALUE = {}"}),
        (one_task("import importlib\nreturn importlib.import_module('lib').VALUE"), {"lib.py": "VALUE = {}"}),
        (
            one_task("import pkg.deep.lib\nfrom pkg.deep import lib\nreturn (lib.VALUE, pkg.deep.lib.VALUE)[1]"),
            {"pkg/__init__.py": "", "pkg/deep/__init__.py": "from . import lib", "pkg/deep/lib.py": "from ..base import VALUE",
             "pkg/base.py": "VALUE = {}"},
        ),
        (one_task("from pkg import lib\nreturn lib.VALUE"), {"pkg/lib.py": "VALUE = {}"}),
        (one_task("import pkg.lib\nreturn pkg.lib.VALUE"), {"pkg/lib.py": "VALUE = {}"}),
        (one_task("from shared_space import lib\nreturn lib.VALUE"), {"shared_space/lib.py": "VALUE = {}"}),
        (
            one_task("import lib\nreturn lib.VALUE", "import os, sys\nsys.path.insert(0, os.path.dirname(__file__) + '/libs')"),
            {"libs/lib.py": "VALUE = {}"},
        ),
        (one_task("import pathlib\nreturn int((pathlib.Path(__file__).parent / 'value').read_text())"), {"value": "{}"}),
    ],
    ids=["imported by the file", "module of the file", "imported by the task", "importlib", "package", "package without __init__",
         "attribute of one", "also elsewhere", "own path", "data"],
)  # fmt: skip
def test_each_version_has_its_own_modules(
    dag_file: str, modules: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere/shared_space").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    published = Published(
        *({"d.py": dag_file, **{name: text.format(number) for name, text in modules.items()}} for number in (0, 1, 2))
    )
    loaded = loaded_from(published, tmp_path)
    for name, text in {"d.py": dag_file, **modules}.items():
        path = tmp_path / "local" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(99) if name != "d.py" else text)

    # In turn, and more than once: what a version has imported must come back with it.
    found = [call(loaded, version) for version in (1, 2, None, 2, 1, 1, 3, None, 2, 3, 1)]

    assert found == [0, 1, 99, 1, 0, 0, 2, 99, 1, 2, 0]


def test_modules_and_path_of_other_versions_are_not_visible(tmp_path: Path) -> None:
    published = Published({"d.py": one_task("import lib", "import lib"), "lib.py": ""}, {"d.py": one_task("return 1")})
    loaded = loaded_from(published, tmp_path)
    call(loaded, 1)

    loaded.of(2).task("d.py", "d", "t")

    assert "lib" not in sys.modules
    assert not [place for place in sys.path if published.digest(1) in place]
    assert str(tmp_path / "bundles" / published.digest(2)) in sys.path


def test_the_dags_folder_of_a_version_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DAGS_FOLDER", str(tmp_path / "local"))
    source = one_task("return conf.get('core', 'dags_folder')", "from paceline.authoring.airflow_conf import conf")
    published = Published({"d.py": source}, {"d.py": f"{source}\n"})
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "d.py").write_text(source)
    loaded = loaded_from(published, tmp_path)

    found = [call(loaded, version) for version in (1, 2, None, 1)]

    first, second = (str(tmp_path / "bundles" / published.digest(version)) for version in (1, 2))
    assert found == [first, second, str(tmp_path / "local"), first]


def test_a_version_of_the_dags_folder_finds_what_is_beside_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the DAGs folder is versioned. Its parent may be on the path of Python: then `dags` is the version, too."""
    project = tmp_path / "project"
    body = """
    import sys
    from pathlib import Path
    from dags.lib import VALUE
    from include.steps import STEP
    around = Path(__file__).parent.parent
    return VALUE, STEP, (around / "config.txt").read_text(), sorted(one.name for one in around.iterdir())
    """
    source = one_task(textwrap.dedent(body).strip(), "import include.steps")
    for name, text in {"dags/lib.py": "VALUE = 'now'", "include/steps.py": "STEP = 1", "config.txt": "live"}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    monkeypatch.syspath_prepend(str(project))
    published = Published(*({"d.py": source, "lib.py": f"VALUE = {n}"} for n in (0, 1)), bundle="dags-folder")
    cache = cache_of(published, tmp_path / "bundles", dags_folder=project / "dags")
    loaded = LoadedVersions(project / "dags", cache)
    around = ["config.txt", "dags", "include"]

    assert [call(loaded, version) for version in (1, 2, 1)] == [(n, 1, "live", around) for n in (0, 1, 0)]
    assert str(project) in sys.path and not [place for place in sys.path if "bundles" in place]
    assert not (cache.path(1).parent.stat().st_mode | cache.path(1).stat().st_mode) & 0o222

    # In a process that restores no path, such as a waiter.
    found = [loaded.of(version).task("d.py", "d", "t").python_callable()[0] for version in (2, 1, 2, 1)]
    assert found == [1, 0, 1, 0]

    # A file beside the folder is loaded again after a change, as it is without versions.
    (project / "include/steps.py").write_text("STEP = 22")
    assert call(loaded, 1) == (0, 22, "live", around)
    loaded.of(None)
    assert not sys.modules.keys() & {"dags.lib", "include.steps"}

    # A machine without the folder has the version alone.
    other = cache_of(published, tmp_path / "other", dags_folder=tmp_path / "gone/dags")
    assert sorted(one.name for one in other.path(1).iterdir()) == ["d.py", "lib.py"]
    assert versions_in(tmp_path / "other") == {published.digest(1)}


def test_a_module_keeps_its_state_and_identity(tmp_path: Path) -> None:
    published = Published(
        *({"d.py": one_task("import lib\nlib.calls += 1\nreturn lib.calls, id(lib)"), "lib.py": f"calls = {n}"} for n in (0, 100))
    )
    loaded = loaded_from(published, tmp_path)

    first, other, second = call(loaded, 1), call(loaded, 2), call(loaded, 1)

    assert (first[0], other[0], second[0]) == (1, 101, 2)
    assert first[1] == second[1] != other[1]


def test_classes_of_modules_are_pickled_in_each_version(tmp_path: Path) -> None:
    lib = "from dataclasses import dataclass\n@dataclass\nclass Thing:\n    {field}: int = 1"
    published = Published(
        *(
            {
                "d.py": one_task("import lib, pickle\nreturn pickle.loads(pickle.dumps(lib.Thing()))"),
                "lib.py": lib.format(field=name),
            }
            for name in ("a", "b")
        )
    )
    loaded = loaded_from(published, tmp_path)

    assert [repr(call(loaded, version)) for version in (1, 2, 1)] == ["Thing(a=1)", "Thing(b=1)", "Thing(a=1)"]
    first, second = (call(loaded, version) for version in (1, 2))
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(first)
    assert pickle.loads(pickle.dumps(second)) == second


def test_installed_modules_are_shared_even_from_inside_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "local/.venv/"
    installed.mkdir(parents=True)
    (installed / "installed_here.py").write_text("")
    monkeypatch.setattr("scheduler.dagfiles.load.INSTALLED", (f"{installed}/",))
    monkeypatch.syspath_prepend(str(installed))
    published = Published({"d.py": one_task("import installed_here\nreturn id(installed_here)")})
    (tmp_path / "local/d.py").write_text(published.content[published.tree(1)[0].digest].decode())
    loaded = loaded_from(published, tmp_path)

    assert call(loaded, None) == call(loaded, 1)


def test_files_of_a_version_are_loaded_once_and_not_examined(tmp_path: Path) -> None:
    head = "import lib, pathlib\ndata = (pathlib.Path(__file__).parent / 'data').read_text()"
    published = Published(*({"d.py": one_task("return data", head), "lib.py": "", "data": data} for data in "ab"))
    loaded = loaded_from(published, tmp_path)
    operators = [loaded.of(version).task("d.py", "d", "t") for version in (1, 2)]
    for path in (tmp_path / "bundles").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_text("changed")

    assert [loaded.of(version).task("d.py", "d", "t") for version in (2, 1, 1, 2)] == [operators[n] for n in (1, 0, 0, 1)]
    assert (call(loaded, 1), call(loaded, 2)) == ("a", "b")


def test_data_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("before")
    published = Published({"d.py": one_task("return data", f"import pathlib\ndata = pathlib.Path({str(outside)!r}).read_text()")})
    loaded = loaded_from(published, tmp_path)
    assert call(loaded, 1) == "before"

    outside.write_text("afterwards")

    assert call(loaded, 1) == "afterwards"


class _Recording(BundleCache):
    """A cache that records what was released."""

    released: ClassVar[list[int]] = []

    def release(self, version_id: int) -> None:
        self.released.append(version_id)
        super().release(version_id)


def test_a_process_keeps_only_so_many_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_versions, "MOST_LOADED", 2)
    published = Published(*({"d.py": one_task("import lib\nreturn lib.V", "import lib"), "lib.py": f"V = {n}"} for n in range(5)))
    cache = _Recording(tmp_path / "bundles", published, keep=20)
    loaded = LoadedVersions(tmp_path, cache)

    assert [call(loaded, version) for version in (1, 2, 3, 1, 4, 5, 2)] == [0, 1, 2, 0, 3, 4, 1]

    assert cache.released == [1, 2, 3, 1, 4]
    used = [place for place in sys.path_importer_cache if place.startswith(str(tmp_path / "bundles"))]
    assert {Path(place).name for place in used} == {published.digest(version) for version in (5, 2)}


class _Interrupting(ModuleType):
    """A package that raises KeyboardInterrupt once when it is asked for `sub`."""

    is_armed = False

    def __getattribute__(self, name: str) -> Any:
        if name == "sub" and _Interrupting.is_armed:
            _Interrupting.is_armed = False
            raise KeyboardInterrupt
        return super().__getattribute__(name)


def test_an_interruption_leaves_whole_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = _Interrupting("shared")
    monkeypatch.setitem(sys.modules, "shared", shared)
    head = "import lib, sys, shared\nsys.modules['shared.sub'] = shared.sub = lib"
    body = "import lib, shared.sub\nfrom shared import sub\nreturn lib.V, sub.V, shared.sub is lib, lib.__name__ in sys.modules"
    published = Published(*({"d.py": one_task(body, head), "lib.py": f"V = {n}"} for n in (1, 2)))
    loaded = loaded_from(published, tmp_path)
    expected = [(1, 1, True, True), (2, 2, True, True)]
    assert [call(loaded, version) for version in (1, 2)] == expected
    _Interrupting.is_armed = True

    with pytest.raises(KeyboardInterrupt):
        loaded.of(1)

    assert not _Interrupting.is_armed
    assert [call(loaded, version) for version in (1, 2)] == expected


def test_a_version_that_cannot_be_fetched_changes_nothing(tmp_path: Path) -> None:
    published = Published({"d.py": one_task("return 1")}, {"d.py": one_task("return 2")})
    del published.content[published.tree(2)[0].digest]
    loaded = loaded_from(published, tmp_path)
    call(loaded, 1)
    modules = set(sys.modules)

    with pytest.raises(Exception, match="lacks 1 file"):
        loaded.of(2)

    assert call(loaded, 1) == 1
    assert set(sys.modules) == modules
