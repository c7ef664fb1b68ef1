"""`paceline migrate-airflow --shadow` reads the REST API of Airflow, which is that of Paceline: it is compared with itself."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from click.testing import CliRunner, Result

from scheduler.cli import paceline
from scheduler.dagfiles.migrate import shadow

from .conftest import PASSWORD, Web, World


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
