"""Variables that a DAG file reads while it is loaded."""

from pathlib import Path

import pytest

from paceline import Variable
from paceline.exceptions import PacelineError
from scheduler.dagfiles.load import load
from scheduler.dagfiles.parser import environment
from scheduler.dagfiles.problem import of_exception
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
    with pytest.raises(PacelineError, match=r"works only while a task runs.*set PACELINE_VAR_NO_SUCH_VARIABLE in the environment"):
        Variable.get("no_such_variable")


def test_a_module_that_reads_a_variable_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "lib_of_variable.py").write_text("from paceline import Variable\nX = Variable.get('no_such_variable')\n")
    (tmp_path / "d.py").write_text("import lib_of_variable\n")

    with pytest.raises(PacelineError) as raised:
        load(tmp_path, "d.py")
    message = of_exception(raised.value, tmp_path / "d.py", memory_limit_mb=1).message

    assert message.startswith("lib_of_variable.py, line 2: Variable.get('no_such_variable') without a default works only")


def test_the_process_that_parses_has_the_variables_and_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PACELINE_VAR_A", "PACELINE_CONN_A", "AIRFLOW_VAR_B", "AIRFLOW_CONN_B"):
        monkeypatch.setenv(name, "x")

    given = environment(Settings())

    assert {name for name in given if name[-2:] in {"_A", "_B"}} == {"PACELINE_VAR_A", "AIRFLOW_VAR_B"}
