"""The flights pipeline on Spark, deployed by command or read from Git, by machines whose DAGs folders are empty."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from support.s3 import s3_server
from support.stacks import Stack, StackFactory
from support.waiting import eventually

pytestmark = [pytest.mark.on_demand, pytest.mark.stack, pytest.mark.spark, pytest.mark.timeout(600)]

DAGS = Path(__file__).parents[2] / "dags"
RUN_S = 400.0


@contextmanager
def by_command(tmp_path: Path) -> Iterator[tuple[dict[str, str], Callable[[Stack], object]]]:
    """Nothing is configured, and the folder is deployed once the stack runs."""
    yield {}, lambda stack: stack.json("deploy", str(DAGS), "--bundle", "demo", "--timeout", "120")


@contextmanager
def by_git(tmp_path: Path) -> Iterator[tuple[dict[str, str], Callable[[Stack], object]]]:
    """Schedulers read a repository from a Git server."""
    work = tmp_path / "served" / "pipelines"
    work.mkdir(parents=True)
    person = ["-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["cp", "-r", str(DAGS), str(work / "dags")], check=True)
    for arguments in (["init", "-q", "-b", "main"], ["add", "."], [*person, "commit", "-q", "-m", "Add the pipelines"]):
        subprocess.run(["git", "-C", str(work), *arguments], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        ["git", "daemon", "--export-all", f"--base-path={work.parent}", "--listen=127.0.0.1", f"--port={port}", "--reuseaddr"],
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"git://127.0.0.1:{port}/pipelines"
        eventually(lambda: subprocess.run(["git", "ls-remote", url], capture_output=True, check=False).returncode == 0)
        yield {"PACELINE_BUNDLES_SOURCES": f"demo=git+{url}#ref=main&folder=dags", "PACELINE_BUNDLES_POLL_INTERVAL": "1"}, id
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def by_object_storage(tmp_path: Path) -> Iterator[tuple[dict[str, str], Callable[[Stack], object]]]:
    """Schedulers read a prefix of an S3 server, with the login of a connection."""
    s3fs = pytest.importorskip("s3fs", reason="make test-metrics installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}}
    own = {"conn_type": "aws", "login": "key", "password": "secret", "extra": place}
    with s3_server(port, tmp_path / "s3.txt", "code"):
        bucket = s3fs.S3FileSystem(key="key", secret="secret", **place)
        for path in sorted(DAGS.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                bucket.pipe_file(f"code/sales/{path.relative_to(DAGS)}", path.read_bytes())
        yield (
            {
                "PACELINE_BUNDLES_SOURCES": "demo=s3://code/sales#connection=code",
                "PACELINE_BUNDLES_POLL_INTERVAL": "1",
                "PACELINE_CORE_FERNET_KEY": Fernet.generate_key().decode(),
            },
            lambda stack: stack.cli("connections", "set", "code", "--conn-json", json.dumps(own)),
        )


@pytest.mark.parametrize("delivered", [by_command, by_git, by_object_storage])
def test_the_flights_run_on_machines_without_a_dags_folder(
    stack_factory: StackFactory, tmp_path: Path, delivered: Callable[[Path], ExitStack]
) -> None:
    # The tasks pass files to each other through a folder, so one machine has them all; the other one only schedules.
    with delivered(tmp_path) as (env, deploy):
        stacks = []
        for name, workers in (("one", [("default,spark,spark-heavy", 3)]), ("two", [("other", 1)])):
            home = tmp_path / name
            (home / "dags").mkdir(parents=True)
            own = {"PACELINE_HOME": str(home), "PACELINE_DAGS_FOLDER": str(home / "dags"), **env}
            stacks.append(stack_factory(schedulers=1, workers=workers, env=own))
        deploy(stacks[0])
        eventually(lambda: "flights" in stacks[0].cli("dags", "list", "--json").stdout, timeout=120, interval=1)
        stacks[0].cli("dags", "trigger", "flights", "--run-id", "one")
        ended = eventually(
            lambda: (run := stacks[0].json("runs", "show", "flights", "one"))["state"] in ("success", "failed") and run,
            timeout=RUN_S, interval=2, message=lambda: stacks[0].cli("runs", "show", "flights", "one").stdout,
        )  # fmt: skip

    assert ended["state"] == "success"
    assert list((tmp_path / "one" / "bundles").glob("*/flights.py"))
    assert list((tmp_path / "one" / "dags").iterdir()) == []
    summary = json.loads((tmp_path / "one" / "data" / "flights" / "one" / "summary.json").read_text())
    assert summary["cleaned_rows"] > 100_000
