"""The files that an `.airflowignore` excludes. The expected files are those that Airflow 3.3.2 finds."""

from pathlib import Path

import pytest
from support.waiting import eventually

from scheduler.dagfiles.watch import Watch

from .conftest import listing

DAG_FILE = "from paceline import DAG\nDAG('d')\n"
FILES = (
    "a.py", "b_test.py", "team/a.py", "team/keep.py", "team/sub/a.py", "team/sub/c.py", "lib/x.py", "lib/deep/x.py", "tools/lib.py",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(DAG_FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("lines", "ignored"),
    [
        ([], set()),
        (["# nothing", "", "  # nothing"], set()),
        (["*_test.py  # tests"], {"b_test.py"}),
        (["lib"], {"lib/x.py", "lib/deep/x.py"}),
        (["lib/"], {"lib/x.py", "lib/deep/x.py"}),
        (["lib*"], {"lib/x.py", "lib/deep/x.py", "tools/lib.py"}),
        (["a.py"], {"a.py", "team/a.py", "team/sub/a.py"}),
        (["/a.py"], {"a.py"}),
        (["team/a.py"], {"team/a.py"}),
        (["team/**/a.py"], {"team/a.py", "team/sub/a.py"}),
        (["team/*", "!team/keep.py"], {"team/a.py", "team/sub/a.py", "team/sub/c.py"}),
        # Files of an ignored folder cannot be included again.
        (["team", "!team/keep.py"], {"team/a.py", "team/keep.py", "team/sub/a.py", "team/sub/c.py"}),
        (["a.py", "!a.py"], set()),
        (["/"], set()),
    ],
)
def test_globs_are_those_of_gitignore(folder: Path, lines: list[str], ignored: set[str]) -> None:
    (folder / ".airflowignore").write_text("\n".join(lines))

    assert set(FILES) - listing(folder).files.keys() == ignored


@pytest.mark.parametrize(
    ("lines", "ignored"),
    [
        (["^lib"], {"lib/x.py", "lib/deep/x.py"}),
        (["lib"], {"lib/x.py", "lib/deep/x.py", "tools/lib.py"}),
        ([r"sub/.*\.py", "b_"], {"team/sub/a.py", "team/sub/c.py", "b_test.py"}),
    ],
)
def test_regular_expressions_are_searched_in_the_path_below_the_dags_folder(
    folder: Path, lines: list[str], ignored: set[str]
) -> None:
    (folder / ".airflowignore").write_text("\n".join(lines))

    assert set(FILES) - listing(folder, ignore_syntax="regexp").files.keys() == ignored


def test_a_file_applies_to_its_folder_and_those_below_and_overrides_those_above(folder: Path) -> None:
    (folder / ".airflowignore").write_text("a.py\n")
    (folder / "team/.airflowignore").write_text("!a.py\n/keep.py\nsub/c.py\n")

    assert set(FILES) - listing(folder).files.keys() == {"a.py", "team/keep.py", "team/sub/c.py"}


def test_an_ignored_file_is_still_a_module_that_dag_files_can_import(folder: Path) -> None:
    (folder / ".airflowignore").write_text("lib/\n")

    assert {"lib/x.py", "lib/deep/x.py"} <= listing(folder).modules.keys()


def test_a_line_that_is_not_valid_ignores_nothing_and_is_logged_with_its_number(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / ".airflowignore").write_text("a.py\n[\n(\n")

    assert {"b_test.py"} <= listing(folder, ignore_syntax="regexp").files.keys()
    assert f"{folder}/.airflowignore:2: '[' is not valid" in caplog.text
    assert ".airflowignore:3" in caplog.text


def test_a_change_of_the_file_is_noticed_at_once(folder: Path) -> None:
    watch = Watch(folder, list_interval_s=3600)
    known = watch.look()
    assert known is not None
    for lines, ignored in (("/a.py", {"a.py"}), ("team", {name for name in FILES if name.startswith("team")}), (None, set())):
        path = folder / ".airflowignore"
        path.unlink() if lines is None else path.write_text(lines)
        while set(FILES) - known.files.keys() != ignored:
            known = known.followed_by(eventually(watch.look, message=f"expected that {ignored} are ignored"))
    # A file that is written again is still ignored.
    (folder / ".airflowignore").write_text("/a.py")
    while "a.py" in known.files:
        known = known.followed_by(eventually(watch.look))
    (folder / "a.py").write_text(DAG_FILE + "# 2")
    written = eventually(watch.look)
    watch.close()
    assert "a.py" not in written.files
