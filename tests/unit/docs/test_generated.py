"""The generated files are views of the code, and CI reports a stale file."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate import __main__ as generate
from paceline import states
from scheduler.settings import model as settings
from scheduler.settings.model import keys

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_check_names_the_stale_file_and_writing_repairs_it(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(generate.generate, ["--root", str(tmp_path)]).exit_code == 0
    assert run(generate.generate, ["--check", "--root", str(tmp_path)]).exit_code == 0

    (tmp_path / "config/paceline.toml").write_text("[core]\n")
    stale = run(generate.generate, ["--check", "--root", str(tmp_path)])

    assert stale.exit_code == 1
    assert "config/paceline.toml" in stale.stderr
    assert "states.md" not in stale.stderr


def test_the_file_uncommented_is_the_defaults(tmp_path: Path) -> None:
    lines = generate.toml_file().splitlines()
    uncommented = "\n".join(line.removeprefix("# ") if " = " in line else line for line in lines)
    (tmp_path / "all.toml").write_text(uncommented)

    loaded = settings.Settings.load({"PACELINE_CONFIG": str(tmp_path / "all.toml")})

    written = {f"{section}.{key}" for section, values in tomllib.loads(uncommented).items() for key in values}
    assert written == set(keys())
    for key in keys():
        default = settings.Settings().value(key)
        assert default is None or loaded.value(key) == default, key
    assert settings.Settings.load({"PACELINE_CONFIG": str(ROOT / "config/paceline.toml")}) == settings.Settings()


def test_the_chart_has_every_edge_with_its_actors_and_no_other() -> None:
    edges = {
        tuple(line.split(" : ")[0].strip().split(" --> ")): set(line.split(" : ")[1].split(", "))
        for line in generate.states_page().splitlines()
        if " --> " in line and " : " in line
    }

    expected: dict[tuple[str, ...], set[str]] = {}
    for move in states.TRANSITIONS:
        expected.setdefault((move.source.value, move.target.value), set()).add(move.actor.value)
    assert edges == expected


def test_the_settings_page_names_every_key_and_variable() -> None:
    page = generate.settings_page()

    for name, (_, key) in settings.environment_names().items():
        assert f"`{key}`" in page
        assert f"`{name}`" in page or name in {"PACELINE_PATHS_HOME", "PACELINE_PATHS_DAGS_FOLDER"}
