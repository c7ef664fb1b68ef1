"""The output of the reading commands: the shapes and rows for scripts, completion, versions, notices, schedules and assets."""

import json
import socket
from datetime import UTC, datetime

import pytest
from support.repair import repair
from support.scenario import Scenario, chain, dag

from paceline import PartitionedAssetTimetable
from paceline.authoring import timetable
from paceline.authoring.asset import Asset
from paceline.states import TaskState
from scheduler.cli import COMPLETION_VARIABLE, paceline
from scheduler.services.notify import Notify
from scheduler.store.db.database import transact
from scheduler.store.upkeep import invariants, notices
from scheduler.store.upkeep.invariants import Tools

from .conftest import Cli

RUN_KEYS = {
    "dag_id", "run_id", "run_type", "logical_date", "data_interval_start", "data_interval_end", "state", "conf", "queued_at",
    "started_at", "ended_at",
}  # fmt: skip
TASK_KEYS = {
    "dag_id", "run_id", "task_id", "map_index", "state", "try_number", "max_tries", "queue", "pool", "pool_slots",
    "priority_weight", "worker", "queued_by", "scheduled_at", "queued_at", "started_at", "ended_at",
}  # fmt: skip


def has_offset(text: str) -> bool:
    return datetime.fromisoformat(text).tzinfo is not None


def test_a_run_is_shown_with_its_tasks_in_order(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one", conf={"day": 1})
    scenario.run_to_end()

    run = cli.json("runs", "show", "pair", "one")

    assert set(run) >= RUN_KEYS | {"tasks"}
    assert (run["state"], run["run_type"], run["conf"]) == ("success", "manual", {"day": 1})
    assert all(has_offset(run[name]) for name in ("logical_date", "queued_at", "started_at", "ended_at"))
    assert [task["task_id"] for task in run["tasks"]] == ["first", "second"]
    assert all(set(task) >= TASK_KEYS for task in run["tasks"])
    assert {(task["state"], task["map_index"], task["worker"]) for task in run["tasks"]} == {("success", -1, scenario.worker_id)}
    assert cli.json("tasks", "list", "pair", "one") == run["tasks"]
    assert cli.json("runs", "watch", "pair", "one") == run


def test_an_undecided_task_has_the_state_null(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")

    assert [task["state"] for task in cli.json("tasks", "list", "pair", "one")] == [None, None]
    assert cli("tasks", "list", "pair", "one").stdout.count("no state") == 2


def test_tasks_without_a_run_are_those_of_the_newest_version(cli: Cli, scenario: Scenario) -> None:
    tasks = cli.json("tasks", "list", "pair")

    assert [task["task_id"] for task in tasks] == ["first", "second"]
    assert all(set(task) >= TASK_KEYS and task["run_id"] is None and task["state"] is None for task in tasks)
    assert tasks[1]["upstream"] == ["first"]


def test_xcoms_are_shown_whole_as_json_and_a_dataframe_with_its_rows_and_columns(cli: Cli, scenario: Scenario) -> None:
    run = scenario.trigger("pair", run_id="one")
    scenario.run_to_end()
    fields = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
    frame = {"__dataframe__": 1, "url": "s3a://b/x", "format": "parquet", "rows": 1200, "bytes": 77, "schema": {"fields": fields}}
    for key, value in {"return_value": frame, "n": 3, "both": [frame]}.items():
        scenario.sql(
            "insert into xcom (task_instance_id, key, value) select id, %s, %s from task_instance"
            " where dag_run_id = %s and task_id = 'first'", key, json.dumps(value), run
        )  # fmt: skip

    rows = cli.json("tasks", "xcoms", "pair", "one", "first")
    output = cli("tasks", "xcoms", "pair", "one", "first").stdout

    assert [(row["key"], row["value"]) for row in rows] == [("return_value", frame), ("both", [frame]), ("n", 3)]
    assert all(has_offset(row["created_at"]) for row in rows)
    assert output.count("DataFrame of 1,200 rows (id long), 77 bytes at s3a://b/x") == 2
    assert cli.json("tasks", "xcoms", "pair", "one", "second") == []
    assert cli("tasks", "xcoms", "pair", "one", "third").exit_code == 3


def test_runs_are_listed_newest_first_and_filtered(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("other", {"only": []}))
    scenario.trigger("pair", run_id="one")
    scenario.run_to_end()
    scenario.trigger("other", run_id="two")
    scenario.trigger("pair", run_id="three")

    assert [run["run_id"] for run in cli.json("runs", "list")] == ["three", "two", "one"]
    assert [run["run_id"] for run in cli.json("runs", "list", "--dag", "pair")] == ["three", "one"]
    assert [run["run_id"] for run in cli.json("runs", "list", "--state", "success")] == ["one"]
    assert [run["run_id"] for run in cli.json("runs", "list", "--limit", "1")] == ["three"]
    assert all(set(run) >= RUN_KEYS for run in cli.json("runs", "list"))


def test_a_long_list_is_complete_for_scripts_and_names_its_omissions_for_people(cli: Cli, scenario: Scenario) -> None:
    for number in range(51):
        scenario.trigger("pair", run_id=f"r{number}")

    shown = cli("runs", "list")

    assert len(cli.json("runs", "list")) == 51
    assert shown.stdout.count("pair") == 50
    assert "newest 50" in shown.stderr


def test_dags_are_listed_with_their_newest_run(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.add(dag("gone", {"only": []}))
    scenario.sql("update dag set is_active = false where dag_id = 'gone'")

    (listed,) = cli.json("dags", "list")

    assert (listed["dag_id"], listed["is_paused"], listed["task_count"]) == ("pair", False, 2)
    assert (listed["last_run_id"], listed["last_run_state"]) == ("one", "queued")
    assert isinstance(listed["schedule"], str)
    assert [row["dag_id"] for row in cli.json("dags", "list", "--all")] == ["gone", "pair"]
    assert "pair" in cli("dags", "list").stdout


def test_a_dag_is_shown_with_tasks_and_versions(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    scenario.add(dag("pair", {"first": [], "second": ["first"], "third": ["second"]}))

    shown = cli.json("dags", "show", "pair")

    assert [task["task_id"] for task in shown["tasks"]] == ["first", "second", "third"]
    assert [(version["number"], version["runs"]) for version in shown["versions"]] == [(2, 0), (1, 1)]
    assert "third" in cli("dags", "show", "pair").stdout


def test_the_graph_is_edges_or_mermaid(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("mixed", {"a": [], "b": ["a"], "alone": []}))

    assert cli("dags", "graph", "mixed").stdout.splitlines() == ["a -> b", "alone"]
    assert "  t0 --> t1" in cli("dags", "graph", "mixed", "--format", "mermaid").stdout
    assert cli.json("dags", "graph", "mixed") == {"dag_id": "mixed", "tasks": ["a", "b", "alone"], "edges": [["a", "b"]]}


def test_import_errors_are_listed(cli: Cli, scenario: Scenario) -> None:
    scenario.sql("insert into import_error (file, line, message, traceback) values ('bad.py', 3, 'no such name', 'Traceback ...')")

    (error,) = json.loads(cli("dags", "errors", "--json").stdout)

    assert set(error) >= {"file", "message", "traceback", "seen_at"}
    assert (error["file"], error["message"], error["traceback"]) == ("bad.py", "no such name", "Traceback ...")
    assert has_offset(error["seen_at"])
    assert cli("dags", "errors").stdout == "bad.py:3: no such name\n"
    assert "1 DAG file cannot be read" in cli("dags", "list").stderr


def test_workers_are_listed_with_their_heartbeats(cli: Cli, scenario: Scenario) -> None:
    scenario.sql(
        "insert into process (id, kind, name, host, pid, queues, concurrency, heartbeat_at)"
        " values ('s#1', 'worker', 's', 'h', 2, '{spark}', 1, now() - interval '1 hour')"
    )
    scenario.sql("insert into process (id, kind, name, host, pid, stopped_at) values ('e#1', 'worker', 'e', 'h', 3, now())")

    workers = cli.json("workers", "list")

    assert [(row["name"], row["state"], row["queues"]) for row in workers] == [
        ("s", "silent", ["spark"]),
        ("w", "alive", ["default"]),
    ]
    assert [row["name"] for row in cli.json("workers", "list", "--all")] == ["e", "s", "w"]


def test_a_missing_thing_is_exit_code_3_with_a_near_match(cli: Cli, scenario: Scenario) -> None:
    scenario.trigger("pair", run_id="one")
    commands = {
        ("dags", "show", "pear"): "did you mean 'pair'?",
        ("dags", "graph", "zzz"): "`paceline dags list`",
        ("dags", "pause", "zzz"): "`paceline dags list`",
        ("dags", "trigger", "pear"): "did you mean 'pair'?",
        ("dags", "reparse", "zzz"): "`paceline dags list`",
        ("runs", "list", "--dag", "zzz"): "`paceline dags list`",
        ("runs", "show", "pair", "on"): "did you mean 'one'?",
        ("runs", "show", "zzz", "one"): "no DAG 'zzz'",
        ("runs", "watch", "pair", "zzz"): "`paceline runs list --dag pair`",
        ("tasks", "list", "pair", "zzz"): "no run 'zzz'",
        ("tasks", "logs", "pair", "one", "firs"): "did you mean 'first'?",
        ("pools", "delete", "zzz", "--yes"): "`paceline pools list`",
    }
    for arguments, words in commands.items():
        done = cli(*arguments)
        assert (done.exit_code, words in done.stderr) == (3, True), (arguments, done.output)
        assert done.stderr.count("\n") == 1


def test_names_are_data_and_not_sql_or_markup(cli: Cli, scenario: Scenario) -> None:
    scenario.add(dag("o'brien [red]%s", {"a": []}))

    assert [row["dag_id"] for row in cli.json("dags", "list")] == ["o'brien [red]%s", "pair"]
    assert "o'brien [red]%s" in cli("dags", "list").stdout
    assert cli("runs", "show", "pair", "'; drop table dag; --").exit_code == 3


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


def test_waiting_and_failed_notices_are_listed(cli: Cli, scenario: Scenario) -> None:
    scenario.schedulers[0].service(Notify).close()
    scenario.triggered(
        dag("d", {"a": []}, task={"notify": ("on_failure", "email_failure"), "email": ("a@example.org",)}), run_id="r"
    )
    scenario.run_to_end(outcome=lambda _: TaskState.FAILED)
    assert cli.json("notices", "list", "--failed") == []
    assert cli.json("notices", "list", "--dag", "pair") == []

    (callback,) = transact(scenario.engine, notices.claim, "s", emails=False, lease_s=60, limit=20)
    transact(scenario.engine, notices.end, callback.id, "s", error="ValueError: no such channel")

    (failed,) = cli.json("notices", "list", "--failed", "--dag", "d")
    assert (failed["kind"], failed["error"]) == ("on_failure", "ValueError: no such channel")
    (waiting,) = cli.json("notices", "list")
    names = ("kind", "dag_id", "run_id", "task_id", "map_index", "try_number", "attempts")
    assert [waiting[name] for name in names] == ["email_failure", "d", "r", "a", -1, 1, 0]
    assert "ValueError: no such channel" in cli("notices", "list", "--failed", COLUMNS="200").output
    assert cli("notices", "list", "--dag", "nobody").exit_code == 3


def test_broken_rows_are_named_until_they_are_repaired(cli: Cli, scenario: Scenario) -> None:
    assert cli("doctor", "--deep").exit_code == 0
    scenario.trigger("pair", run_id="one")
    scenario.turn()
    (message,) = scenario.messages()
    scenario.claim(message)
    scenario.sql("update task_instance set worker = 'nobody', started_at = now() - interval '1 hour' where state = 'running'")

    shown = cli("doctor", "--deep")
    assert shown.exit_code == 1
    assert "running with worker nobody" in shown.stdout
    assert "clear or mark" in shown.stderr
    report = json.loads(cli("doctor", "--deep", "--json").stdout)
    (broken,) = report["broken"]
    named = (broken["invariant"], broken["dag_id"], broken["run_id"], broken["task_id"], broken["map_index"])
    assert named == ("dead worker", "pair", "one", "first", -1)
    assert broken["what"] == "running with worker nobody, which is lost or never existed"
    assert broken["since"] is not None

    tools = Tools(scenario.engine, scenario.settings, scenario.brokers)
    assert repair(tools, invariants.find(tools)) == []
    assert json.loads(cli("doctor", "--deep", "--json").stdout) == {"ok": True, "broken": []}
    assert cli("doctor", "--deep").exit_code == 0
    scenario.run_to_end()


FLIGHTS, WEATHER = Asset("flights", "s3://lake/flights"), Asset("weather", "s3://lake/weather")


def test_the_next_runs_of_a_schedule(cli: Cli, scenario: Scenario) -> None:
    table = timetable.CronInterval("0 0 1 1 *")
    start = datetime(2040, 1, 1, tzinfo=UTC)
    scenario.add(chain("yearly", 1, schedule=table.to_spec(), start_date=start.isoformat(), end_date="2042-06-01T00:00:00+00:00"))

    before = cli.json("dags", "next", "yearly", "--count", "5")
    scenario.turn()

    assert [row["logical_date"][:10] for row in before] == ["2040-01-01", "2041-01-01", "2042-01-01"]
    assert [row["run_after"][:10] for row in before] == ["2041-01-01", "2042-01-01", "2043-01-01"]
    assert cli.json("dags", "next", "yearly", "--count", "5") == before
    assert len(cli.json("dags", "next", "yearly")) == 1


def test_a_schedule_that_makes_no_run_is_reported(cli: Cli, scenario: Scenario) -> None:
    assert cli.json("dags", "next", "pair") == []
    assert "creates no further runs" in cli("dags", "next", "pair").stderr
    assert cli("dags", "next", "nobody").exit_code == 3


def test_a_schedule_of_assets_is_shown_and_updated(cli: Cli, scenario: Scenario) -> None:
    scenario.add(chain("user", 1, schedule=timetable.WhenUpdated(FLIGHTS & WEATHER).to_spec()))
    assert cli.json("dags", "show", "user")["schedule"] == "on flights and weather"
    assert {row["dag_id"]: row["schedule"] for row in cli.json("dags", "list")}["user"] == "on flights and weather"

    event = cli.json("assets", "update", "s3://lake/flights", "--extra", '{"rows": 7}')
    assert (event["uri"], event["extra"], event["created_by"]) == ("s3://lake/flights", {"rows": 7}, "cli")
    assert "is updated" in cli("assets", "update", "weather").stdout
    scenario.run_to_end()

    assert [run["run_type"] for run in cli.json("runs", "list", "--dag", "user")] == ["asset_triggered"]
    listed = cli.json("assets", "list")
    assert [(row["name"], row["waited_for_by"], row["updated_at"] is not None) for row in listed] == [
        ("flights", ["user"], True),
        ("weather", ["user"], True),
    ]
    assert "s3://lake/flights" in cli("assets", "list").stdout


def test_a_partition_is_given_to_a_run_and_to_an_update(cli: Cli, scenario: Scenario) -> None:
    scenario.add(chain("user", 1, schedule=PartitionedAssetTimetable(assets=FLIGHTS).to_spec()))

    assert cli("dags", "trigger", "pair", "--run-id", "mine", "--partition", "eu").exit_code == 0
    assert cli("assets", "update", "flights", "--partition", "us").exit_code == 0
    scenario.run_to_end()

    assert scenario.rows("select dag_id, partition_key from dag_run order by id") == [("pair", "eu"), ("user", "us")]
    refused = cli("dags", "trigger", "pair", "--partition", "x" * 251)
    assert refused.exit_code != 0 and "partition key must have 1 to 250" in refused.stderr


def test_an_asset_that_nothing_names_is_refused(cli: Cli, scenario: Scenario) -> None:
    done = cli("assets", "update", "s3://nowhere")

    assert done.exit_code == 3
    assert "No DAG uses the asset 's3://nowhere'; `paceline assets list` lists all." in done.stderr


def test_an_unreadable_schedule_hides_no_other_dag(cli: Cli, scenario: Scenario) -> None:
    scenario.add(chain("odd", 1, schedule={"kind": "from the future"}))

    listed = {row["dag_id"]: row["schedule"] for row in cli.json("dags", "list")}

    assert listed == {"odd": "not understood: {'kind': 'from the future'}", "pair": "never, only by hand"}
