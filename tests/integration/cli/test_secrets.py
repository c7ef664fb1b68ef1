"""`paceline variables`, `paceline connections`, and the params of a DAG on a real database."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet
from support.scenario import Scenario, dag

from paceline.authoring.timetable import Cron
from paceline.exceptions import ParamError
from scheduler.cli import paceline
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from workers.task import triggered_runs

from .conftest import Cli


def test_variables_are_set_listed_masked_and_deleted(cli: Cli, scenario: Scenario) -> None:
    assert cli("variables", "set", "depth", "3", "--description", "how deep").exit_code == 0
    assert CliRunner().invoke(paceline, ["variables", "set", "api_key", "-"], input="hunter22\n", env=cli.env).exit_code == 0
    assert cli("variables", "set", "auth", '{"token": "hunter23", "user": "ann"}').exit_code == 0

    assert [(row["key"], row["description"]) for row in cli.json("variables", "list")] == [
        ("api_key", ""), ("auth", ""), ("depth", "how deep"),
    ]  # fmt: skip
    assert cli("variables", "get", "depth").stdout == "3\n"
    assert cli("variables", "get", "api_key").stdout == "***\n"
    assert cli("variables", "get", "api_key", "--show").stdout == "hunter22\n"
    assert json.loads(cli.json("variables", "get", "auth")["value"]) == {"token": "***", "user": "ann"}
    stored = str(scenario.rows("select * from variable"))
    assert "hunter" not in stored
    assert cli("variables", "delete", "depth", "--yes").exit_code == 0
    assert cli("variables", "get", "depth").exit_code == 3


def test_variables_travel_in_a_file(cli: Cli, scenario: Scenario, tmp_path: Path) -> None:
    file = tmp_path / "variables.json"
    cli("variables", "set", "a", "1", "--description", "one")
    cli("variables", "set", "b", "x")

    assert cli("variables", "export", str(file)).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text()) == {"a": {"value": "1", "description": "one"}, "b": {"value": "x", "description": ""}}
    file.write_text('{"a": "2", "c": [1, 2]}')
    assert cli("variables", "import", str(file), "--skip-existing").stdout == "Set 1 variable.\n"
    assert [cli("variables", "get", key).stdout for key in "ac"] == ["1\n", "[1, 2]\n"]
    assert cli("variables", "import", str(file)).exit_code == 0
    assert cli("variables", "get", "a").stdout == "2\n"


@pytest.mark.parametrize(
    ("text", "words"), [("{hunter22", "is not JSON"), ("[1]", "must hold a JSON object"), ('{"a\\u0000": 1}', "no NUL")]
)
def test_a_wrong_file_is_reported_without_its_contents(cli: Cli, scenario: Scenario, tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)

    done = cli("variables", "import", str(file))

    assert done.exit_code in {1, 2}
    assert words in done.stderr
    assert "hunter22" not in done.output


def test_connections_are_added_shown_masked_and_deleted(cli: Cli, scenario: Scenario) -> None:
    uri = "postgres://ann:hunter22@db.example:5432/flights?api_token=hunter23"
    assert cli("connections", "add", "db", "--conn-uri", uri).exit_code == 0
    assert cli("connections", "add", "web", "--conn-type", "http", "--conn-host", "web", "--conn-extra", '{"a": 1}').exit_code == 0

    rows = cli.json("connections", "list")
    assert [(row["conn_id"], row["has_password"], row["has_extra"]) for row in rows] == [("db", True, True), ("web", False, True)]
    shown = cli("connections", "get", "db").output + str(cli.json("connections", "get", "db")) + cli("connections", "list").output
    assert "hunter" not in shown
    assert "ann" in shown
    whole = cli.json("connections", "get", "db", "--show")
    assert (whole["password"], whole["extra"], whole["uri"]) == ("hunter22", {"api_token": "hunter23"}, uri)
    assert "hunter" not in str(scenario.rows("select * from connection"))
    again = cli("connections", "add", "db", "--conn-type", "http")
    assert (again.exit_code, again.stderr) == (
        1,
        "Error: Connection 'db' already exists: `paceline connections set` replaces it.\n",
    )
    assert cli("connections", "add", "db", "--conn-type", "http", "--overwrite").exit_code == 0
    assert cli.json("connections", "get", "db")["conn_type"] == "http"
    assert cli("connections", "delete", "db", "--yes").exit_code == 0
    assert cli("connections", "get", "db").exit_code == 3


@pytest.mark.parametrize("arguments", [("db",), ("db", "--conn-host", "h"), ("db", "--conn-uri", "x://h", "--conn-type", "x")])
def test_a_connection_is_given_in_one_way(cli: Cli, scenario: Scenario, arguments: tuple[str, ...]) -> None:
    assert cli("connections", "add", *arguments).exit_code == 2


def test_connections_travel_in_a_file(cli: Cli, scenario: Scenario, tmp_path: Path) -> None:
    file = tmp_path / "connections.json"
    cli("connections", "add", "db", "--conn-uri", "postgres://ann:hunter22@db:1/x?a=b")
    assert cli("connections", "export", str(file)).exit_code == 0
    cli("connections", "delete", "db", "--yes")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"web": "http://web/"}))

    assert cli("connections", "import", str(file)).stdout == "Stored 2 connections.\n"
    assert cli("connections", "import", str(file)).exit_code == 1
    assert cli("connections", "import", str(file), "--existing", "skip").stdout == "Stored 0 connections.\n"
    assert cli.json("connections", "get", "db", "--show")["uri"] == "postgres://ann:hunter22@db:1/x?a=b"


def test_the_key_is_rotated_and_a_missing_key_is_reported(cli: Cli, scenario: Scenario, settings: Settings) -> None:
    cli("variables", "set", "a", "1")
    file = settings.home / "fernet.key"
    old, new = file.read_text().strip(), Fernet.generate_key().decode()

    rotated = cli("db", "rotate-fernet-key", PACELINE_CORE_FERNET_KEY=f"{new},{old}")
    assert rotated.stdout == "Encrypted 1 value with the first key; you can remove the others.\n"
    assert cli("variables", "get", "a", PACELINE_CORE_FERNET_KEY=new).stdout == "1\n"
    assert "Variable 'a' was encrypted with another key" in cli("variables", "get", "a").stderr
    file.unlink()
    assert "There is no key to decrypt with: set PACELINE_CORE_FERNET_KEY" in cli("variables", "get", "a").stderr
    assert not file.exists()
    wrong = cli("variables", "get", "a", PACELINE_CORE_FERNET_KEY="hunter22")
    assert (wrong.exit_code, "hunter22" in wrong.output) == (2, False)
    assert "core.fernet_key (set by PACELINE_CORE_FERNET_KEY) cannot be '***'; allowed is Fernet keys" in wrong.stderr
    assert new not in cli("config", "show", PACELINE_CORE_FERNET_KEY=new).output


def test_no_key_is_generated_for_a_shared_database(cli: Cli, scenario: Scenario, settings: Settings) -> None:
    file = settings.home / "fernet.key"
    file.unlink()
    for command in (
        ("variables", "set", "a", "1"), ("connections", "add", "c", "--conn-uri", "http://u:p@h"), ("db", "rotate-fernet-key"),
    ):  # fmt: skip
        refused = cli(*command)
        assert refused.exit_code == 1, refused.output
        assert "There is no key to encrypt with: set PACELINE_CORE_FERNET_KEY, the same for every process" in refused.stderr
    assert not file.exists()
    assert scenario.rows("select 1 from variable union all select 1 from connection") == []


def test_doctor_names_the_values_that_its_key_cannot_decrypt(cli: Cli, scenario: Scenario, settings: Settings) -> None:
    assert cli("variables", "set", "a", "1").exit_code == 0
    assert cli("connections", "add", "c", "--conn-uri", "http://u:p@h").exit_code == 0
    assert secrets(cli.doctor()) == [(True, "every variable and connection can be decrypted")]

    new = Fernet.generate_key().decode()
    assert secrets(cli.doctor(PACELINE_CORE_FERNET_KEY=new)) == [
        (False, "1 variable cannot be decrypted with this key: a."), (False, "1 connection cannot be decrypted with this key: c.")
    ]  # fmt: skip
    old = (settings.home / "fernet.key").read_text().strip()
    (settings.home / "fernet.key").unlink()
    assert secrets(cli.doctor()) == [(False, "There is no key to decrypt with, although variables or connections are stored.")]
    assert secrets(cli.doctor(PACELINE_CORE_FERNET_KEY=f"{new},{old}")) == [
        (True, "every variable and connection can be decrypted")
    ]


def secrets(checks: list[dict[str, Any]]) -> list[tuple[bool, str]]:
    return [(check["ok"], check["message"]) for check in checks if check["check"] == "secrets"]


PARAMS: dict[str, Any] = {
    "day": {"schema": {"type": "string"}, "description": "which day"},
    "depth": {"value": 2, "schema": {"type": "integer", "maximum": 9}, "description": None},
}


def test_a_conf_has_a_limit_of_size_wherever_it_enters(cli: Cli, scenario: Scenario, settings: Settings) -> None:
    scenario.add(dag("daily", {"first": []}, schedule=Cron("@daily").to_spec(), start_date="2026-01-01T00:00:00+00:00"))
    small = {"PACELINE_CORE_MAX_CONF_BYTES": "1024"}
    large = json.dumps({"x": "y" * 1024})
    for command in (
        ("dags", "trigger", "daily", "--conf", large),
        ("backfill", "create", "daily", "--from", "2026-01-01", "--to", "2026-01-02", "--conf", large),
        ("backfill", "create", "daily", "--from", "2026-01-01", "--to", "2026-01-02", "--conf", large, "--dry-run"),
    ):
        refused = cli(*command, **small)
        assert refused.exit_code == 2, refused.output
        assert "The conf for DAG 'daily' has 1,032 bytes of JSON, and core.max_conf_bytes allows 1,024" in refused.stderr
    few = settings.model_copy(update={"core": settings.core.model_copy(update={"max_conf_bytes": 1024})})
    with pytest.raises(ParamError, match="max_conf_bytes allows 1,024"):
        triggered_runs.trigger(
            few, "daily", run_id="r", logical_date=None, conf=json.loads(large), reset=False,
            claim=cast(Any, SimpleNamespace(dag_id="d", task_id="t", writer=None)), hot=scenario.hot,
            versions=Versions(), patient=lambda ask: ask(), created=lambda _: None,
        )  # fmt: skip
    assert scenario.rows("select 1 from dag_run union all select 1 from backfill") == []
    assert cli("dags", "trigger", "daily", "--conf", json.dumps({"x": "y" * 1000}), **small).exit_code == 0


def test_a_conf_is_checked_against_the_params(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("asks", {"first": []}, params=PARAMS))

    shown = cli("dags", "show", "asks").stdout
    assert "required" in shown
    assert cli.json("dags", "show", "asks")["params"] == PARAMS
    lacking = cli("dags", "trigger", "asks")
    assert (lacking.exit_code, lacking.stderr) == (
        2, "Error: DAG 'asks' needs a value for param 'day': give it in the conf, as {\"day\": ...}.\n",
    )  # fmt: skip
    wrong = cli("dags", "trigger", "asks", "--conf", '{"day": "mon", "depth": 10}')
    assert (wrong.exit_code, wrong.stderr) == (
        2, "Error: Param 'depth' of DAG 'asks' cannot be 10: 10 is greater than the maximum of 9.\n",
    )  # fmt: skip
    assert scenario.rows("select 1 from dag_run") == []
    assert cli.json("dags", "trigger", "asks", "--conf", '{"day": "mon"}')["conf"] == {"day": "mon"}
