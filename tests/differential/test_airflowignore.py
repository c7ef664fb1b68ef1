"""Folders with random .airflowignore files: both systems read the same DAG files."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler.dagfiles.watch import Watch

COUNT = 300
NAMES = ("x.py", "test_y.py", "a.py")
FOLDERS = ("", "a", "a/b", "lib", "lib/a", "b")
PATTERNS = (
    "a", "lib", "*.py", "x.py", "test_*", "a/", "**/x.py", "/lib", "a/*", "a/**", "!x.py", "!lib", "lib/x.py", "?.py", "[ab]",
    "a/**/x.py", "!a/x.py", "*", "/*", "**/", "a//", "x.py ", "\\!a",
)  # fmt: skip
PROGRAM = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from pathlib import Path
from airflow._shared.module_loading.file_discovery import find_path_from_directory
found = []
for root in map(Path, json.loads(Path(sys.argv[1]).read_text())):
    found.append(sorted(str(Path(path).relative_to(root)) for path in find_path_from_directory(root, ".airflowignore", "glob")))
print(json.dumps(found))
"""


def test_the_same_files_are_read(ask_airflow: Callable[..., Any], tmp_path: Path) -> None:
    dice = random.Random(os.environ.get("SEED", "airflowignore"))
    roots = [_tree(tmp_path / str(number), dice) for number in range(COUNT)]
    (tmp_path / "roots.json").write_text(json.dumps([str(root) for root in roots]))

    theirs = ask_airflow(PROGRAM, str(tmp_path / "roots.json"))

    different = [
        (_ignored(root), ours, files) for root, files in zip(roots, theirs, strict=True) if (ours := _ours(root)) != _py(files)
    ]
    assert different == []


def _tree(root: Path, dice: random.Random) -> Path:
    for folder in FOLDERS:
        (root / folder).mkdir(exist_ok=True, parents=True)
        for name in NAMES:
            (root / folder / name).write_text("from paceline import DAG")
        if dice.random() < 0.35 or not folder:
            lines = dice.choices(PATTERNS, k=dice.randint(1, 3))
            (root / folder / ".airflowignore").write_text("\n".join(lines))
    return root


def _ours(root: Path) -> list[str]:
    watch = Watch(root, list_interval_s=99)
    try:
        listing = watch.look()
        assert listing is not None
        return sorted(listing.files)
    finally:
        watch.close()


def _py(files: list[str]) -> list[str]:
    return [file for file in files if file.endswith(".py")]


def _ignored(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob(".airflowignore")}
