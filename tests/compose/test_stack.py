"""The checks of the Compose stack when its CLI fails, without Docker."""

import re
from pathlib import Path

import pytest
from compose.stack import CheckError, Stack


def test_a_failed_command_of_the_cli_ends_the_check_with_an_error_message(tmp_path: Path) -> None:
    stack = Stack(["false"], tmp_path)

    sentence = "`paceline autoscale --queue default` printed no result and exited with 1"
    with pytest.raises(CheckError, match=re.escape(sentence)):
        stack.paceline("autoscale", "--queue", "default")


@pytest.mark.parametrize("failing", [False, True])
def test_a_command_without_output_ends_the_check(tmp_path: Path, failing: bool) -> None:
    with pytest.raises(CheckError, match="printed no result and exited with 0"):
        Stack(["true"], tmp_path).paceline("dags", "show", "flights", failing=failing)


def test_a_dag_is_parsed_once_the_cli_shows_it(tmp_path: Path) -> None:
    assert Stack(["true"], tmp_path / "a").is_parsed("flights")
    assert not Stack(["false"], tmp_path / "b").is_parsed("flights")
