"""The report at the end of a bench."""

import pytest

from bench import chart, goals, parts, report
from bench.options import Options, Piece

SHAPE = {
    "tasks": 2002, "makespan_s": 1.5, "tasks_per_s": 1334.7, "of_raw_celery": 0.91, "hop_over_raw": 1.3,
    "hop_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}, "cpu_s_per_task": {"total": 0.0012}, "cpu_over_raw": 1.2, "calibration_ms": 3.1,
    "of_raw_celery_no_ack": 0.45, "hop_over_raw_no_ack": 2.1, "cpu_over_raw_no_ack": 1.9,
}  # fmt: skip


def test_pieces_of_several_parts_become_one_object() -> None:
    result = {"ratios": {"history": 1.0}, "raw": {"a": 1, "b": 1}}

    parts.merge(result, {"ratios": {"fanin": 1.1}, "raw": {"b": 2}, "idle_cores": 0.01})

    assert result == {"ratios": {"history": 1.0, "fanin": 1.1}, "raw": {"a": 1, "b": 2}, "idle_cores": 0.01}


def test_markdown_has_a_row_for_each_shape_and_a_line_for_every_other_part() -> None:
    text = report.markdown({"machine": {"cpus": 2}, "shapes": {"wide": SHAPE}, "idle_cores": 0.01})

    assert "Machine: cpus 2." in text
    assert "| `wide` | 2,002 | 1.500 | 1,335 | 0.91 | 0.45 | 1.00 | 2.00 | 3.00 | 1.30 | 2.10 | 1.20 | 1.20 | 1.90 | 3.1 |" in text
    assert "| `wide`: share of plain Celery's tasks/s | 0.91 | at least 1.1 | MISSED |" in text
    assert text.endswith("* idle_cores: `0.01`")


def test_new_figures_replace_the_old_ones_and_nothing_else() -> None:
    text = f"before\n{chart.BEGIN}\nold\n{chart.END}\nafter\n"

    assert chart.replaced(text, "new") == f"before\n{chart.BEGIN}\nnew\n{chart.END}\nafter\n"
    with pytest.raises(AssertionError, match="missing"):
        chart.replaced("no marks", "new")


def test_goals_are_met_or_missed_and_those_without_a_figure_are_left_out() -> None:
    many = {"shapes": {"wide": SHAPE | {"of_raw_celery": 1.11}, "chain": SHAPE | {"hop_over_raw": 0.6, "cpu_over_raw": 0.85}}}

    assert goals.verdicts(many) == [
        ("`wide`: share of plain Celery's tasks/s", "1.11", "at least 1.1", "met"),
        ("`chain`: hop, over plain Celery's", "0.6", "at most 0.6", "met"),
        ("`chain`: CPU of a task, over plain Celery's", "0.85", "at most 0.8", "MISSED"),
        ("`wide`: CPU of a task, over plain Celery's", "1.2", "at most 0.9", "MISSED"),
    ]


@pytest.mark.parametrize(("workers", "verdicts"), [(50, ["met", "MISSED"]), (16, [])])
def test_a_machine_with_fewer_workers_has_not_measured_the_goals_of_fifty(workers: int, verdicts: list[str]) -> None:
    measured = {"workers": workers, "open": {"most": 70}, "burst": {"refused_attempts": 1}}

    assert [row[3] for row in goals.verdicts({"connections": measured})] == verdicts


def test_a_part_that_fails_loses_no_results_of_other_parts() -> None:
    lines: list[str] = []
    result: Piece = {}

    for part, function in (("raw", lambda _: {"raw": 1 / 0}), ("idle", lambda _: {"idle_cores": 0.02})):
        parts.merge(result, parts.attempt(part, function, Options(say=lines.append)))

    assert result == {"failed": {"raw": "ZeroDivisionError: division by zero"}, "idle_cores": 0.02}
    assert "ZeroDivisionError" in lines[0]
