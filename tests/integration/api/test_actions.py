"""Each action of a person, over the REST API and by command: the same rows and wakeups, and its entry in the audit log."""

import inspect
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.scenario import chain

from scheduler import actions
from scheduler.api.call import PREFIX
from scheduler.api.models.dags import file_token
from scheduler.cli import paceline
from scheduler.messaging.wakeups import AFTER, KEY, QUEUE_KEY, Action

from .conftest import Web, World

RUN, TI = "/dags/etl/dagRuns/bad", "/dags/etl/dagRuns/bad/taskInstances/extract"
STATES = "select distinct t.task_id, t.state from task_instance t join dag_run r on r.id = t.dag_run_id where r.run_id = 'bad'"
OF_BAD = "(select t.id from task_instance t join dag_run r on r.id = t.dag_run_id where r.run_id = 'bad' and t.task_id = 'extract')"
BACKFILL = ("insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess, is_paused)"
            " select 'hourly', version_id, '2026-01-01', '2026-01-02', 1, 'none', {} from dag where dag_id = 'hourly'")  # fmt: skip
ASK = ("insert into task_state (task_instance_id, key, value) select t.id, 'hitl_request',"
       ' \'{"subject": "s", "options": ["yes"], "try_number": 1}\' from task_instance t join dag_run r on r.id = t.dag_run_id'
       " where r.run_id = 'now' and t.task_id = 'extract'")  # fmt: skip

#: A table that a second publication has changed.
TABLE = (
    "insert into table_version (catalog, namespace, name, publication, metadata_location, published_by)"
    " values ('lake', 'sales', 't', 1, 'one', 'ada'), ('lake', 'sales', 't', 2, 'two', 'ada')",
    "insert into iceberg_tables values ('lake', 'sales', 't', 'two', 'one', 'TABLE')",
    "update table_publication set number = 2",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One action: how it is asked for, and what it does."""

    #: Method, path and body of the request, and the event of its entry in the audit log.
    rest: tuple[str, str, Any] | None = None
    audit: str | None = None
    cli: tuple[str, ...] | None = None
    #: The event of a command's entry. A command has one only if it changes an account.
    audit_of_command: str | None = None
    #: The action whose wakeups follow, and whether the changed run is one of them.
    wakes: Action | None = None
    with_run: bool = False
    before: tuple[str, ...] = ()
    rows: str
    becomes: list[tuple[Any, ...]]


#: Of an account, which a person can ask for only by command.
ACCOUNT = "select name, role from account where name = 'eve'"
EVE = "insert into account (name, password_hash, role) values ('eve', 'x', 'viewer')"
DAGS = Path(__file__).parents[3] / "dags"
#: A bundle with two versions, of which the second one is live.
BUNDLE = (
    "insert into bundle (name) values ('demo')",
    "insert into bundle_version (bundle, number, digest, state, file_count, byte_count, created_by, dags, live_at)"
    " select 'demo', n, decode(md5(n::text), 'hex'), 'ready', 0, 0, 'ada', '{}', now() from generate_series(1, 2) n",
    "update bundle set version_id = v.id, wanted_id = v.id from bundle_version v where v.number = 2",
)
CASES: dict[str, Case] = {
    "runs.trigger": Case(
        rest=("POST", "/dags/etl/dagRuns", {"dag_run_id": "new", "conf": {"rows": 7}}), audit="trigger_dag_run",
        cli=("dags", "trigger", "etl", "--run-id", "new", "-p", "rows=7"), wakes="run triggered", with_run=True,
        rows="select run_type, state, conf->>'rows' from dag_run where run_id = 'new'", becomes=[("manual", "queued", "7")],
    ),
    "runs.clear": Case(
        rest=("POST", f"{RUN}/clear", {"dry_run": False, "only_failed": True}), audit="clear_dag_run",
        cli=("runs", "clear", "etl", "bad", "--only-failed", "--yes"), wakes="instances changed", with_run=True,
        rows=STATES, becomes=[("extract", None), ("each", None), ("load", None)],
    ),
    "runs.change": Case(
        rest=("PATCH", RUN, {"state": "success"}), audit="patch_dag_run", cli=("runs", "mark", "etl", "bad", "success"),
        wakes="instances changed", with_run=True,
        rows=STATES, becomes=[("extract", "success"), ("each", "success"), ("load", "success")],
    ),
    "runs.delete": Case(
        rest=("DELETE", RUN, None), audit="delete_dag_run", cli=("runs", "delete", "etl", "bad", "--yes"), wakes="runs deleted",
        rows="select run_id from dag_run where dag_id = 'etl' order by id", becomes=[("good",), ("now",)],
    ),
    "runs.delete_each": Case(
        rest=("POST", "/deleteByFilter", {"dry_run": False, "expected": 1, "filter": {"dag_run_ids": ["bad"]}}),
        audit="delete_by_filter", wakes="runs deleted",
        rows="select run_id from dag_run where dag_id = 'etl' order by id", becomes=[("good",), ("now",)],
    ),
    "tasks.clear": Case(
        rest=("POST", "/dags/etl/clearTaskInstances", {"dry_run": False, "dag_run_id": "bad", "task_ids": ["load"]}),
        audit="post_clear_task_instances", cli=("tasks", "clear", "etl", "bad", "load", "--yes"),
        wakes="instances changed", with_run=True,
        rows=STATES, becomes=[("extract", "failed"), ("each", "upstream_failed"), ("load", None)],
    ),
    "tasks.change": Case(
        rest=("PATCH", TI, {"new_state": "skipped"}), audit="patch_task_instance",
        cli=("tasks", "mark", "etl", "bad", "extract", "skipped"), wakes="instances changed", with_run=True,
        rows=STATES, becomes=[("extract", "skipped"), ("each", "upstream_failed"), ("load", "upstream_failed")],
    ),
    "tasks.clear_rows": Case(
        rest=("POST", "/clearByFilter", {"dry_run": False, "filter": {"dag_run_ids": ["bad"], "task_ids": ["load"]}}),
        audit="clear_by_filter", wakes="instances changed", with_run=True,
        rows=STATES, becomes=[("extract", "failed"), ("each", "upstream_failed"), ("load", None)],
    ),
    "tasks.mark_rows": Case(
        rest=("POST", "/markByFilter", {"dry_run": False, "new_state": "success", "filter": {"dag_run_ids": ["bad"]}}),
        audit="mark_by_filter", wakes="instances changed", with_run=True,
        rows=STATES, becomes=[("extract", "success"), ("each", "success"), ("load", "success")],
    ),
    "tasks.delete": Case(
        rest=("DELETE", TI, None), audit="delete_task_instance",
        before=(f"update task_instance set state = 'removed' where id = {OF_BAD}",),
        rows=STATES, becomes=[("each", "upstream_failed"), ("load", "upstream_failed")],
    ),
    "dags.set_paused": Case(
        rest=("PATCH", "/dags/etl", {"is_paused": True}), audit="patch_dag", cli=("dags", "pause", "etl"),
        wakes="dag paused or unpaused",
        rows="select dag_id, is_paused from dag_schedule order by 1", becomes=[("etl", True), ("hourly", False)],
    ),
    "dags.set_each_paused": Case(
        rest=("PATCH", "/dags?dag_id_pattern=~", {"is_paused": True}), audit="patch_dags", wakes="dag paused or unpaused",
        rows="select dag_id, is_paused from dag_schedule order by 1", becomes=[("etl", True), ("hourly", True)],
    ),
    "dags.reparse": Case(
        rest=("PUT", "/parseDagFile/TOKEN", None), audit="reparse_dag_file", cli=("dags", "reparse", "etl"), wakes="files to parse",
        before=("update dag_file set next_parse_at = 'infinity'",),
        rows="select path from dag_file where next_parse_at <= now()", becomes=[("etl.py",)],
    ),
    "dags.delete": Case(
        rest=("DELETE", "/dags/hourly", None), audit="delete_dag", cli=("dags", "delete", "hourly", "--yes"), wakes="runs deleted",
        rows="select dag_id from dag", becomes=[("etl",)],
    ),
    "dags.set_favorite": Case(
        rest=("POST", "/dags/etl/favorite", None), audit="favorite_dag",
        rows="select dag_id from favorite", becomes=[("etl",)],
    ),
    "runs.create_backfill": Case(
        rest=("POST", "/backfills", {"dag_id": "hourly", "from_date": "2026-01-01T00:00Z", "to_date": "2026-01-01T02:00Z"}),
        audit="create_backfill",
        cli=("backfills", "create", "hourly", "--from", "2026-01-01T00:00+00:00", "--to", "2026-01-01T02:00+00:00"),
        wakes="backfill created", rows="select state, count(*) from backfill_run group by 1", becomes=[("waiting", 3)],
    ),
    "runs.preview_backfill": Case(
        rest=("POST", "/backfills/dry_run", {"dag_id": "hourly", "from_date": "2026-01-01T00:00Z", "to_date": "2026-01-01T02:00Z"}),
        cli=("backfills", "create", "hourly", "--from", "2026-01-01T00:00+00:00", "--to", "2026-01-01T02:00+00:00", "--dry-run"),
        rows="select count(*) from backfill", becomes=[(0,)],
    ),
    "runs.pause_backfill": Case(
        rest=("PUT", "/backfills/BACKFILL/pause", None), audit="pause_backfill", cli=("backfills", "pause", "BACKFILL"),
        wakes="backfill changed", before=(BACKFILL.format(False),), rows="select is_paused from backfill", becomes=[(True,)],
    ),
    "runs.resume_backfill": Case(
        rest=("PUT", "/backfills/BACKFILL/unpause", None), audit="unpause_backfill", cli=("backfills", "resume", "BACKFILL"),
        wakes="backfill changed", before=(BACKFILL.format(True),), rows="select is_paused from backfill", becomes=[(False,)],
    ),
    "runs.cancel_backfill": Case(
        rest=("PUT", "/backfills/BACKFILL/cancel", None), audit="cancel_backfill", cli=("backfills", "cancel", "BACKFILL", "--yes"),
        wakes="backfill changed", before=(BACKFILL.format(False),),
        rows="select cancelled, ended_at is not null from backfill", becomes=[(True, True)],
    ),
    "stored.store": Case(
        rest=("POST", "/pools", {"name": "p", "slots": 4}), audit="post_pool", cli=("pools", "set", "p", "4"), wakes="pool set",
        rows="select slots from pool where name = 'p'", becomes=[(4,)],
    ),
    "stored.change": Case(
        rest=("PATCH", "/pools/p", {"slots": 4}), audit="patch_pool", wakes="pool set",
        before=("insert into pool (name, slots) values ('p', 1)",),
        rows="select slots from pool where name = 'p'", becomes=[(4,)],
    ),
    "stored.delete": Case(
        rest=("DELETE", "/pools/p", None), audit="delete_pool", cli=("pools", "delete", "p", "--yes"),
        before=("insert into pool (name, slots) values ('p', 1)",),
        rows="select count(*) from pool where name = 'p'", becomes=[(0,)],
    ),
    "stored.put_xcom": Case(
        rest=("POST", f"{TI}/xcomEntries", {"key": "k", "value": 1}), audit="create_xcom_entry",
        rows="select value from xcom where key = 'k'", becomes=[(1,)],
    ),
    "stored.delete_xcom": Case(
        rest=("DELETE", f"{TI}/xcomEntries/k", None), audit="delete_xcom_entry",
        before=(f"insert into xcom (task_instance_id, key, value) values ({OF_BAD}, 'k', '1')",),
        rows="select count(*) from xcom where key = 'k'", becomes=[(0,)],
    ),
    "stored.set_state": Case(
        rest=("PUT", f"{TI}/state-store/k", {"value": 1}), audit="set_task_state_store",
        rows="select key, value from task_state", becomes=[("k", 1)],
    ),
    "stored.replace_state": Case(
        rest=("PATCH", f"{TI}/state-store/k", {"value": 2}), audit="patch_task_state_store",
        before=(f"insert into task_state (task_instance_id, key, value) values ({OF_BAD}, 'k', '1')",),
        rows="select key, value from task_state", becomes=[("k", 2)],
    ),
    "stored.delete_state": Case(
        rest=("DELETE", f"{TI}/state-store/k", None), audit="delete_task_state_store",
        before=(f"insert into task_state (task_instance_id, key, value) values ({OF_BAD}, 'k', '1')",),
        rows="select count(*) from task_state", becomes=[(0,)],
    ),
    "stored.set_asset_state": Case(
        rest=("PUT", "/assets/ASSET/state-store/k", {"value": 1}), audit="set_asset_state_store",
        rows="select uri, key, value from asset_state", becomes=[("s3://b/k", "k", 1)],
    ),
    "stored.delete_asset_state": Case(
        rest=("DELETE", "/assets/ASSET/state-store/k", None), audit="delete_asset_state_store",
        before=("insert into asset_state (uri, key, value, dag_id, run_id, task_id, map_index)"
                " values ('s3://b/k', 'k', '1', '', '', '', -1)",),
        rows="select count(*) from asset_state", becomes=[(0,)],
    ),
    "stored.update_asset": Case(
        rest=("POST", "/assets/events", {"asset_id": "ASSET", "extra": {"rows": 1}}), audit="create_asset_event",
        cli=("assets", "update", "s3://b/k", "--extra", '{"rows": 1}'), wakes="asset updated",
        rows="select uri, extra from asset_event", becomes=[("s3://b/k", {"rows": 1})],
    ),
    "stored.drop_updates": Case(
        rest=("DELETE", "/assets/ASSET/queuedEvents", None), audit="delete_asset_queued_events",
        before=("insert into asset (uri, name) values ('s3://b/k', 's3://b/k') on conflict do nothing",
                "insert into asset_event (uri, created_by) values ('s3://b/k', 'cli')",
                "insert into asset_waiting (dag_id, uri, event_id) select 'etl', uri, id from asset_event"),
        rows="select count(*) from asset_waiting", becomes=[(0,)],
    ),
    "stored.answer": Case(
        rest=("PATCH", "/dags/etl/dagRuns/now/taskInstances/extract/-1/hitlDetails", {"chosen_options": ["yes"]}),
        audit="update_hitl_detail", before=(ASK,),
        rows="select value->'chosen_options' from task_state where key = 'hitl_response'", becomes=[(["yes"],)],
    ),
    "installation.drain": Case(
        rest=("POST", "/workers/w1/drain", None), audit="drain_worker", cli=("workers", "drain", "w1"),
        before=("insert into process (id, kind, name, host, pid) values ('w1#1', 'worker', 'w1', 'h', 1)",),
        rows="select process_id from worker_drain", becomes=[("w1#1",)],
    ),
    "installation.create_account": Case(
        cli=("users", "create", "eve", "--role", "viewer"), audit_of_command="users.create",
        rows=ACCOUNT, becomes=[("eve", "viewer")],
    ),
    "installation.set_password": Case(
        cli=("users", "password", "eve"), audit_of_command="users.password", before=(EVE,),
        rows="select password_hash <> 'x' from account where name = 'eve'", becomes=[(True,)],
    ),
    "installation.create_token": Case(
        cli=("users", "token", "eve"), audit_of_command="users.token", before=(EVE,),
        rows="select k.name from account_key k join account a on a.id = k.account_id where a.name = 'eve'", becomes=[("cli",)],
    ),
    "installation.revoke_tokens": Case(
        cli=("users", "token", "eve", "--revoke", "--yes"), audit_of_command="users.revoke_token",
        before=(EVE, "insert into account_key (account_id, kind, digest, name, expires_at)"
                     " select id, 'token', '\\x00', 'cli', 'infinity' from account where name = 'eve'"),
        rows="select count(*) from account_key k join account a on a.id = k.account_id where a.name = 'eve'", becomes=[(0,)],
    ),
    "installation.delete_account": Case(
        cli=("users", "delete", "eve", "--yes"), audit_of_command="users.delete", before=(EVE,), rows=ACCOUNT, becomes=[],
    ),
    "bundles.deploy": Case(
        cli=("deploy", str(DAGS), "--bundle", "demo", "--no-wait"), audit_of_command="bundles.deploy", wakes="bundle deployed",
        rows="select bundle, number, state from bundle_version", becomes=[("demo", 1, "new")],
    ),
    "bundles.roll_back": Case(
        rest=("POST", "/bundles/demo/rollback", {"version_number": 1}), audit="bundles.rollback",
        cli=("deploy", "--rollback", "1", "--bundle", "demo", "--no-wait"), audit_of_command="bundles.rollback",
        wakes="bundle deployed", before=BUNDLE, becomes=[(1,)],
        rows="select v.number from bundle b join bundle_version v on v.id = b.wanted_id",
    ),
    # Its command waits for the end of a run: tests/integration/cli/test_reproduce.py.
    "runs.reproduce": Case(
        rest=("POST", f"{RUN}/reproductions", {"dry_run": False}), audit="runs.reproduce", wakes="run triggered", with_run=True,
        before=(
            *BUNDLE, "update dag_version v set bundle_version_id = b.id from bundle_version b where b.number = 2",
            "insert into table_pin (dag_run_id, task_instance_id, publication)"
            f" select dag_run_id, id, 0 from task_instance where id = {OF_BAD}",
            "insert into table_version (catalog, namespace, name, publication, metadata_location, published_by, task_instance_id)"
            f" values ('lake', 'sales', 't', 1, 'one', 'ada', {OF_BAD})",
        ),
        rows="select run_type, state from dag_run where run_id = 'reproduce__bad__1'", becomes=[("reproduction", "queued")],
    ),
    "stored.roll_back_table": Case(
        cli=("tables", "rollback", "sales.t", "--to", "1"), audit_of_command="tables.rollback", before=TABLE, becomes=[("one", 3)],
        rows="select metadata_location, number from iceberg_tables, table_publication",
    ),
    "installation.clean": Case(
        cli=("db", "clean", "--before", "2100-01-01T00:00+00:00", "--yes"),
        rows="select run_id from dag_run where dag_id = 'etl' order by id", becomes=[("now",)],
    ),
}  # fmt: skip


def test_the_table_has_every_action() -> None:
    """An action is a public function that begins with the person who acts."""
    modules = [f"{actions.__name__}.{one.name}" for one in pkgutil.iter_modules(actions.__path__)]
    found = {
        f"{name.rpartition('.')[2]}.{function}"
        for name in modules
        for function, value in inspect.getmembers(__import__(name, fromlist=["_"]), inspect.isfunction)
        if value.__module__ == name and not function.startswith("_") and next(iter(inspect.signature(value).parameters), "") == "by"
    }

    assert set(CASES) == found


def wakeups(world: World) -> set[str]:
    """The tokens in Redis; "run" is the number of any run."""
    broker = world.scenario.broker
    tokens = {token.decode().partition(":")[0] for key in (KEY, QUEUE_KEY) for token in broker.zrange(key, 0, -1)}
    broker.delete(KEY, QUEUE_KEY)
    return tokens


def prepared(world: World, case: Case) -> dict[str, str]:
    """Make what the case needs, and return what stands for capital words in its request or command."""
    world.scenario.add(chain("hourly", 1, schedule={"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}, catchup=False,
                             task={"outlets": ("s3://b/k",), "notify": ("asset",)}))  # fmt: skip
    for statement in ("insert into dag_file (path, modified_at) values ('etl.py', now()) on conflict do nothing", *case.before):
        world.scenario.sql(statement)
    wakeups(world)
    backfills = world.scenario.rows("select id from backfill")
    return {"BACKFILL": str(backfills[0][0]) if backfills else "", "TOKEN": file_token("etl.py")}


def check(world: World, case: Case, audit: str | None) -> None:
    assert sorted(world.scenario.rows(case.rows), key=str) == sorted(case.becomes, key=str)
    expected = set(AFTER[case.wakes]) | ({"run"} if case.with_run else set()) if case.wakes else set()
    assert wakeups(world) == expected
    assert world.scenario.rows("select event, status < 300 from audit") == ([(audit, True)] if audit else [])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rest])
def test_an_action_over_the_rest_api(web: Web, world: World, name: str) -> None:
    case = CASES[name]
    assert case.rest is not None
    words = prepared(world, case)
    with web.http(web.account("ada", "admin")) as http:
        (asset,) = [one["id"] for one in http.get(f"{PREFIX}/assets").json()["assets"] if one["uri"] == "s3://b/k"]
        method, path, body = case.rest
        if body and body.get("asset_id"):
            body = body | {"asset_id": asset}
        for word, value in (words | {"ASSET": str(asset)}).items():
            path = path.replace(word, value)

        http.request(method, f"{PREFIX}{path}", json=body).raise_for_status()

    check(world, case, case.audit)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.cli])
def test_an_action_by_command(world: World, name: str) -> None:
    case = CASES[name]
    assert case.cli is not None
    words, settings = prepared(world, case), world.scenario.settings
    env = {
        "PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
        "PACELINE_DATABASE_URL": settings.database_url, "PACELINE_BROKER_URL": settings.broker_url,
    }  # fmt: skip

    done = CliRunner().invoke(paceline, [words.get(argument, argument) for argument in case.cli], env=env)

    assert done.exit_code == 0, done.output
    check(world, case, case.audit_of_command)
