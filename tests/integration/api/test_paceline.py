"""The API beyond Airflow's: grid, graph, timeline, why, queues, workers, home, and parts of logs."""

import os
from collections import Counter
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.scenario import dag

from paceline.exceptions import NotFoundError
from scheduler.api import logs
from scheduler.api.call import PREFIX
from scheduler.settings import log_paths

from .conftest import Web, World

ETL = f"{PREFIX}/dags/etl"


def get(web: Web, path: str) -> Any:
    token = web.account(f"a{abs(hash(path))}", "admin")
    with web.http(token) as http:
        answer = http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_the_grid_has_a_character_for_each_task_and_run(web: Web, world: World) -> None:
    grid = get(web, f"{ETL}/grid")

    assert [task["task_id"] for task in grid["tasks"]] == ["extract", "each", "load"]
    columns = {run["dag_run_id"]: run for run in grid["runs"]}
    assert list(columns) == ["now", "bad", "good"]
    assert [columns[run]["states"] for run in ("good", "bad")] == ["sss", "fuu"]
    assert grid["codes"]["s"] == "success"
    assert columns["good"]["mapped"] == {"1": {"success": 3}}
    assert columns["now"]["states"][0] == "r"


def test_the_grid_of_runs_with_another_version(web: Web, world: World) -> None:
    """Each run is shown with the tasks of the newest version; tasks that it does not have are absent."""
    world.scenario.add(dag("etl", {"new": [], "extract": ["new"], "load": ["extract"]}, tags=("nightly",)))

    grid = get(web, f"{ETL}/grid")

    assert [task["task_id"] for task in grid["tasks"]] == ["new", "extract", "load"]
    assert {run["dag_run_id"]: run["states"] for run in grid["runs"]}["good"] == " ss"
    older = get(web, f"{ETL}/grid?version_number=1&limit=2&state=success&state=failed")
    assert [run["states"] for run in older["runs"]] == ["fuu", "sss"]


def test_recent_runs_of_the_dags_that_an_account_may_see(web: Web, world: World) -> None:
    found = get(web, f"{PREFIX}/recentRuns?dag_ids=etl&dag_ids=hourly&dag_ids=nothing&limit=2")["dags"]
    assert {dag_id: [run["dag_run_id"] for run in runs] for dag_id, runs in found.items()} == {"etl": ["now", "bad"]}
    with web.http(web.account("tim", tags={"other": "admin"})) as http:
        assert http.get(f"{PREFIX}/recentRuns?dag_ids=etl").json() == {"dags": {}}


def test_a_backfill_has_the_number_of_its_runs_in_each_state(web: Web, world: World) -> None:
    token = web.account("boss", "admin")
    with web.http(token) as http:
        body = {"dag_id": "hourly", "from_date": "2026-03-01T00:00:00Z", "to_date": "2026-03-01T03:00:00Z", "max_active_runs": 2}
        created = http.post(f"{PREFIX}/backfills", json=body).json()
        assert created["run_counts"] == {"waiting": 4, "left_out": 0, "queued": 0, "running": 0, "success": 0, "failed": 0}
        world.scenario.turn()
        (listed,) = http.get(f"{PREFIX}/backfills").json()["backfills"]
        assert listed["run_counts"] == created["run_counts"] | {"waiting": 2, "running": 2}
        cancelled = http.put(f"{PREFIX}/backfills/{created['id']}/cancel").json()
        assert cancelled["run_counts"] == created["run_counts"] | {"waiting": 0, "left_out": 2, "running": 2}


def test_the_graph_is_that_of_a_version(web: Web, world: World) -> None:
    graph = get(web, f"{ETL}/graph")

    assert [node["task_id"] for node in graph["nodes"]] == ["extract", "each", "load"]
    assert graph["edges"] == [[0, 1], [1, 2]]
    assert graph["groups"] == [{"group_id": "g", "parent": None, "tooltip": ""}]
    assert graph["nodes"][1]["is_mapped"]


def test_the_timeline_has_the_critical_path(web: Web, world: World) -> None:
    timeline = get(web, f"{ETL}/dagRuns/good/timeline")

    assert timeline["critical_path"] == ["extract", "each", "load"]
    assert {(bar["task_id"], bar["map_index"]) for bar in timeline["bars"]} == {
        ("extract", -1), ("each", 0), ("each", 1), ("each", 2), ("load", -1),
    }  # fmt: skip
    assert all(bar["start_date"] and bar["end_date"] for bar in timeline["bars"])
    assert timeline["run"] == get(web, f"{ETL}/dagRuns/good")


def test_the_view_of_a_task_instance_comes_in_one_request(web: Web, world: World) -> None:
    world.log("good", "extract", "one\ntwo\n")
    of_run = f"{ETL}/dagRuns/good/taskInstances"

    page = get(web, f"{of_run}/extract/view")
    assert page["task_instance"] == get(web, f"{of_run}/extract")
    assert page["tries"] == get(web, f"{of_run}/extract/tries")["task_instances"]
    assert (page["log_try_number"], page["log"]) == (1, get(web, f"{of_run}/extract/logs/1/lines"))
    assert get(web, f"{of_run}/extract/view?lines=0")["log"] is None
    assert get(web, f"{of_run}/extract/view?try_number=2")["log"] is None, "there is none, and the request for it says why"

    whole = get(web, f"{of_run}/each/view")
    assert (whole["mapped_instances"], whole["task_instance"]) == (3, None)
    assert get(web, f"{of_run}/each/view?map_index=1")["task_instance"]["map_index"] == 1
    waiting = get(web, f"{ETL}/dagRuns/now/taskInstances/load/view")
    assert waiting["why"] == get(web, f"{ETL}/dagRuns/now/taskInstances/load/why") and waiting["log"] is None


def test_owners_are_listed_and_filtered(web: Web, world: World) -> None:
    world.scenario.add(dag("owned", {"a": []}, owners=("ada", "grace"), options={"a": {"owner": "ada", "doc_md": "# A"}}))

    assert get(web, f"{PREFIX}/dags/owned")["owners"] == ["ada", "grace"]
    assert [one["dag_id"] for one in get(web, f"{PREFIX}/dags?owners=grace")["dags"]] == ["owned"]
    (task,) = get(web, f"{PREFIX}/dags/owned/tasks")["tasks"]
    assert (task["owner"], task["doc_md"]) == ("ada", "# A")


def test_rendered_templates_are_those_of_the_newest_try(web: Web, world: World) -> None:
    log = world.log("good", "extract", "one\n")
    shown = f"{ETL}/dagRuns/good/taskInstances/extract"
    assert get(web, shown)["rendered_fields"] == {}
    log.with_name("try-1.rendered.json").write_text('{"bash_command": "echo 1"}')
    assert get(web, f"{shown}?")["rendered_fields"] == {"bash_command": "echo 1"}
    log.with_name("try-1.rendered.json").write_text("nonsense")
    assert get(web, f"{shown}?x")["rendered_fields"] == {}


def test_why_has_the_history(web: Web, world: World) -> None:
    load = get(web, f"{ETL}/dagRuns/good/taskInstances/load/why")

    assert load["waiting_for"][0].startswith("It has ended as success")
    states = [step["state"] for step in load["history"]]
    assert states[-2:] == ["running", "success"] and "queued" in states
    assert "Succeeded after" in load["history"][-1]["text"]
    run = get(web, f"{ETL}/dagRuns/bad/why")
    assert [step["state"] for step in run["history"]] == ["queued", "running", "failed"]
    assert "extract: It has been running" in get(web, f"{ETL}/dagRuns/now/why")["waiting_for"][0]


def test_queues_workers_pools_and_home(web: Web, world: World) -> None:
    (queue,) = get(web, f"{PREFIX}/queues")["queues"]
    assert (queue["queue"], queue["running"], queue["waiting_in_redis"]) == ("default", 1, 0)
    (worker,) = get(web, f"{PREFIX}/workers")["workers"]
    assert [task["task_id"] for task in worker["tasks"]] == ["extract"]
    line = get(web, f"{PREFIX}/poolLines/default_pool")
    assert (line["used"], line["waiting_count"], line["holders"][0]["task_id"]) == (1, 0, "extract")
    home = get(web, f"{PREFIX}/home")
    assert home["runs"] == {"running": 1}
    assert [run["dag_run_id"] for run in home["failed"]] == ["bad"]
    assert home["failed"][0]["task_id"] == "extract"
    assert sum(hour["success"] for hour in home["hours"]) == 1
    assert {depth["queue"] for depth in get(web, f"{PREFIX}/queues/history?hours=48")["depths"]} <= {"default"}
    assert get(web, f"{ETL}/dagRuns/now/taskInstances/extract/progress")["applications"] == []


def test_home_has_the_next_runs_and_the_trend_of_days_and_tags(web: Web, world: World) -> None:
    world.scenario.rows("update dag_run set ended_at = now() - interval '30 hours' where run_id = 'good' returning id")
    world.scenario.rows(
        "update dag_schedule set next_run_after = now() + interval '1 hour' where dag_id = 'hourly' returning dag_id"
    )
    assert get(web, f"{PREFIX}/home")["next_runs"][0]["dag_id"] == "hourly"

    (since,) = world.scenario.rows("select date_trunc('hour', now()) - interval '47 hours'")[0]
    path = f"{PREFIX}/home/trend?bar_hours=24&bars=2&since={since.isoformat().replace('+', '%2B')}"
    found = get(web, path)
    assert [(bar["success"], bar["failed"]) for bar in found["bars"]] == [(1, 0), (0, 1)]
    assert {tag["tag"]: tag["bars"] for tag in found["tags"]}["nightly"] == found["bars"]
    with web.http(web.account("vera", tags={"other": "viewer"})) as http:
        assert http.get(path).json() == {"bars": [], "tags": []}
        assert http.get(f"{PREFIX}/home").json()["next_runs"] == []
        assert http.get(f"{PREFIX}/home/trend?since=2026-01-02T03:00:00").status_code == 400


def test_the_calendar_counts_runs_by_day_and_hour_in_a_zone(web: Web, world: World) -> None:
    day = datetime.now(UTC).date() - timedelta(days=2)
    for run_id, hour in (("good", 22), ("bad", 23)):
        at = datetime.combine(day, time(hour, 30), UTC)
        world.scenario.sql("update dag_run set logical_date = null, run_after = %s where run_id = %s", at, run_id)

    for zone, shown, hours in (("UTC", day, (22, 23)), ("Asia/Kolkata", day + timedelta(days=1), (4, 5))):
        found = get(web, f"{ETL}/calendar?timezone={zone}&days=30")
        by_day = {(row["day"], row["state"]): row["count"] for row in found["days"]}
        by_hour = {(row["hour"], row["state"]): row["count"] for row in found["hours"]}
        assert (by_day[shown.isoformat(), "success"], by_day[shown.isoformat(), "failed"]) == (1, 1)
        assert (by_hour[hours[0], "success"], by_hour[hours[1], "failed"]) == (1, 1)
        assert (found["timezone"], found["planned"]) == (zone, [])
    assert not {"success", "failed"} & {row["state"] for row in get(web, f"{ETL}/calendar?days=1")["days"]}


def test_the_calendar_has_the_planned_runs_of_a_week(web: Web, world: World) -> None:
    (first,) = world.scenario.rows("select date_trunc('hour', now()) + interval '1 hour'")[0]
    world.scenario.sql("update dag_schedule set next_logical_date = %(at)s, next_interval_start = %(at)s, next_run_after = %(at)s,"
                       " next_interval_end = %(at)s where dag_id = 'hourly'".replace("%(at)s", f"'{first}'"))  # fmt: skip
    path = f"{PREFIX}/dags/hourly/calendar"

    found = get(web, path)
    assert sum(row["count"] for row in found["planned"]) == 7 * 24
    days = Counter((first + timedelta(hours=hour)).date().isoformat() for hour in range(7 * 24))
    assert {row["day"]: row["count"] for row in found["planned"]} == days
    assert found["planned_more"] is False and datetime.fromisoformat(found["next_run_after"]) == first
    world.scenario.sql("update dag_schedule set is_paused = true where dag_id = 'hourly'")
    assert get(web, f"{path}?days=7")["planned"] == []
    with web.http(web.account("vera", "viewer")) as http:
        for zone in ("Nowhere/City", "../../etc/passwd", "", "a" * 5000):
            answer = http.get(path, params={"timezone": zone})
            assert (answer.status_code, "There is no time zone" in answer.json()["detail"]) == (400, True), zone


LOGS = f"{PREFIX}/dags/etl/dagRuns/good/taskInstances/extract/logs/1"


@pytest.fixture
def http(web: Web) -> Any:
    with web.http(web.account("ada", "viewer")) as made:
        yield made


def lines_of(http: httpx.Client, path: str, **query: Any) -> Any:
    answer = http.get(LOGS + path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_last_lines_and_lines_by_number(http: httpx.Client, world: World) -> None:
    world.log("good", "extract", "".join(f"line {number}\n" for number in range(100_000)))

    tail = lines_of(http, "/lines", limit=2)
    assert (tail["lines"], tail["first_line"], tail["total_lines"]) == (["line 99998", "line 99999"], 99_998, 100_000)
    assert tail["is_final"] and tail["next_offset"] == tail["size"]
    middle = lines_of(http, "/lines", line=54_321, limit=2)
    assert (middle["lines"], middle["first_line"]) == (["line 54321", "line 54322"], 54_321)
    assert lines_of(http, "/lines", offset=middle["next_offset"], limit=1)["lines"] == ["line 54323"]
    assert lines_of(http, "/lines", line=100_000)["lines"] == []


def test_a_log_that_grows(http: httpx.Client, world: World) -> None:
    path = world.log("good", "extract", "a\nb")
    assert lines_of(http, "/lines")["lines"] == ["a", "b"]
    with path.open("a") as log:
        log.write("\n" + "x\n" * (logs.BLOCK))
    found = lines_of(http, "/lines", limit=1)
    assert found["total_lines"] == logs.BLOCK + 2
    path.write_text("short\n")
    assert lines_of(http, "/lines")["total_lines"] == 1
    path.write_text("")
    assert lines_of(http, "/lines") == {
        "lines": [], "first_line": 0, "total_lines": 0, "offset": 0, "next_offset": 0, "size": 0, "is_final": True,
    }  # fmt: skip
    path.unlink()
    assert http.get(f"{LOGS}/lines").status_code == 404


def test_the_whole_log_is_searched(http: httpx.Client, world: World) -> None:
    filler = "nothing to see\n" * 400_000
    world.log("good", "extract", f"Begin\n{filler}an Error, and the same error again\n{filler}error at the end")

    found = lines_of(http, "/search", text="ERROR")
    assert [match["line"] for match in found["matches"]] == [400_001, 800_002]
    assert found["is_complete"]
    assert lines_of(http, "/lines", line=400_001, limit=1)["lines"] == [found["matches"][0]["text"]]
    assert [match["line"] for match in lines_of(http, "/search", text="Error", match_case=True)["matches"]] == [400_001]
    first = lines_of(http, "/search", text="error", limit=1)
    assert not first["is_complete"]
    rest = lines_of(http, "/search", text="error", offset=first["next_offset"], line=first["next_line"])
    assert [match["line"] for match in rest["matches"]] == [800_002]


def test_lines_are_found_by_their_level(http: httpx.Client, world: World) -> None:
    """Each form in which programs write levels; a word in the middle of a line is none."""
    errors = (
        "2026-01-02T03:04:05.678Z ERROR paceline.worker: lost",
        "26/01/02 03:04:05 ERROR TaskSetManager: Task 0 failed",
        "ERROR:root:no file",
        "[2026-01-02T03:04:05.678+0000] {load.py:12} ERROR - no file",
        "2026-01-02 03:04:05 | CRITICAL | load | no file",
        "\x1b[31mERROR\x1b[0m no file",
        '{"at": "2026-01-02T03:04:05.678Z", "level": "ERROR", "message": "no file"}',
        "Traceback (most recent call last):",
        "pkg.LoadError: no file",
        "KeyboardInterrupt",
        "Caused by: java.io.IOException: no file",
    )
    warnings = ("WARNING: slow", "26/01/02 03:04:05 WARN Utils: slow", "/srv/load.py:3: DeprecationWarning: old")
    others = (
        "0 ERROR lines",
        "2026-01-02T03:04:05.678Z INFO Retrying after ERROR",
        "an Error: it is in a sentence",
        "DEBUG:root:ERROR",
        "ERRORS: 3",
    )
    world.log("good", "extract", "\n".join((*errors, *warnings, *others)) + "\n")

    assert [match["text"] for match in lines_of(http, "/search", level="error")["matches"]] == list(errors)
    assert [match["text"] for match in lines_of(http, "/search", level="warning")["matches"]] == [*errors, *warnings]
    assert [match["line"] for match in lines_of(http, "/search", level="warning", text="SLOW")["matches"]] == [11, 12]
    refused = http.get(f"{LOGS}/search")
    assert refused.status_code == 400 and "a text or a level" in refused.text


def test_a_cut_bar_of_progress_shows_its_last_state(http: httpx.Client, world: World) -> None:
    states = "".join(f"\r{percent:3d}%|{'#' * 1000}|" for percent in range(101))
    world.log("good", "extract", f"{states}\nlast\n")

    first, last = lines_of(http, "/lines", line=0)["lines"]
    assert first.rpartition("\r")[2].startswith("100%|#") and last == "last"


def test_the_search_finds_letters_beyond_ascii(http: httpx.Client, world: World) -> None:
    """Bytes have no case there: text of the log must be found as it is written."""
    world.log("good", "extract", "Ärger in ÜBERSICHT\n日本語\n")

    for text in ("Ärger", "ÄRGER", "ÜBER", "Übersicht", "日本語"):
        assert len(lines_of(http, "/search", text=text)["matches"]) == 1, text


@pytest.mark.long
def test_lines_of_100_mb_and_binary_logs(http: httpx.Client, world: World) -> None:
    path = world.log("good", "extract", "")
    with path.open("wb") as log:
        log.write(b"first\n\xff\xfe\x00binary\n")
        for _ in range(100):
            log.write(b"x" * (1 << 20))
        log.write(b"needle" + b"y" * (1 << 20) + b"\nlast\n")

    lines = lines_of(http, "/lines", line=0)["lines"]
    assert lines[0] == "first" and "binary" in lines[1] and lines[2].endswith("more bytes)") and lines[3] == "last"
    assert max(map(len, lines)) < logs.LONGEST_LINE + 100
    assert lines_of(http, "/lines", limit=1)["lines"] == ["last"]
    (found,) = to_the_end(http, "needle")
    assert found["line"] == 2 and len(found["text"]) <= logs.LONGEST_LINE


def to_the_end(http: httpx.Client, text: str) -> list[dict[str, Any]]:
    """The matches of a search that is continued: on a busy machine, one request does not reach the end."""
    matches: list[dict[str, Any]] = []
    place = {"offset": 0, "line": 0}
    while place:
        found = lines_of(http, "/search", text=text, **place)
        matches += found["matches"]
        place = {} if found["is_complete"] else {"offset": found["next_offset"], "line": found["next_line"]}
    return matches


def test_a_text_on_the_border_of_two_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (logs.BLOCK - 3) + b"needle\nrest\n")

    found = logs.search(path, "needle", limit=5)

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
