"""The variables of which a DAG file took the default while it was loaded."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.authoring import running
from scheduler.dagfiles import fork_server
from scheduler.serialized.dag import MAX_DEFAULTED
from scheduler.settings import Settings


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    running.defaulted.clear()


def defaulted(folder: Path, *lines: str) -> list[str]:
    (folder / "d.py").write_text("\n".join(("from paceline import DAG, Variable", *lines, "dag = DAG('d', schedule=None)\n")))
    settings = Settings.load({"PACELINE_HOME": str(folder / "home")})
    (row,) = fork_server.parse("d.py", fork_server.Work(folder, settings.core, settings.scheduler))["dags"]
    found: list[str] = json.loads(row["data"]).get("defaulted_variables", [])
    return found


def test_they_are_noted_once_and_sorted(tmp_path: Path) -> None:
    assert defaulted(tmp_path, "Variable.get('b', 1)", "Variable.get('a', default_var=None)", "Variable.get('b', 2)") == ["a", "b"]


def test_a_variable_of_the_environment_is_not_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_VAR_A", "1")

    assert defaulted(tmp_path, "Variable.get('a', 1)") == []


def test_names_that_cannot_be_stored_and_too_many_are_left_out(tmp_path: Path) -> None:
    assert defaulted(tmp_path, "Variable.get('\\0', 1)", "Variable.get('x' * 300, 1)") == []
    assert len(defaulted(tmp_path, "for n in range(200): Variable.get(f'n{n}', 1)")) == MAX_DEFAULTED


def test_a_version_without_them_has_no_such_field(tmp_path: Path) -> None:
    assert defaulted(tmp_path) == []
