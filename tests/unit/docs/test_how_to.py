"""The code of the how-to pages is DAG files that load."""

import re
from pathlib import Path

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
