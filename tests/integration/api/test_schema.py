"""The API as a whole: responses as described and of bounded size, all operations of Airflow's client, and compared with itself."""

import inspect
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from airflow_client import client as airflow
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance
from support.scenario import dag

from scheduler.api.call import PREFIX
from scheduler.api.params import LONGEST_PAGE
from scheduler.cli import paceline
from scheduler.dagfiles.migrate import shadow
from scheduler.store.read import instances

from .conftest import PASSWORD, Web, World

#: The first streams until the end of a run, the second is 503 as soon as no scheduler is alive, and the third never ends.
LEFT_OUT = ("/wait", "/health", "/events")
#: Requests for each operation.
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "4"))


@schemathesis.serializer("application/gzip")
def archive(_: object, value: Any) -> bytes:
    """The body of an upload: any bytes, which are no archive."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_generated_request_breaks_anything(web: Web, world: World) -> None:
    token = web.account("ada", "admin")
    headers = {"Authorization": f"Bearer {token}"}
    with web.http(token) as http:
        document = http.get(f"{PREFIX}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    failures: list[str] = []
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith(LEFT_OUT):
            continue
        tried += 1

        def send(case: schemathesis.Case) -> None:
            response = case.call(base_url=web.url, headers=headers)
            case.validate_response(
                response, checks=[not_a_server_error, response_schema_conformance, status_code_conformance], headers=headers
            )

        try:
            settings(
                max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
                suppress_health_check=list(HealthCheck),
            )(given(operation.as_strategy())(send))()  # fmt: skip
        except (Exception, BaseExceptionGroup) as error:  # each operation is tried
            failures.append(f"{operation.label}: {error}")

    assert failures == [], "\n\n".join(failures)
    assert tried > 100


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
    # tables.MOST_VERSIONS.
    f"{API}/tables/{{table_name}}",
    # max_bytes of a log.
    f"{TI}/logs/{{try_number}}",
    # operations.MOST_POINTS, operations.MOST_LISTED, home.MOST, params.LONGEST_PAGE.
    # jump.MOST of each kind; and the tasks and fields of one run.
    f"{API}/jump", f"{RUN}/comparison",
    # scratch.MOST, each with the tables of one run.
    f"{RUN}/reproductions",
    f"{API}/queues/history", f"{API}/poolLines/{{pool_name}}", f"{API}/home", f"{API}/queues", f"{API}/processes", f"{API}/workers",
    # operations.MOST_BARS and operations.MOST_TAGS.
    f"{API}/home/trend",
    # 53 weeks of days and 24 hours, by state.
    f"{API}/dags/{{dag_id}}/calendar",
    f"{RUN}/upstreamAssetEvents",
    # The DAG IDs of a version, and what differs from another: a version has at most bundles.max_files files.
    f"{API}/bundles/{{bundle_name}}/versions/{{version_number}}",
    f"{API}/bundles/{{bundle_name}}/versions/{{version_number}}/changes",
    # plan.MOST_RUNS for each DAG of a version, and bundles.MOST_NUMBERS.
    f"{API}/bundles/{{bundle_name}}/plan",
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


#: Pages, and operations that Paceline does not have: they return 501, see scheduler/api/routes/installation.py.
NOT_CALLED = {"login", "logout", "enqueue_connection_test", "get_connection_test"}


def operations() -> set[str]:
    apis = [kind for name, kind in vars(airflow).items() if name.endswith("Api") and inspect.isclass(kind)]
    names = {name for api in apis for name, member in vars(api).items() if inspect.isfunction(member)}
    return {
        name for name in names if not name.startswith("_") and not name.endswith(("_with_http_info", "_without_preload_content"))
    }


def test_every_operation_is_called_by_a_test() -> None:
    texts = [
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name
    ]
    called = set(re.findall(r"\.(\w+?)(?:_without_preload_content)?[(,]", "\n".join(texts)))

    assert operations() - called == NOT_CALLED
    assert len(operations() & called) > 100


def run(web: Web, *arguments: str, url: str = "", **environment: str) -> Result:
    settings = web.settings
    own = {
        "PACELINE_HOME": str(settings.home),
        "PACELINE_DATABASE_URL": settings.database_url,
        "PACELINE_BROKER_URL": settings.broker_url,
    }
    words = ["migrate-airflow", "--shadow", url or web.url, "--since", "2026-01-01T00:00:00+00:00", *arguments]
    return CliRunner().invoke(paceline, words, env={**own, **environment})


def test_finished_runs_are_compared_page_by_page(web: Web, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "PAGE", 1)
    web.account("ada", "viewer")

    done = run(web, AIRFLOW_API_USER="ada", AIRFLOW_API_PASSWORD=PASSWORD)

    assert (done.exit_code, done.stderr) == (0, "2 runs compared, 0 differences.\n")


@contextmanager
def with_another_state(web: Web) -> Iterator[str]:
    """The URL of a server that forwards requests to `web`, and responds that each task `load` was skipped."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {"Authorization": self.headers["Authorization"]}
            answer = httpx.get(f"{web.url}{self.path}", headers=headers, timeout=30)
            found = answer.json()
            for instance in found.get("task_instances", ()):
                if instance["task_id"] == "load":
                    instance["state"] = "skipped"
            body = json.dumps(found).encode()
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_different_state_is_reported(web: Web, world: World) -> None:
    with with_another_state(web) as url:
        done = run(web, "--dag", "etl", "--json", url=url, AIRFLOW_API_TOKEN=web.account("ada", "viewer"))

    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["runs"] == 2
    assert [
        (difference["logical_date"][:10], difference["task_id"], difference["airflow"], difference["paceline"])
        for difference in found["differences"]
    ] == [
        ("2026-01-01", "load", "skipped", "success"),
        ("2026-01-02", "load", "skipped", "upstream_failed"),
    ]


def test_wrong_access_is_one_sentence(web: Web, world: World) -> None:
    web.account("ada", "viewer")

    for environment, words in (
        ({"AIRFLOW_API_TOKEN": "x"}, "rejected the token or the user"),
        ({"AIRFLOW_API_USER": "ada", "AIRFLOW_API_PASSWORD": "wrong"}, "rejected the token or the user"),
        ({}, "Set AIRFLOW_API_TOKEN, or AIRFLOW_API_USER and AIRFLOW_API_PASSWORD"),
    ):
        done = run(web, **environment)
        assert (done.exit_code != 0, words in done.stderr) == (True, True), done.stderr
    done = run(web, url="http://127.0.0.1:1", AIRFLOW_API_TOKEN="x")
    assert (done.exit_code, done.stderr) == (4, "Error: Airflow at http://127.0.0.1:1 cannot be reached: ConnectionError.\n")
