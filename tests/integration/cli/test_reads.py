"""The output of the reading commands: the shapes that scripts rely on, and the rows in them."""

import json
from datetime import datetime

from support.scenario import Scenario, dag

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
        ("tasks", "logs", "pair", "one", "frist"): "did you mean 'first'?",
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
