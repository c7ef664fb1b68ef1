"""Parts of logs by line, their end, and a search of all of it."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline.exceptions import NotFoundError
from scheduler.api import log_lines, logs
from scheduler.api.call import PREFIX
from scheduler.settings import log_paths

from .conftest import Web, World

LOGS = f"{PREFIX}/dags/etl/dagRuns/good/taskInstances/extract/logs/1"


@pytest.fixture
def http(web: Web) -> Any:
    with web.http(web.account("ada", "viewer")) as made:
        yield made


def get(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(LOGS + path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_last_lines_and_lines_by_number(http: httpx.Client, world: World) -> None:
    world.log("good", "extract", "".join(f"line {number}\n" for number in range(100_000)))

    tail = get(http, "/lines", limit=2)
    assert (tail["lines"], tail["first_line"], tail["total_lines"]) == (["line 99998", "line 99999"], 99_998, 100_000)
    assert tail["is_final"] and tail["next_offset"] == tail["size"]
    middle = get(http, "/lines", line=54_321, limit=2)
    assert (middle["lines"], middle["first_line"]) == (["line 54321", "line 54322"], 54_321)
    assert get(http, "/lines", offset=middle["next_offset"], limit=1)["lines"] == ["line 54323"]
    assert get(http, "/lines", line=100_000)["lines"] == []


def test_a_log_that_grows(http: httpx.Client, world: World) -> None:
    path = world.log("good", "extract", "a\nb")
    assert get(http, "/lines")["lines"] == ["a", "b"]
    with path.open("a") as log:
        log.write("\n" + "x\n" * (log_lines.BLOCK))
    found = get(http, "/lines", limit=1)
    assert found["total_lines"] == log_lines.BLOCK + 2
    path.write_text("short\n")
    assert get(http, "/lines")["total_lines"] == 1
    path.write_text("")
    assert get(http, "/lines") == {
        "lines": [], "first_line": 0, "total_lines": 0, "offset": 0, "next_offset": 0, "size": 0, "is_final": True,
    }  # fmt: skip
    path.unlink()
    assert http.get(f"{LOGS}/lines").status_code == 404


def test_the_whole_log_is_searched(http: httpx.Client, world: World) -> None:
    filler = "nothing to see\n" * 400_000
    world.log("good", "extract", f"Begin\n{filler}an Error, and the same error again\n{filler}error at the end")

    found = get(http, "/search", text="ERROR")
    assert [match["line"] for match in found["matches"]] == [400_001, 800_002]
    assert found["is_complete"]
    assert get(http, "/lines", line=400_001, limit=1)["lines"] == [found["matches"][0]["text"]]
    assert [match["line"] for match in get(http, "/search", text="Error", match_case=True)["matches"]] == [400_001]
    first = get(http, "/search", text="error", limit=1)
    assert not first["is_complete"]
    rest = get(http, "/search", text="error", offset=first["next_offset"], line=first["next_line"])
    assert [match["line"] for match in rest["matches"]] == [800_002]


def test_the_search_finds_letters_beyond_ascii(http: httpx.Client, world: World) -> None:
    """Bytes have no case there: text of the log must be found as it is written."""
    world.log("good", "extract", "Ärger in ÜBERSICHT\n日本語\n")

    for text in ("Ärger", "ÄRGER", "ÜBER", "Übersicht", "日本語"):
        assert len(get(http, "/search", text=text)["matches"]) == 1, text


def test_lines_of_100_mb_and_binary_logs(http: httpx.Client, world: World) -> None:
    path = world.log("good", "extract", "")
    with path.open("wb") as log:
        log.write(b"first\n\xff\xfe\x00binary\n")
        for _ in range(100):
            log.write(b"x" * (1 << 20))
        log.write(b"needle" + b"y" * (1 << 20) + b"\nlast\n")

    lines = get(http, "/lines", line=0)["lines"]
    assert lines[0] == "first" and "binary" in lines[1] and lines[2].endswith("more bytes)") and lines[3] == "last"
    assert max(map(len, lines)) < log_lines.LONGEST_LINE + 100
    assert get(http, "/lines", limit=1)["lines"] == ["last"]
    (found,) = to_the_end(http, "needle")
    assert found["line"] == 2 and len(found["text"]) <= log_lines.LONGEST_LINE


def to_the_end(http: httpx.Client, text: str) -> list[dict[str, Any]]:
    """The matches of a search that is continued: on a busy machine, one request does not reach the end."""
    matches: list[dict[str, Any]] = []
    place = {"offset": 0, "line": 0}
    while place:
        found = get(http, "/search", text=text, **place)
        matches += found["matches"]
        place = {} if found["is_complete"] else {"offset": found["next_offset"], "line": found["next_line"]}
    return matches


def test_a_text_on_the_border_of_two_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (log_lines.BLOCK - 3) + b"needle\nrest\n")

    found = log_lines.search(path, "needle", limit=5)

    assert [match["line"] for match in found["matches"]] == [0]
    assert found["next_line"] == 2


@pytest.mark.parametrize("kind", ["file", "loop", "pipe", "folder"])
def test_a_log_that_is_no_regular_file_is_not_opened(http: httpx.Client, world: World, tmp_path: Path, kind: str) -> None:
    """A task may write into the folder of its logs, and must not get the web process to read other files or to wait."""
    secret = tmp_path / "secret"
    secret.write_text("not for viewers\n")
    log = world.log("good", "extract", "")
    log.unlink()
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    else:
        log.symlink_to(secret if kind == "file" else log)

    for part in ("", "/lines", "/search?text=viewers"):
        answer = http.get(LOGS + part)
        assert answer.status_code == 404, (part, answer.text)
    with pytest.raises(NotFoundError):
        logs.opened(log)


def test_rendered_templates_are_not_read_through_a_link(http: httpx.Client, world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"key": "not for viewers"}')
    Path(log_paths.rendered_path(str(world.log("good", "extract", "")))).symlink_to(secret)

    assert http.get(LOGS.removesuffix("/logs/1")).json()["rendered_fields"] == {}


@pytest.mark.parametrize("task", [{}, {"task_id": "extract"}])
def test_the_output_of_callbacks_has_a_route_that_follows_no_link(
    http: httpx.Client, web: Web, world: World, tmp_path: Path, task: dict[str, str]
) -> None:
    """That of a run, and that of a task instance."""
    route = f"{PREFIX}/dags/etl/dagRuns/good{'/taskInstances/extract' if task else ''}/callbackLog"
    place = {"dag_id": "etl", "run_id": world.log("good", "extract", "").parent.parent.name, **task}
    file = Path(log_paths.callbacks_path(web.settings.logs_folder, **place))
    assert "none has run yet" in http.get(route).json()["detail"]

    file.write_text("first\nsecond\n")
    assert http.get(route, params={"limit": 1}).json()["lines"] == ["second"]

    secret = tmp_path / "secret"
    secret.write_text("not for you")
    file.unlink()
    file.symlink_to(secret)
    answer = http.get(route)
    assert (answer.status_code, "not for you" in answer.text) == (404, False)
