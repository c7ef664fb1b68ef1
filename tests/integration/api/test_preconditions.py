"""If-Match while another request or process changes the same thing at the same moment."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from fastapi.routing import APIRoute
from support.scenario import chain
from support.waiting import eventually

from scheduler.api import access
from scheduler.api.call import PREFIX

from .conftest import Web, World

RUN = f"{PREFIX}/dags/etl/dagRuns/good"
TI = f"{RUN}/taskInstances/extract"
MAPPED = f"{TI}/-1"
THIS_INSTANCE = "(select id from task_instance where task_id = 'extract' and dag_run_id ="
THIS_INSTANCE += " (select id from dag_run where run_id = 'good'))"
#: As each statement that adds a row of a task instance.
LOCKED = f"select id, {{}} from task_instance where id = {THIS_INSTANCE} for key share"
#: By the path of a route: a path, two changes, and a statement that locks a row of the thing as a change of it does.
CASES: dict[str, tuple[str, str, tuple[object, object], str]] = {
    "/variables/{variable_key:path}": (
        "PATCH", f"{PREFIX}/variables/v", ({"key": "v", "value": "2"}, {"key": "v", "value": "3"}),
        "update variable set value = value where key = 'v'",
    ),
    "/connections/{connection_id:path}": (
        "PATCH", f"{PREFIX}/connections/c",
        ({"connection_id": "c", "conn_type": "y"}, {"connection_id": "c", "conn_type": "z"}),
        "update connection set host = 'h' where conn_id = 'c'",
    ),
    "/pools/{pool_name:path}": (
        "PATCH", f"{PREFIX}/pools/p", ({"slots": 2}, {"slots": 3}), "update pool set slots = 9 where name = 'p'",
    ),
    "/dags/{dag_id}": (
        "PATCH", f"{PREFIX}/dags/etl", ({"is_paused": True}, {"is_paused": True}),
        "update dag_schedule set is_paused = is_paused where dag_id = 'etl'",
    ),
    "/dags/{dag_id}/dagRuns/{dag_run_id}": (
        "PATCH", RUN, ({"note": "one"}, {"note": "two"}),
        "insert into run_note (dag_run_id, note) select id, 'n' from dag_run where run_id = 'good'",
    ),
    "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}": (
        "PATCH", TI, ({"note": "one"}, {"note": "two"}),
        "insert into instance_note (task_instance_id, note) " + LOCKED.format("'n'"),
    ),
    "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}": (
        "PATCH", MAPPED, ({"note": "one"}, {"note": "two"}),
        "insert into instance_note (task_instance_id, note) " + LOCKED.format("'n'"),
    ),
    "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/hitlDetails": (
        "PATCH", f"{MAPPED}/hitlDetails", ({"chosen_options": ["a"]}, {"chosen_options": ["b"]}),
        "insert into task_state (task_instance_id, key, value) " + LOCKED.format("'hitl_response', '{}'"),
    ),
    "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/state-store/{key:path}": (
        "PUT", f"{TI}/state-store/k", ({"value": 1}, {"value": 2}), "update task_state set value = '3' where key = 'k'",
    ),
    "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/xcomEntries/{xcom_key:path}": (
        "PATCH", f"{TI}/xcomEntries/return_value", ({"value": 1}, {"value": 2}),
        "update xcom set value = '3' where key = 'return_value' and task_instance_id = "
        f"{THIS_INSTANCE}",
    ),
    "/assets/{asset_id}/state-store/{key:path}": (
        "PUT", f"{PREFIX}/assets/ID/state-store/k", ({"value": 1}, {"value": 2}),
        "update asset_state set value = '3' where key = 'k'",
    ),
}  # fmt: skip
WAITS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


def test_each_change_of_one_thing_compares_its_rows(web: Web) -> None:
    """Each path with a GET and a change, except lists."""
    methods: dict[str, set[str]] = {}
    for route in web.app.routes:
        if isinstance(route, APIRoute) and route.path.startswith(PREFIX):
            methods.setdefault(route.path.removeprefix(PREFIX), set()).update(route.methods or ())
    both = {path for path, of_path in methods.items() if "GET" in of_path and of_path & {"PATCH", "PUT", "DELETE"}}
    lists = {
        "/dags", "/variables", "/connections", "/pools", "/dags/{dag_id}/dagRuns",
        "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances",
        "/dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/state-store", "/assets/{asset_id}/state-store",
        "/assets/{asset_id}/queuedEvents", "/dags/{dag_id}/assets/queuedEvents", "/dags/{dag_id}/assets/{asset_id}/queuedEvents",
    }  # fmt: skip

    assert set(access.THINGS) == both - lists == set(CASES)


@contextmanager
def held(world: World, statement: str) -> Iterator[Callable[[], None]]:
    """The uncommitted change of another process; it is committed by the function, or else undone."""
    with world.scenario.engine.connect() as connection:
        assert connection.exec_driver_sql(statement).rowcount == 1, statement
        yield connection.commit
        connection.rollback()


@pytest.fixture
def things(web: Web, world: World) -> Iterator[httpx.Client]:
    """A client beside one thing of each kind."""
    world.scenario.add(chain("producer", 1, task={"outlets": ("s3://b/k",), "notify": ("asset",)}))
    world.scenario.sql(
        f"insert into task_state (task_instance_id, key, value) values ({THIS_INSTANCE}, 'k', '0'), ({THIS_INSTANCE},"
        ' \'hitl_request\', \'{"subject": "s", "options": ["a", "b"], "try_number": 1}\')'
    )
    with web.http(web.account("ada", "admin")) as http:
        for kind, body in (
            ("variables", {"key": "v", "value": "1"}),
            ("connections", {"connection_id": "c", "conn_type": "x"}),
            ("pools", {"name": "p", "slots": 1}),
        ):
            assert http.post(f"{PREFIX}/{kind}", json=body).status_code == 201
        yield http


def path_of(http: httpx.Client, path: str) -> str:
    if "ID" not in path:
        return path
    (asset,) = http.get(f"{PREFIX}/assets").json()["assets"]
    path = path.replace("ID", str(asset["id"]))
    assert http.put(path, json={"value": 0}).status_code == 204
    return path


def test_a_change_that_commits_after_the_comparison_is_not_overwritten(things: httpx.Client, world: World) -> None:
    """The other change is not committed when the ETag is compared, and then the request waits for its lock."""
    # It waits for the answer.
    world.scenario.sql(f"update task_instance set resume = '{{}}' where id = {THIS_INSTANCE}")
    for route, (method, path, (body, _), statement) in CASES.items():
        path = path_of(things, path)
        tag = things.get(path).headers["etag"]
        with ThreadPoolExecutor(1) as pool, held(world, statement) as commit:
            answer = pool.submit(things.request, method, path, json=body, headers={"If-Match": tag})
            eventually(lambda: world.scenario.rows(WAITS) == [(1,)], timeout=20, message=route)
            commit()
            assert answer.result(30).status_code == 412, route
            allowed = {409} if "hitl" in path else {200, 204}
            assert things.request(method, path, json=body, headers={"If-Match": "*"}).status_code in allowed, route
            # The rows of notes are there from now on.
            world.scenario.sql("delete from run_note")
            world.scenario.sql("delete from instance_note")


@pytest.mark.parametrize(
    ("method", "kind", "name", "body", "statement", "status", "then"),
    [
        ("PATCH", "pools", "p", {"description": "d"}, "update pool set slots = 9 where name = 'p'", 200,
         {"slots": 9, "description": "d"}),
        ("PATCH", "variables", "v", {"key": "v", "value": "1", "description": "d"},
         "update variable set value = w.value from variable w where variable.key = 'v' and w.key = 'w'", 200,
         {"value": "9", "description": "d"}),
        ("PATCH", "connections", "c", {"connection_id": "c", "conn_type": "y"},
         "update connection set host = 'h' where conn_id = 'c'", 200, {"host": "h", "conn_type": "y"}),
        ("POST", "pools", "new", {"name": "new", "slots": 1}, "insert into pool (name, slots) values ('new', 9)", 409,
         {"slots": 9}),
        ("POST", "variables", "new", {"key": "new", "value": "1"},
         "insert into variable (key, value) select 'new', value from variable where key = 'w'", 409, {"value": "9"}),
        ("POST", "connections", "new", {"connection_id": "new", "conn_type": "y"},
         "insert into connection (conn_id, conn_type) values ('new', 'z')", 409, {"conn_type": "z"}),
    ],
)  # fmt: skip
def test_a_change_keeps_what_the_change_before_it_has_written(
    things: httpx.Client, world: World, method: str, kind: str, name: str, body: object, statement: str, status: int,
    then: dict[str, object],
) -> None:  # fmt: skip
    """Without If-Match: the other change commits while the request waits for its lock."""
    things.post(f"{PREFIX}/variables", json={"key": "w", "value": "9"})
    path = f"{PREFIX}/{kind}" if method == "POST" else f"{PREFIX}/{kind}/{name}"
    mask = {"update_mask": "description"} if (method, kind) == ("PATCH", "variables") else {}
    with ThreadPoolExecutor(1) as pool, held(world, statement) as commit:
        answer = pool.submit(things.request, method, path, params=mask, json=body)
        eventually(lambda: world.scenario.rows(WAITS) == [(1,)], timeout=20)
        commit()
        assert answer.result(30).status_code == status, answer.result().text
    shown = things.get(f"{PREFIX}/{kind}/{name}").json()
    assert {field: shown[field] for field in then} == then


def test_of_two_changes_at_once_in_two_web_processes_one_succeeds(
    things: httpx.Client, web: Web, make_web: Callable[..., Web], world: World
) -> None:
    other = httpx.Client(base_url=make_web(web.settings).url, headers=things.headers, timeout=30)
    with other, ThreadPoolExecutor(2) as pool:
        for route in ("/variables/{variable_key:path}", "/pools/{pool_name:path}", "/dags/{dag_id}/dagRuns/{dag_run_id}"):
            method, path, bodies, statement = CASES[route]
            headers = {"If-Match": things.get(path).headers["etag"]}
            with held(world, statement):
                answers: list[Future[httpx.Response]] = [
                    pool.submit(http.request, method, path, json=body, headers=headers)
                    for http, body in zip((things, other), bodies, strict=True)
                ]
                eventually(lambda: world.scenario.rows(WAITS) == [(2,)], timeout=20)
            assert sorted(answer.result(30).status_code for answer in answers) == [200, 412], route


def test_more_changes_at_once_than_connections_all_end(things: httpx.Client, web: Web) -> None:
    """A comparison holds neither a connection nor a thread while its GET waits for one."""
    ready = threading.Barrier(web.settings.web.pool_size + 6)

    def change(no: int) -> int:
        ready.wait()
        path = f"{PREFIX}/variables/v"
        return things.patch(path, json={"key": "v", "value": str(no)}, headers={"If-Match": "*"}).status_code

    with ThreadPoolExecutor(ready.parties) as pool:
        statuses = set(pool.map(change, range(ready.parties)))
    assert 200 in statuses <= {200, 412}


def test_a_list_takes_no_if_match(things: httpx.Client) -> None:
    answer = things.patch(f"{PREFIX}/variables", json={"actions": []}, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["detail"]) == (400, access.NOT_TAKEN)
