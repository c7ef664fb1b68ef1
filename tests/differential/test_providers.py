"""Provider packages for Airflow run on the import hook: common.sql with SQLite, http, and amazon with a server of S3's API."""

import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import eventually

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Installed without their dependencies, since one of these is Airflow; and the libraries that they use.
PROVIDERS, CLIENTS = HERE / "providers.txt", HERE / "clients.txt"

DAG_FILE = """
from airflow.decorators import dag, task
from airflow.providers.amazon.aws.operators.s3 import S3CreateBucketOperator, S3CreateObjectOperator, S3ListOperator
from airflow.providers.amazon.aws.sensors.s3 import S3KeySensor
from airflow.providers.common.sql.operators.sql import SQLCheckOperator, SQLExecuteQueryOperator
from airflow.providers.http.operators.http import HttpOperator
from airflow.providers.http.sensors.http import HttpSensor

@dag(schedule=None)
def providers():
    make = SQLExecuteQueryOperator(task_id="make", conn_id="db", sql=["create table t (n int)", "insert into t values (1), (2)"])
    check = SQLCheckOperator(task_id="check", conn_id="db", sql="select count(*) = 2 from t")
    total = SQLExecuteQueryOperator(task_id="total", conn_id="db", sql="select sum(n) from t")
    make >> check >> total

    asked = HttpSensor(task_id="asked", http_conn_id="web", endpoint="ready", poke_interval=0.1)
    answer = HttpOperator(task_id="answer", http_conn_id="web", endpoint="count?ds={{ ds }}", method="GET",
                          response_filter=lambda response: response.json()["path"])
    asked >> answer

    bucket = S3CreateBucketOperator(task_id="bucket", bucket_name="incoming", region_name="us-east-1")
    put = S3CreateObjectOperator(task_id="put", s3_bucket="incoming", s3_key="in/{{ ds }}.csv", data="1,2")
    seen = S3KeySensor(task_id="seen", bucket_name="incoming", bucket_key="in/*.csv", wildcard_match=True, poke_interval=0.1)
    keys = S3ListOperator(task_id="keys", bucket="incoming", prefix="in/")
    bucket >> put >> seen >> keys

providers()
"""


@pytest.fixture(scope="module")
def environment() -> Path:
    """The programs of an environment with Paceline's packages, the providers and their clients. It is made once."""
    wanted = PROVIDERS.read_text() + CLIENTS.read_text() + sys.version
    folder = Path.home() / ".cache" / "paceline" / f"providers-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    mark = folder / ".installed"
    if not mark.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-r", str(PROVIDERS)], check=True)
        subprocess.run([*pip, "-r", str(CLIENTS), "-c", str(ROOT / "constraints.txt")], check=True)
        mark.touch()
    # Another checkout may have made the environment.
    (packages,) = folder.glob("lib/python*/site-packages")
    own = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "paceline.pth").write_text(f"{ROOT}\n{own}\n")
    return folder / "bin"


@pytest.fixture
def web() -> Iterator[str]:
    """The address of a server that returns its path."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"path": self.path}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def s3(environment: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server with the API of S3."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (tmp_path / "s3.log").open("w")
    server = subprocess.Popen([environment / "python", "-m", "moto.server", "-p", str(port)], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{address}/moto-api/", timeout=5):
                return True
        except OSError:
            return False

    try:
        eventually(answers, timeout=60, interval=0.2)
        yield address
    finally:
        server.terminate()
        server.wait(10)
        log.close()


def test_their_operators_and_sensors_work(environment: Path, web: str, s3: str, tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "d.py").write_text(DAG_FILE)
    connections = {
        "db": {"conn_type": "sqlite", "host": str(tmp_path / "db.sqlite")},
        "web": {"conn_type": "http", "host": web},
        "aws_default": {"conn_type": "aws", "login": "x", "password": "y",
                        "extra": {"endpoint_url": s3, "region_name": "us-east-1"}},
    }  # fmt: skip
    given = {f"PACELINE_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()}

    done = subprocess.run(
        [environment / "python", "-P", "-m", "scheduler.cli", "dags", "test", "providers", "--date", "2026-03-04", "--json"],
        env={**os.environ, **given, "PACELINE_HOME": str(tmp_path), "PACELINE_DAGS_FOLDER": str(tmp_path / "dags"),
             "PACELINE_CORE_AIRFLOW_IMPORTS": "true", "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    results = {task["task_id"]: task["result"] for task in found["tasks"]}
    assert found["state"] == "success"
    assert results["total"] == [[3]]
    assert results["answer"] == "/count?ds=2026-03-04"
    assert results["keys"] == ["in/2026-03-04.csv"]
