"""What spares a person to type or to look up: completion, versions, connections that are replaced and tried."""

import socket

import pytest
from support.scenario import Scenario, dag

from scheduler.cli import COMPLETION_VARIABLE, paceline

from .conftest import Cli


def complete(cli: Cli, *words: str) -> list[str]:
    from click.testing import CliRunner

    env = cli.env | {
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(["paceline", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = CliRunner().invoke(paceline, prog_name="paceline", complete_var=COMPLETION_VARIABLE, env=env)
    return [line.partition(",")[2] for line in done.output.splitlines() if line]


def test_names_are_completed_from_the_database(cli: Cli, scenario: Scenario) -> None:
    scenario.pool("lake", 1)
    scenario.trigger("pair", run_id="one")
    offered = {
        ("dags", "show", "p"): ["pair"],
        ("runs", "show", "pair", ""): ["one"],
        ("tasks", "list", "pair", "o"): ["one"],
        ("tasks", "why", "pair", "one", "s"): ["second"],
        ("pools", "set", "la"): ["lake"],
        ("runs", "show", "nothing", ""): [],
    }

    assert {words: complete(cli, *words) for words in offered} == offered
    cli.env["PACELINE_DATABASE_URL"] = "postgresql://u:p@127.0.0.1:1/d"
    assert complete(cli, "dags", "show", "p") == [], "an unreachable database prints nothing into the line of the shell"


def test_versions_mark_the_current_one(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("pair", {"first": []}))

    assert [(row["number"], row["is_current"]) for row in cli.json("dags", "versions", "pair")] == [(2, True), (1, False)]
    assert "is current" in cli("dags", "show", "pair", "--wide").stdout


def test_versions_are_compared(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("pair", {"first": []}))

    assert '-      "task_id": "second",' in cli("dags", "versions", "pair", "--diff", "1", "2").stdout
    assert cli("dags", "versions", "pair", "--diff", "2", "2").stdout == "They are equal.\n"
    missing = cli("dags", "versions", "pair", "--diff", "1", "9")
    assert (missing.exit_code, "has no version 9" in missing.stderr) == (3, True)


def test_a_run_is_not_found_by_its_logical_date_but_named(cli: Cli, scenario: Scenario) -> None:
    cli("dags", "trigger", "pair", "--run-id", "mine", "--logical-date", "2026-01-02T00:00:00+00:00")

    assert "a run of this logical date: 'mine'" in cli("runs", "show", "pair", "2026-01-02").stderr


def test_a_triggered_run_comes_with_the_next_command_and_its_page(cli: Cli, scenario: Scenario) -> None:
    said = cli("dags", "trigger", "pair", "--run-id", "a run", PACELINE_WEB_PORT="4321").stdout

    assert "`paceline runs watch pair 'a run'`" in said
    assert "http://127.0.0.1:4321/dags/pair/runs/a%20run" in said


def test_a_connection_is_replaced(cli: Cli, scenario: Scenario) -> None:
    for host in ("old", "new"):
        assert cli("connections", "set", "wh", "--conn-uri", f"http://{host}:1").exit_code == 0

    assert cli.json("connections", "get", "wh")["host"] == "new"


@pytest.mark.parametrize("conn_type", ["http", "postgres", "redis"])
def test_a_connection_that_does_not_answer_fails_without_its_password(cli: Cli, scenario: Scenario, conn_type: str) -> None:
    cli("connections", "set", "away", "--conn-uri", f"{conn_type}://u:secret@127.0.0.1:1/x")
    done = cli("connections", "test", "away")

    assert done.exit_code == 1
    assert done.stdout.startswith("Connection away fails at 127.0.0.1:1: ") and "secret" not in done.output


def test_a_connection_that_answers_works(cli: Cli, scenario: Scenario) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cli("connections", "set", "site", "--conn-uri", f"http://{address}")
        done = cli("connections", "test", "site")
        named = cli("connections", "test", "other", PACELINE_CONN_OTHER=f"ssh://{address}")
    odd = cli("connections", "test", "odd", PACELINE_CONN_ODD="aws://")
    (folder,) = scenario.rows("select split_part(current_setting('unix_socket_directories'), ',', 1)")[0]
    cli("connections", "set", "wh", "--conn-type", "postgres", "--conn-host", folder.strip(chr(34)), "--conn-login", "postgres",
        "--conn-port", str(scenario.rows("select current_setting('port')::int")[0][0]), "--conn-schema", "postgres")  # fmt: skip
    login = cli("connections", "test", "wh")

    assert (done.exit_code, named.exit_code) == (0, 0)
    assert "The login was not tried." in done.stdout
    assert (odd.exit_code, "cannot be tried" in odd.stdout) == (1, True)
    assert (login.exit_code, "accepted the login" in login.stdout) == (0, True), login.output
