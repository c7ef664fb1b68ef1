"""The progress of a Spark task as text."""

import pytest

from scheduler.cli.progress import Tenths, size, words
from workers.process.progress import Progress


def test_the_text_names_only_counts_above_zero() -> None:
    begun = Progress(stages=2, stages_done=1, tasks=1200, tasks_done=30)
    all_of_it = Progress(
        stages=2, stages_done=1, tasks=4, tasks_done=3, tasks_failed=1, rows_read=1234, bytes_read=2500, rows_written=5,
        bytes_written=12_000_000, bytes_spilled=10, failed_executors=1, ui_url="http://127.0.0.1:4040",
    )  # fmt: skip

    assert words(begun.as_json()) == "1 of 2 stages, 30 of 1,200 Spark tasks"
    assert words(all_of_it.as_json()) == (
        "1 of 2 stages, 3 of 4 Spark tasks, 1 failed, read 1,234 rows (2.5 kB), written 5 rows (12 MB), spilled 10 B, "
        "1 executor lost, "
        "http://127.0.0.1:4040"
    )


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (34_000_000, "34 MB"), (5 * 10**18, "5000 PB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_a_line_is_printed_after_each_tenth_and_in_each_stage() -> None:
    tenths = Tenths()

    def told(done: int, stages: int = 1) -> bool:
        progress = Progress(stages=stages, tasks=100, tasks_done=done).as_json()
        return bool(tenths.words_if_new({"id": 1, "try_number": 1, "progress": progress}))

    assert [told(0), told(0), told(9), told(10), told(15), told(15, stages=2)] == [True, False, False, True, False, True]
    assert tenths.words_if_new({"id": 1, "try_number": 1, "progress": None}) == ""
