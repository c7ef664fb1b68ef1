"""`paceline deploy` and `paceline bundles`, through the database and through a web process, while a scheduler parses."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.bundle_parsing import BROKEN, GOOD, parse_next
from support.processes import free_port
from support.scenario import Scenario

from scheduler.cli.deploy import origin_of
from scheduler.messaging.wakeups import BUNDLES_KEY, Wakeups

from .conftest import Cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one DAG."""
    made = tmp_path / "etl"
    made.mkdir()
    (made / "a.py").write_bytes(GOOD)
    return made


@pytest.fixture
def parsing(scenario: Scenario) -> Iterator[None]:
    """A scheduler that parses what is deployed."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.05):
            parse_next(scenario.engine)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("parsing")
def test_a_folder_is_deployed_changed_and_rolled_back(cli: Cli, folder: Path) -> None:
    first = cli("deploy", str(folder), "--bundle", "sales", "-m", "First")

    assert (first.exit_code, first.stdout) == (0, "added    DAG a\nVersion 1 of bundle sales is live.\n")
    assert first.stderr == "Version 1 of bundle sales is stored: 1 file (1 added, 0 changed, 0 removed).\n"

    (folder / "a.py").write_bytes(GOOD + b"2")
    (folder / "b.py").write_bytes(GOOD)
    second = cli("deploy", str(folder), "--bundle", "sales")
    assert second.stdout == "added    DAG b\nchanged  DAG a\nVersion 2 of bundle sales is live.\n"
    again = cli("deploy", str(folder), "--bundle", "sales")
    assert (again.stdout, again.stderr) == (
        "Version 2 of bundle sales is live; no DAG differs from before.\n",
        "Version 2 of bundle sales has these files: 2 files (0 added, 0 changed, 0 removed).\n",
    )  # fmt: skip

    back = cli("deploy", "--rollback", "--bundle", "sales")
    assert (back.exit_code, back.stdout) == (0, "changed  DAG a\nremoved  DAG b\nVersion 1 of bundle sales is live.\n")
    assert cli("deploy", "--rollback", "2", "--bundle", "sales").exit_code == 0

    assert [(row["version_number"], row["is_live"]) for row in cli.json("bundles", "versions", "sales")] == [(2, True), (1, False)]
    (row,) = cli.json("bundles", "list")
    assert (row["bundle_name"], row["live_version"], row["dag_count"]) == ("sales", 2, 2)
    assert [file["path"] for file in cli.json("bundles", "files", "sales", "1")] == ["a.py"]


@pytest.mark.usefixtures("parsing")
def test_errors_are_printed_and_the_version_before_stays_live(cli: Cli, folder: Path) -> None:
    assert cli("deploy", str(folder)).exit_code == 0
    (folder / "b.py").write_bytes(BROKEN)

    done = cli("deploy", str(folder))
    as_json = cli("deploy", str(folder), "--json")

    assert (done.exit_code, done.stdout) == (1, "b.py:2: NameError: broken\n")
    assert done.stderr.splitlines()[-1] == "Version 2 of bundle default does not go live: version 1 stays live."
    assert as_json.exit_code == 1
    row = json.loads(as_json.stdout)
    assert (row["state"], row["problems"][0]["file"], row["changes"]) == ("refused", "b.py", None)
    listed = cli("bundles", "versions", "default")
    assert "Version 2: b.py:2: NameError: broken" in listed.stderr


@pytest.mark.usefixtures("parsing")
def test_a_web_process_takes_the_same_command(cli: Cli, web: Callable[..., dict[str, str]], folder: Path) -> None:
    own = web("ci", sales="operator")

    done = cli("deploy", str(folder), "--bundle", "sales", "--json", **own)
    row = json.loads(done.stdout)
    assert (done.exit_code, row["is_live"], row["created_by"]) == (0, True, "api:ci")
    assert row["changes"]["dags"] == {"added": ["a"], "changed": [], "removed": []}
    (folder / "b.py").write_bytes(GOOD)
    assert cli("deploy", str(folder), "--bundle", "sales", **own).stdout == "added    DAG b\nVersion 2 of bundle sales is live.\n"
    back = cli("deploy", "--rollback", "--bundle", "sales", **own)
    assert (back.exit_code, back.stdout) == (0, "removed  DAG b\nVersion 1 of bundle sales is live.\n")

    other = cli("deploy", str(folder), "--bundle", "other", **own)
    assert (other.exit_code, "role operator on this bundle" in other.stderr) == (1, True)
    viewer = cli("deploy", str(folder), "--bundle", "sales", **web("eve", "viewer"))
    assert (viewer.exit_code, "role operator on this bundle" in viewer.stderr) == (1, True)
    stale = cli("deploy", str(folder), "--bundle", "sales", **own | {"PACELINE_TOKEN": "x"})
    assert (stale.exit_code, "token" in stale.stderr) == (1, True)
    missing = cli("deploy", "--rollback", "9", "--bundle", "sales", **own)
    assert (missing.exit_code, "has no version 9" in missing.stderr) == (3, True)


@pytest.mark.usefixtures("scenario")
def test_what_is_wrong_is_one_sentence_with_its_exit_code(cli: Cli, folder: Path) -> None:
    def fails(*arguments: str, **env: str) -> tuple[int, str]:
        done = cli("deploy", *arguments, **env)
        lines = done.stderr.splitlines()
        return done.exit_code, lines[-1].removeprefix("Error: ")

    assert fails() == (2, "Name the folder to deploy, or use --rollback.")
    assert fails(str(folder), "--rollback") == (2, "Name the folder to deploy, or use --rollback.")
    assert fails(str(folder / "none"))[0] == 2
    assert fails(str(folder), "--bundle", "two words")[0] == 2
    assert fails("--rollback", "x")[0] == 2
    assert fails("--rollback", "--bundle", "none") == (3, "There is no bundle 'none'; `paceline bundles list` shows all.")
    code, text = fails(str(folder), "--timeout", "0")
    assert (code, "is not parsed after 0 s" in text) == (5, True)
    assert fails(str(folder), "--url", "example.org", "--token", "t")[0] == 2
    assert fails(str(folder), "--url", "http://localhost", PACELINE_TOKEN="")[0] == 2
    code, text = fails(str(folder), "--url", f"http://127.0.0.1:{free_port()}", "--token", "t")
    assert (code, "does not answer" in text) == (4, True)
    (folder / "link").symlink_to("/etc/passwd")
    assert fails(str(folder)) == (2, "'link' is a link that leads out of the folder: put a copy in its place.")


def test_a_version_that_no_command_waits_for_wakes_a_scheduler(cli: Cli, scenario: Scenario, folder: Path) -> None:
    done = cli("deploy", str(folder), "--no-wait")

    assert (done.exit_code, done.stdout) == (0, "Version 1 of bundle default goes live as soon as a scheduler has parsed it.\n")
    assert cli.json("bundles", "list")[0]["live_version"] is None
    assert Wakeups(scenario.settings, BUNDLES_KEY).wait(1) == {"bundle"}


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """A server that gives one answer: its address, and the tokens that it has received."""
    tokens: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            tokens.append(self.headers.get("Authorization", ""))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", tokens
        server.shutdown()
        thread.join()


def test_a_redirect_does_not_get_the_token(cli: Cli, folder: Path) -> None:
    with answering(200, b"{}") as (other, received), answering(302, b"", location=f"{other}/x") as (url, _):
        done = cli("deploy", str(folder), "--url", url, "--token", "secret")

    assert (done.exit_code, "pass that address as --url" in done.stderr, received) == (2, True, [])


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>"), (404, b"<html>"), (500, b"[1]"), (502, b"")])
def test_another_server_is_not_taken_for_a_web_process(cli: Cli, folder: Path, status: int, body: bytes) -> None:
    with answering(status, body) as (url, _):
        done = cli("deploy", str(folder), "--url", url, "--token", "t")

    assert (done.exit_code != 0, "correct --url" in done.stderr) == (True, True), done.output


def test_the_origin_is_the_commit_without_credentials(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        setting = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(["git", "-C", str(tmp_path), *setting, *words], check=True, capture_output=True, text=True).stdout

    assert str(tmp_path) in origin_of(tmp_path)
    git("init", "-q")
    (tmp_path / "a.py").write_bytes(GOOD)
    git("add", "-A")
    git("commit", "-qm", "First")
    commit = git("rev-parse", "HEAD").strip()
    assert origin_of(tmp_path) == commit
    git("remote", "add", "origin", "https://ada:secret@example.org/etl.git")
    (tmp_path / "a.py").write_bytes(BROKEN)
    assert origin_of(tmp_path) == f"https://example.org/etl.git@{commit} with changes that are not committed"
