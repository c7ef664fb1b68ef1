"""Each check of `make check` finds mistakes."""

import ast

import pytest

from tools import (
    clocks,
    json_errors,
    layout,
    metrics,
    named_things,
    patches,
    promises,
    statements,
    states,
    store_functions,
    worker_writes,
)
from tools.sources import modules


def test_the_checks_find_what_they_judge() -> None:
    """Otherwise they prove nothing."""
    assert len(layout.named()) > 30
    assert sum(1 for page in named_things.PAGES for _ in named_things.commands(page)) > 150
    assert sum(1 for tree in modules("scheduler/store").values() for _ in statements.statements(tree)) > 20
    assert len(promises.tried()) > 50
    assert len(list(metrics.measured())) > 20 and len(metrics.expressions()) > 40
    writes = worker_writes.written_by_workers()
    assert {"xcoms.push", "hot_path.HotPath.report", "external_jobs.add", "fire.fire", "manual_runs.trigger"} <= writes
    assert not writes & {"xcoms.pull", "external_runs.states", "xcoms.entry", "hot_path.HotPath.needs_scheduler"}


CLOCKS = [
    "datetime.now(UTC)", "datetime.datetime.utcnow()", "time.time()", "clock = time.time", "from time import time", "date.today()",
]  # fmt: skip
NO_CLOCKS = ["time.monotonic()", "ti.now()", "clock.now(connection)", "time.sleep(1)"]


@pytest.mark.parametrize(("code", "lines"), [*((one, [1]) for one in CLOCKS), *((one, []) for one in NO_CLOCKS)])
def test_a_read_of_the_clock_is_found(code: str, lines: list[int]) -> None:
    assert list(clocks.reads_of_the_clock(ast.parse(code))) == lines


BY_PLACE = ["row[0]", "found[1]", "rows[0][0]", "row[:2]", "[a for a, b, c, d in found]", "a, b, c, d = row"]
BY_NAME = ["found[0]", "own[-1]", "row.id", "text[:9]", "row['id']", "[a for a, b in found]", "a, b, c, d = 1, 2, 3, 4"]


@pytest.mark.parametrize(("code", "wrong"), [*((one, True) for one in BY_PLACE), *((one, False) for one in BY_NAME)])
def test_a_column_read_by_its_place_is_found(code: str, wrong: bool) -> None:
    assert any(map(store_functions.is_by_position, ast.walk(ast.parse(code)))) is wrong


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("try:\n    json.loads(text)\nexcept ValueError:\n    pass", [1]),
        ("try:\n    json.loads(text)\nexcept (ValueError, RecursionError):\n    pass", []),
        ("with suppress(ValueError):\n    json.loads(text)", [1]),
    ],
)
def test_a_handler_of_wrong_json_that_lets_a_recursion_error_pass_is_found(code: str, lines: list[int]) -> None:
    assert list(json_errors.handlers_without_recursion_error(ast.parse(code))) == lines


WRITING = [
    "insert into xcom (key)",
    "with a as (select 1)\nupdate task_instance t\n   set state = null",
    "delete from favorite where",
]
READING = ["select updated_at from asset", "Lock the rows of a thing until the update of it", "select 1 from dag_run for update"]


@pytest.mark.parametrize(("text", "writes"), [*((one, True) for one in WRITING), *((one, False) for one in READING)])
def test_a_statement_that_writes_is_found(text: str, writes: bool) -> None:
    assert bool(store_functions.WRITES.search(text)) is writes


@pytest.mark.parametrize(
    "function", ["from scheduler import b", "importlib.import_module('scheduler.b')", "import_module('scheduler.b').f()"]
)
def test_an_import_for_types_and_one_inside_a_function_make_a_circle(function: str) -> None:
    a, b = f"def f():\n    {function}", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from scheduler.a import f"

    assert sorted(set(layout.circle({"scheduler.a": ast.parse(a), "scheduler.b": ast.parse(b)}))) == ["scheduler.a", "scheduler.b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("runs explode d r", "paceline runs has no command explode"),
        ("dags list --jsno", "paceline dags list: No such option '--jsno'. Did you mean '--json'?"),
        ("pools set a 1 2", "paceline pools set takes no ['2']"),
        ("runs list --dag d", None),
    ],
)
def test_a_wrong_command_of_a_page_is_found(text: str, why: str | None) -> None:
    (words,) = named_things.variants(text)

    assert named_things.complaint(words) == why


@pytest.mark.parametrize(
    "source",
    [
        "A = ('queued', 'running')",
        "if state in {None, 'success', 'failed'}:\n    pass",
        "B = frozenset({TaskState.SUCCESS, TaskState.SKIPPED})",
        "C = States([S.RUNNING, states.RunState.QUEUED])",
    ],
)
def test_a_set_of_states_is_found(source: str) -> None:
    other = "A = ACTIVE | {S.SCHEDULED}, ('queued', 'places'), x['failed']; B: Literal['success', 'failed']"

    assert len(states.sets_of_states(ast.parse(source))) == 1
    assert states.sets_of_states(ast.parse(other)) == []


@pytest.mark.parametrize(
    ("source", "lists", "strange"),
    [
        ("A = \"select 1 from task_instance where state in ('queued', 'running')\"", 1, set()),
        ("B = f\"\"\"where {x} and coalesce(state, '') not in (\n  'up_for_retry',\n  'deferred')\"\"\"", 1, set()),
        ('def f():\n    g("where state in " "(\'success\'," "\'skipped\')")', 1, set()),
        ("C = \"where state in ('queued')\"", 1, set()),
        ("A = \"where kind in ('success', 'asset') and f('x', state) and state in {ACTIVE.sql} and state = 'queued'\"", 0, set()),
        ("A = \"where t.state = 'runing' or coalesce(t.state, '') = 'queud' or r.state <> 'failed'\"", 0, {"runing", "queud"}),
    ],
)
def test_a_list_of_states_and_a_misspelt_state_in_sql_are_found(source: str, lists: int, strange: set[str]) -> None:
    tree = ast.parse(source)

    assert (len(states.state_lists(tree)), states.strange_states(tree)) == (lists, strange)


IMPORTS = """
import http, os, time
from unittest import mock
from scheduler.dagfiles.watch import Watch
from scheduler.store.accounts import logins
"""


@pytest.mark.parametrize(
    ("line", "replaced"),
    [
        ('monkeypatch.setattr(logins, "seconds_to_wait", late)', ["seconds_to_wait"]),
        ('monkeypatch.setattr(Watch, "_seen", late)', ["_seen"]),
        ('monkeypatch.setattr(logins.Limit, "wait", late)', ["wait"]),
        ('monkeypatch.setattr(scenario.hot, "deciding", late)', ["deciding"]),
        ('monkeypatch.setattr("scheduler.store.accounts.logins.failed", late)', ["failed"]),
        ("self._monkeypatch.setattr(logins, name, late)", ["?"]),
        ('patch.setattr(logins, "_cache", None)', ["_cache"]),
        ('mock.patch("workers.task.execute.run", late)', ["run"]),
        ('mock.patch("paceline.authoring.xcom.encode", late)', ["encode"]),
        ('mock.patch.object(logins, "failed")', ["failed"]),
        ('setattr(Watch, "look", late)', ["look"]),
        ("logins.failed = late", ["failed"]),
        ("Watch.look = late", ["look"]),
        ("thread._attempt = lambda work: None", ["_attempt"]),
        ("thread._attempt, before = lambda work: None, thread._attempt", ["_attempt"]),
        # In strings of code.
        ('RUN = """\nfrom workers import app\nbefore = app.run\napp.run = lambda: before()\n"""', ["run"]),
        ('RUN = """\nfrom workers import app\nif {what}:\n    app.run = {name!r}\n"""', ["run"]),
        ('run(f"""\nfrom workers import app\nif {what}:\n    app.run = None\n""")', ["run"]),
        # Constants and foreign code.
        ('monkeypatch.setattr(logins, "OF_ADDRESS", 1)', []),
        ('monkeypatch.setattr(time, "monotonic", late)', []),
        ('monkeypatch.setattr("click.confirm", late)', []),
        ('mock.patch.dict(os.environ, {"A": "b"})', []),
        ('http.patch("/dags/etl", json={})', []),
        ('http.patch(f"/dags/{path}", json=body)', []),
        ("logins.OF_ADDRESS = 1", []),
        ("task.on_success_callback = late", []),
    ],
)
def test_a_replaced_attribute_of_our_own_is_found(line: str, replaced: list[str]) -> None:
    assert [name for _, name in patches.patches(ast.parse(IMPORTS + line))] == replaced
