"""The code of the how-to pages is DAG files that load."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler.dagfiles.load import load

PAGES = sorted((Path(__file__).parents[3] / "docs" / "how-to").glob("*.md"))
BLOCKS = [
    pytest.param(page.name, number, text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    if "dag" in text and "def test_" not in text and "__main__" not in text
]


@pytest.mark.parametrize(("page", "number", "text"), BLOCKS)
def test_the_code_of_a_page_is_a_dag_file(page: str, number: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(text, encoding="utf-8")

    assert load(tmp_path, "page.py"), f"block {number} of {page} makes no DAG"


def test_no_guide_sends_its_reader_to_the_source_code() -> None:
    """Readers of guides have an installation, not a checkout. Files of their own project are in `dags/`, `config/` and `tests/`."""
    guides = [*PAGES, PAGES[0].parents[1] / "tutorial.md"]
    found = {
        (page.name, path)
        for page in guides
        for path in re.findall(r"`((?:tests|paceline|scheduler|workers|web|bench)/[^`]*)`", page.read_text(encoding="utf-8"))
    }

    assert found == {("install.md", "tests/test_dags.py"), ("install.md", "workers/")}


def test_the_sidebar_of_the_site_is_the_index() -> None:
    index = (PAGES[0].parents[1] / "index.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)#]+)\.md\)", index.partition("\n## ")[2])
    trees = re.findall(r"```{toctree}\n(?::[^\n]*\n)+\n(.*?)```", index, re.DOTALL)
    shown = [page.replace("/", "../", 1) if page.startswith("/") else page for tree in trees for page in tree.split()]

    assert shown == ["../README", *dict.fromkeys(linked)]


def code_of(name: str) -> str:
    return re.findall(r"```python\n(.*?)```", (PAGES[0].parent / name).read_text(encoding="utf-8"), re.DOTALL)[0]


def test_the_loop_of_its_page_ends_after_the_page_without_rows(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(code_of("loops.md"), encoding="utf-8")

    result = load(tmp_path, "page.py")["read_all_pages"].test()

    assert result.success and result.xcoms["total"] == 200
    assert sum(name.startswith("pages.read_page") for name in result.order) == 3


def test_the_report_of_the_page_on_partitions_waits_for_all_hours_of_a_day(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(code_of("asset-partitions.md"), encoding="utf-8")

    dags = load(tmp_path, "page.py")
    hours = dags["hourly_orders"].timetable
    ticks = [datetime(2026, 3, 4, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(24)]
    keys = [partition.key for tick in ticks if (partition := hours.partition(tick)) is not None]
    report: Any = dags["daily_report"].timetable

    assert (keys[0], keys[-1]) == ("2026-03-04T00:00:00", "2026-03-04T23:00:00")
    assert {report.mapper("s3://shop/orders").to_downstream(key) for key in keys} == {"2026-03-04"}
    assert not report.is_met("2026-03-04", {"s3://shop/orders": frozenset(keys[1:])})
    assert report.is_met("2026-03-04", {"s3://shop/orders": frozenset(keys)})
