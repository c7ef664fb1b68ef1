"""docs/explanation/architecture.md names every package, and nothing that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
#: Packages that the page describes as parts of another one.
INNER = {"scheduler/store/db/migrations", "scheduler/authoring/timetables", "workers/spark"}


def named() -> set[str]:
    return {one.rstrip("/") for one in re.findall(r"`((?:scheduler|workers)/[\w/.]*)`", PAGE)}


def packages() -> set[str]:
    found = {str(one.parent.relative_to(ROOT)) for name in ("scheduler", "workers") for one in (ROOT / name).rglob("__init__.py")}
    return {
        one for one in found - {"scheduler"} if not any(one.startswith(f"{inner}/") for inner in INNER - {"workers/spark"})
    } - INNER


def test_every_file_and_folder_on_the_page_exists() -> None:
    assert len(named()) > 30, "the check no longer finds the names"

    assert [one for one in sorted(named()) if not (ROOT / one).exists()] == []


def test_every_package_is_on_the_page() -> None:
    assert packages() - named() == set()
