"""`paceline migrate-airflow` on a folder of files, and the import of Airflow's exports."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.scenario import Scenario

from scheduler.cli import paceline

from .conftest import Cli

pytest.importorskip("libcst")

GOOD = """\
from datetime import UTC, datetime

from airflow import DAG  # the DAG
from airflow.operators.bash import BashOperator
from lib_of_dags import COMMAND

with DAG("good", schedule_interval="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    BashOperator(task_id="a", bash_command=COMMAND) >> BashOperator(task_id="b", bash_command=__file__)
"""
FILES = {
    "good.py": GOOD,
    "lib_of_dags.py": "from airflow.models import Variable\n\nCOMMAND = 'ls'\n",
    "bad.py": "from airflow.sdk import DAG\nfrom airflow.models import XCom\nd = DAG('bad', description=str(XCom))\n",
    "other/wrong.py": "from airflow.sdk import DAG\n\nDAG('wrong', schedul=None)\n",
    "ours.py": "from paceline import DAG\n\nd = DAG('ours')\n",
    "text.txt": "from airflow import DAG\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "airflow_dags" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "airflow_dags" / "good.py").chmod(0o640)
    return tmp_path / "airflow_dags"


def run(folder: Path, *options: str) -> tuple[int, Any, str]:
    environment = {"PACELINE_HOME": str(folder.parent / "home"), "PATH": os.environ["PATH"]}
    done = CliRunner().invoke(paceline, ["migrate-airflow", str(folder), *options], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.stdout, done.stderr


def test_a_report_lists_for_each_file_the_dags_and_the_errors(folder: Path) -> None:
    code, text, _ = run(folder, "--json")

    report = json.loads(text)
    files = {file["file"]: file for file in report["files"]}
    assert code == 1
    assert {name: report[name] for name in ("dag_files", "loaded_before", "loaded_after", "changed", "written")} == {
        "dag_files": 4, "loaded_before": 2, "loaded_after": 2, "changed": 4, "written": 0,
    }  # fmt: skip
    assert (files["good.py"]["loads_before"], files["good.py"]["dags"], files["good.py"]["differences"]) == (True, ["good"], [])
    assert [change["line"] for change in files["good.py"]["changes"]] == [3, 4, 7]
    assert files["bad.py"]["unsupported"] == [{"line": 2, "text": "Paceline has no XCom: use ti.xcom_pull and ti.xcom_push."}]
    assert "unknown argument 'schedul'" in files["other/wrong.py"]["problem"]
    assert files["other/wrong.py"]["problem_line"] == 3
    assert files["lib_of_dags.py"]["loads_after"] is None
    assert {name: (folder / name).read_text() for name in FILES} == FILES


def test_the_report_is_readable(folder: Path) -> None:
    code, text, errors = run(folder)

    assert code == 1
    assert "good.py: loads (1 DAG), 3 changes\n" in text
    assert "bad.py: does not load, 1 change\n    line 2: Paceline has no XCom: use ti.xcom_pull and ti.xcom_push.\n" in text
    assert (
        errors == "2 of 4 DAG files load after the rewrite. 4 files would change: --diff shows the changes, --write makes them.\n"
    )


def test_a_diff_is_a_patch(folder: Path) -> None:
    _, text, _ = run(folder, "--diff", "--no-compare")

    assert "--- a/good.py\n+++ b/good.py\n" in text
    assert "-from airflow import DAG  # the DAG\n" in text
    assert "+from paceline import DAG  # the DAG\n" in text
    assert '+with DAG("good", schedule="@daily"' in text


def test_write_changes_the_files_once(folder: Path) -> None:
    code, _, errors = run(folder, "--write")

    assert (code, errors) == (1, "2 of 4 DAG files load after the rewrite. 4 files changed.\n")
    assert (folder / "good.py").read_text() == GOOD.replace("airflow import", "paceline import").replace(
        "airflow.operators.bash", "paceline.operators"
    ).replace("schedule_interval", "schedule")
    assert (folder / "good.py").stat().st_mode & 0o777 == 0o640
    assert (folder / "text.txt").read_text() == FILES["text.txt"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(["other", *(name for name in FILES if "/" not in name)])
    assert json.loads(run(folder, "--json")[1])["changed"] == 0


def test_a_dag_that_changes_is_reported(folder: Path) -> None:
    """A file may read how it was imported."""
    (folder / "good.py").write_text(
        "from airflow.sdk import DAG\nimport sys\nd = DAG('good', description=str('airflow' in sys.modules))\n"
    )

    code, text, _ = run(folder)

    assert code == 1
    assert "    DAG good differs in description.\n" in text


def test_without_files_there_is_nothing_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(paceline, ["migrate-airflow"], env={"PACELINE_HOME": str(tmp_path)})

    assert done.exit_code == 2
    assert "Give a folder of DAG files, a file to import, or --shadow." in done.stderr


def test_exports_of_airflow_are_imported(cli: Cli, scenario: Scenario, tmp_path: Path) -> None:
    exports = {
        # As `airflow connections export`, `variables export` and `pools export` of 3.3 write them.
        "connections": {
            "db": {
                **dict.fromkeys(["description"]), "conn_type": "postgres", "login": "ann", "password": "hunter22", "host": "db",
                "port": 5432, "schema": "x", "extra": '{"sslmode": "require"}',
            },
            "web": {
                **dict.fromkeys(["login", "password", "port", "schema", "extra"]), "conn_type": "http", "description": "",
                "host": "web",
            },
        },
        "variables": {"depth": 3, "name": "x", "deep": {"value": {"a": 1}, "description": "how"}},
        "pools": {
            "default_pool": {"slots": 64, "description": "Default pool", "include_deferred": False},
            "narrow": {"slots": 2, "description": "", "include_deferred": True, "team_name": "a"},
        },
    }  # fmt: skip
    options = []
    for name, content in exports.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        options += [f"--{name}", str(tmp_path / f"{name}.json")]
    cli("variables", "set", "name", "kept")

    done = cli("migrate-airflow", *options)

    assert (done.exit_code, done.stderr) == (0, "2 of 2 connections, 2 of 3 variables, 2 of 2 pools stored.\n")
    db = cli.json("connections", "get", "db", "--show")
    assert (db["login"], db["password"], db["port"], db["extra"]) == ("ann", "hunter22", 5432, {"sslmode": "require"})
    assert [json.loads(cli("variables", "get", key).stdout) for key in ("depth", "deep")] == [3, {"a": 1}]
    assert cli("variables", "get", "name").stdout == "kept\n"
    pools = {pool["name"]: (pool["slots"], pool["include_deferred"]) for pool in cli.json("pools", "list")}
    assert pools == {"default_pool": (64, False), "narrow": (2, True)}
    assert cli("migrate-airflow", *options, "--overwrite").stderr == "2 of 2 connections, 3 of 3 variables, 2 of 2 pools stored.\n"
    assert cli("variables", "get", "name").stdout == "x\n"


def test_all_exports_are_stored_or_none(cli: Cli, scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "variables.json").write_text('{"a": 1}')
    (tmp_path / "pools.json").write_text('{"p": {"slots": "many"}}')

    done = cli("migrate-airflow", "--variables", str(tmp_path / "variables.json"), "--pools", str(tmp_path / "pools.json"))

    assert (done.exit_code, done.stderr) == (1, "Error: Pool 'p' must be a JSON object with slots, a whole number.\n")
    assert cli.json("variables", "list") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.env", '# exported\nweb=http://ann@web:80/x\n\ndb={"conn_type": "postgres", "host": "db"}\n'),
        (
            "c.yaml",
            "web:\n  conn_type: http\n  login: ann\n  host: web\n  port: 80\n  schema: x\ndb:\n  conn_type: postgres\n  host: db\n",
        ),
    ],
)
def test_connections_come_in_other_formats(cli: Cli, scenario: Scenario, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)

    assert cli("connections", "import", str(tmp_path / name)).stdout == "Stored 2 connections.\n"
    rows = [(row["conn_id"], row["conn_type"], row["host"], row["port"], row["login"]) for row in cli.json("connections", "list")]
    assert rows == [("db", "postgres", "db", None, None), ("web", "http", "web", 80, "ann")]


def test_a_file_that_is_no_export_is_rejected_without_its_content(cli: Cli, scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "c.env").write_text("hunter22\n")
    (tmp_path / "c.yaml").write_text("- hunter22: [\n")

    for name, words in (("c.env", "must hold lines of the form name=value"), ("c.yaml", "is not YAML")):
        done = cli("connections", "import", str(tmp_path / name))
        assert (done.exit_code, words in done.stderr, "hunter22" in done.output) == (2, True, False)


def test_pools_travel_in_a_file(cli: Cli, scenario: Scenario, tmp_path: Path) -> None:
    cli("pools", "set", "narrow", "3", "--description", "few", "--queue", "q")
    assert cli("pools", "export", str(tmp_path / "pools.json")).exit_code == 0
    cli("pools", "delete", "narrow", "--yes")

    assert cli("pools", "import", str(tmp_path / "pools.json")).stdout == "Stored 2 pools.\n"
    (pool,) = [pool for pool in cli.json("pools", "list") if pool["name"] == "narrow"]
    assert (pool["slots"], pool["description"], pool["queue"]) == (3, "few", "q")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"slots": True}, "slots, a whole number"),
        ({"slots": -2}, "-1 (no limit) or more slots"),
        ({"slots": 1, "description": 3}, "The field description of pool 'p' must be of type str"),
        ({"slots": 1, "include_deferred": "yes"}, "must be of type bool"),
        ({"slots": 1, "queue": "unacked"}, "is a key that Paceline or Celery keeps in Redis"),
    ],
)
def test_a_wrong_pool_is_named(cli: Cli, scenario: Scenario, tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    (tmp_path / "pools.json").write_text(json.dumps({"p": entry}))

    done = cli("pools", "import", str(tmp_path / "pools.json"))

    assert (done.exit_code, words in done.stderr) == (1, True), done.stderr


def test_what_files_imported_from_the_engine_is_imported_from_paceline(folder: Path) -> None:
    (folder / "good.py").write_text("from scheduler import DAG\nfrom scheduler.operators import EmptyOperator\nd = DAG('good')\n")

    code, text, _ = run(folder, "--write")

    assert code == 1 and "good.py: loads (1 DAG), 2 changes\n" in text  # other files of the folder do not load
    assert (folder / "good.py").read_text() == (
        "from paceline import DAG\nfrom paceline.operators import EmptyOperator\nd = DAG('good')\n"
    )
