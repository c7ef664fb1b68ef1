"""What the part `tables` of the bench needs: without it, there is one sentence that says what to do."""

from pathlib import Path

import pytest

from bench.options import Options
from bench.tables import needs, small_tasks


def test_a_piece_on_spark_without_the_jar_says_what_to_do_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(needs.JARS, str(tmp_path))

    with pytest.raises(needs.MissingError, match=r"is neither a jar nor a folder with jars: put one there, or correct it\.$"):
        small_tasks.measure(Options(small=True))


def test_jars_are_found_in_the_folder_of_the_tests_or_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "iceberg.jar").touch()
    for name in (needs.JARS, needs.SETTING):
        monkeypatch.delenv(needs.JARS, raising=False)
        monkeypatch.setenv(name, str(tmp_path))

        assert needs.jars() == str(tmp_path / "iceberg.jar")


def test_without_the_generator_there_is_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(needs.MissingError, match="--group tpch"):
        needs.generator()
