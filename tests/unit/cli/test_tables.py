"""Tables on a narrow terminal: IDs stay whole, the least important columns are dropped, free text is wrapped."""

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest

from scheduler.cli import output

LONG_ID = "team_finance__daily_settlement_export_to_warehouse"
RUN_ID = "scheduled__2026-03-01T00:00:00+00:00"
MOMENT = datetime(2026, 3, 1, 6, 30, 15, tzinfo=UTC)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The output of a table on a terminal of 80 columns, as plain lines, and the text on stderr."""

    def run(rows: list[dict[str, Any]], columns: list[str]) -> tuple[list[str], str]:
        out, message = Terminal(), io.StringIO()
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setenv("TERM", "xterm")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", message)
            output.table(rows, columns, empty="")
        return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines(), message.getvalue()

    return run


RUNS = ["dag_id", "run_id", "run_type", "state", "logical_date", "started_at", "ended_at"]
TASKS = ["task_id", "map_index", "state", "try_number", "queue", "pool", "worker", "started_at", "took", "reason"]
DAGS = ["dag_id", "is_paused", "schedule", "task_count", "last_run_id", "last_run_state", "next_run_after", "file"]
VALUES: dict[str, Any] = {
    "dag_id": "daily_settlement", "run_id": RUN_ID, "last_run_id": RUN_ID, "task_id": "export_to_warehouse", "map_index": 12,
    "run_type": "scheduled", "state": "upstream_failed", "last_run_state": "success", "logical_date": MOMENT, "started_at": MOMENT,
    "ended_at": MOMENT, "try_number": 1, "queue": "spark-heavy", "pool": "warehouse", "worker": "worker@a-long-host-name-3",
    "took": "3 min 05 s", "reason": "1 upstream task failed: " + "load " * 30, "is_paused": False, "schedule": "0 6 * * *",
    "task_count": 12, "next_run_after": MOMENT, "file": "finance/daily_settlement.py",
}  # fmt: skip


@pytest.mark.parametrize("columns", [RUNS, TASKS, DAGS], ids=["runs", "tasks", "dags"])
def test_a_table_fits_80_columns_and_breaks_no_id(printed: Any, columns: list[str]) -> None:
    lines, message = printed([VALUES], columns)

    assert max(map(len, lines)) <= 80
    for name in columns:
        if name.endswith("_id") or name.endswith("state"):
            assert any(str(VALUES[name]) in line for line in lines), name
    assert message.startswith("Not shown, to fit 80 columns: ")


def test_ids_that_are_too_wide_widen_the_table_instead_of_being_broken(printed: Any) -> None:
    lines, _ = printed([VALUES | {"dag_id": LONG_ID}], RUNS)

    assert any(LONG_ID in line and RUN_ID in line for line in lines)


def test_a_table_that_fits_shows_every_column(printed: Any) -> None:
    lines, message = printed([{"name": "default_pool", "slots": 128, "queue": None}], ["name", "slots", "queue"])

    assert (lines[0].split(), message) == (["name", "slots", "queue"], "")


def test_wide_shows_every_column_on_a_terminal(printed: Any) -> None:
    with click.Context(click.Command("list")) as context:
        context.meta["paceline.wide"] = False
        assert printed([VALUES], TASKS)[1].endswith("; --wide shows them.\n")
        context.meta["paceline.wide"] = True
        lines, message = printed([VALUES], TASKS)

    assert message == ""
    assert all(str(VALUES[name]) in lines[2] for name in ("worker", "pool", "queue", "took", "started_at"))


def test_a_map_index_follows_its_task_id(printed: Any) -> None:
    rows = [{"task_id": "measure", "map_index": index} for index in (-1, 0)] + [{"task_id": None, "map_index": None}]

    lines, _ = printed(rows, ["task_id", "map_index"])

    assert lines[0].strip() == "task id"
    assert [line.strip() for line in lines[2:]] == ["measure", "measure[0]", "-"]


def test_times_are_short_on_a_terminal(printed: Any) -> None:
    now = datetime.now(UTC)
    moments = [now, now.replace(month=1, day=1) - timedelta(days=400)]

    lines, _ = printed([{"run_id": "r", "started_at": moment} for moment in moments], ["run_id", "started_at"])

    assert f"{moments[0]:%H:%M:%S}" in lines[2] and str(now.year) not in lines[2]
    assert f"{moments[1]:%Y-%m-%d %H:%M}" in lines[3]


def test_without_a_terminal_everything_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    output.table([VALUES | {"dag_id": LONG_ID}], RUNS, empty="")

    assert "2026-03-01 06:30:15+00:00" in capsys.readouterr().out


def test_a_pipe_gets_whole_lines_and_all_columns_unless_it_names_a_width(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for wide, width, shown in ((False, "80", False), (False, "", True), (True, "80", True), (None, "80", True)):
        monkeypatch.setenv("COLUMNS", width)
        with click.Context(click.Command("list")) as context:
            context.meta["paceline.wide"] = wide
            output.table([VALUES | {"state": None}], TASKS, empty="")
        text, message = capsys.readouterr()
        assert (VALUES["worker"] in text, "worker" in message) == (shown, not shown)
        assert VALUES["reason"].strip() in text and "export_to_warehouse[12]  no state" in text
        assert ("+00:00" in text) is (wide is not False)
