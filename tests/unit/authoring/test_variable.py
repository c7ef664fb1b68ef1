"""Variables that a DAG file reads while it is loaded."""

import pytest

from scheduler import Variable
from scheduler.dagfiles.parser import environment
from scheduler.exceptions import PacelineError
from scheduler.settings import Settings


@pytest.mark.parametrize("name", ["default", "default_var"])
def test_the_default_counts_while_a_file_is_loaded(name: str) -> None:
    assert Variable.get("no_such_variable", **{name: "30 22 * * TUE"}) == "30 22 * * TUE"
    assert Variable.get("no_such_variable", **{name: None}) is None


@pytest.mark.parametrize("prefix", ["PACELINE_VAR_", "AIRFLOW_VAR_"])
def test_the_environment_comes_before_the_default(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{prefix}HOSTS", '["a"]')

    assert Variable.get("hosts", "none") == '["a"]'
    assert Variable.get("hosts", deserialize_json=True) == ["a"]


def test_a_variable_without_any_value_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(PacelineError, match="works only while a task runs"):
        Variable.get("no_such_variable")


def test_the_process_that_parses_has_the_variables_and_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PACELINE_VAR_A", "PACELINE_CONN_A", "AIRFLOW_VAR_B", "AIRFLOW_CONN_B"):
        monkeypatch.setenv(name, "x")

    given = environment(Settings())

    assert {name for name in given if name[-2:] in {"_A", "_B"}} == {"PACELINE_VAR_A", "AIRFLOW_VAR_B"}
