"""No response grows with the installation: each list has a limit, or a reason why it is short."""

from collections.abc import Iterator
from typing import Any

from support.scenario import dag

from scheduler.api.params import LONGEST_PAGE
from scheduler.store.read import instances

from .conftest import Web, World

API = "/api/v2"
RUN = f"{API}/dags/{{dag_id}}/dagRuns/{{dag_run_id}}"
TI = f"{RUN}/taskInstances/{{task_id}}"
#: GET routes with lists and without a limit of their own, each with what bounds it.
BOUNDED = {
    # The content of one version of one DAG, or of one task.
    f"{API}/dags/{{dag_id}}/graph", f"{API}/dags/{{dag_id}}", f"{API}/dags/{{dag_id}}/details", f"{RUN}",
    f"{API}/dags/{{dag_id}}/tasks/{{task_id}}", f"{TI}/{{map_index}}/hitlDetails",
    f"{TI}/{{map_index}}/hitlDetails/tries/{{try_number}}", f"{API}/assets/{{asset_id}}",
    # timeline.MOST_BARS and MOST_TRIES for each task of one version; links to one run in applications.
    f"{RUN}/timeline", f"{TI}/progress",
    # history.MOST_STEPS, and a few sentences.
    f"{RUN}/why", f"{TI}/why", f"{TI}/dependencies", f"{TI}/{{map_index}}/dependencies",
    # instances.MOST_TRIES, and `lines` of a log.
    f"{TI}/view", f"{TI}/tries", f"{TI}/{{map_index}}/tries",
    # max_bytes of a log.
    f"{TI}/logs/{{try_number}}",
    # operations.MOST_POINTS, workers.MOST, home.MOST, params.LONGEST_PAGE.
    f"{API}/queues/history", f"{API}/poolLines/{{pool_name}}", f"{API}/home", f"{API}/queues", f"{API}/processes", f"{API}/workers",
    f"{RUN}/upstreamAssetEvents",
    # The settings that exist.
    f"{API}/config", f"{API}/config/section/{{section}}/option/{{option}}",
}  # fmt: skip


def _has_list(document: dict[str, Any], schema: dict[str, Any], seen: tuple[str, ...] = ()) -> bool:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name not in seen and _has_list(document, document["components"]["schemas"][name], (*seen, name))
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("allOf", []), *schema.get("oneOf", [])]
    if isinstance(schema.get("additionalProperties"), dict):
        below.append(schema["additionalProperties"])
    return schema.get("type") == "array" or any(_has_list(document, one, seen) for one in below)


def _listing(document: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The routes whose responses have a list, and whether a parameter or the body limits it."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "get" and not path.endswith("/list"):
                continue
            content = operation["responses"].get("200", {}).get("content", {}).get("application/json")
            if content and _has_list(document, content["schema"]):
                named = {parameter["name"] for parameter in operation.get("parameters", [])}
                yield path, "limit" in named or path.endswith("/list")


def test_every_list_has_a_limit_or_is_short(web: Web) -> None:
    routes = list(_listing(web.app.openapi()))
    assert len(routes) > 50
    assert {path for path, is_limited in routes if not is_limited} == BOUNDED


def test_no_list_is_longer_than_a_page(web: Web, world: World) -> None:
    """Whatever limit a client sends, and with thousands of DAGs, runs, tasks, tries, pools and processes."""
    world.scenario.add(dag("big", {f"t{n}": [] for n in range(LONGEST_PAGE + 10)}))
    fill = (
        "insert into dag (dag_id, file, version_id) select 'd' || n, file, version_id"
        f" from dag, generate_series(1, {LONGEST_PAGE + 10}) n where dag_id = 'etl'",
        "insert into dag_schedule (dag_id) select dag_id from dag on conflict do nothing",
        "insert into dag_run (dag_id, run_id, run_type, state, run_after, started_at, ended_at, version_id)"
        " select d.dag_id, 'n' || n, 'manual', 'success', r.run_after, r.started_at, r.ended_at, r.version_id"
        " from dag d, dag_run r, generate_series(1, 12) n where r.run_id = 'good' and d.dag_id <> 'etl'",
        "insert into dag_run (dag_id, run_id, run_type, state, run_after, started_at, ended_at, version_id)"
        " select r.dag_id, 'm' || n, 'manual', 'success', r.run_after, r.started_at, r.ended_at, r.version_id"
        f" from dag_run r, generate_series(1, {LONGEST_PAGE + 10}) n where r.run_id = 'good'",
        f"insert into pool (name, slots) select 'p' || n, 1 from generate_series(1, {LONGEST_PAGE + 10}) n",
        f"insert into variable (key, value) select 'v' || n, 'x' from generate_series(1, {LONGEST_PAGE + 10}) n",
        "insert into task_try (task_instance_id, try_number, state, ended_at)"
        f" select t.id, n, 'failed', clock_timestamp() from task_instance t join dag_run r on r.id = t.dag_run_id,"
        f" generate_series(1, {2 * LONGEST_PAGE}) n where r.run_id = 'good' and t.task_id = 'extract'",
        "insert into process (id, kind, name, host, pid, started_at, heartbeat_at, stopped_at)"
        " select 'w' || n || '#00000000', 'worker', 'w' || n, 'h', n, clock_timestamp(), clock_timestamp(), clock_timestamp()"
        f" from generate_series(1, {LONGEST_PAGE + 10}) n",
    )
    for statement in fill:
        world.scenario.sql(statement)
    names = {"dag_id": "etl", "dag_run_id": "good", "task_id": "extract", "pool_name": "default_pool", "map_index": "-1",
             "try_number": "1", "task_try_number": "1"}  # fmt: skip
    long = dict[str, int]()
    with web.http(web.account("ada", "admin")) as http:
        for path, _ in _listing(web.app.openapi()):
            for dag_id in ("etl", "big") if path == f"{API}/dags/{{dag_id}}/tasks" else ("etl",):
                try:
                    address = path.format(**names | {"dag_id": dag_id})
                except KeyError:
                    continue  # about one thing of another kind
                for query in ({"limit": str(2**40)}, {"limit": "100", "dag_ids": "~"}, {"stopped": "true"}):
                    if path.endswith("/list"):
                        response = http.post(address, json={"page_limit": 2**40})
                    else:
                        response = http.get(address, params=query)
                    assert response.status_code < 500, (path, response.text)
                    if response.status_code == 200 and "json" in response.headers["content-type"]:
                        long[path] = max(long.get(path, 0), _longest(response.json()))

    assert {path: length for path, length in long.items() if length > 2000} == {}
    assert {path for path, length in long.items() if length >= instances.MOST_TRIES} >= {
        f"{API}/dags", f"{API}/dags/{{dag_id}}/tasks", f"{API}/dagStats", f"{API}/pools", f"{API}/variables",
        f"{API}/processes", f"{API}/recentRuns", f"{API}/dags/{{dag_id}}/dagRuns", f"{TI}/tries",
    }  # fmt: skip


def _longest(value: Any) -> int:
    """The entries of the longest list in a response. Those of lists side by side, such as runs by DAG, are added up."""
    if isinstance(value, dict):
        return sum(_longest(one) for one in value.values())
    if isinstance(value, list):
        return max([len(value), *(_longest(one) for one in value)])
    return 0
