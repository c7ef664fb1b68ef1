"""The environments of bundles: what makes two of them the same, and which stay on a machine."""

import subprocess
from pathlib import Path

import pytest

from scheduler.dagfiles.environments import Environments, RequirementsError
from scheduler.settings.sections import Bundles


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")


def bundle(folder: Path, requirements: str = "# nothing\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text(requirements)
    return folder


def environments(tmp_path: Path, keep: int = 5) -> Environments:
    return Environments(tmp_path / "home", Bundles(install_requirements=True, keep_environments=keep))


def names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "home" / "environments").iterdir() if path.is_dir()}


def test_equal_requirements_share_an_environment_that_has_paceline(tmp_path: Path) -> None:
    first = environments(tmp_path).python(bundle(tmp_path / "one"))
    second = environments(tmp_path).python(bundle(tmp_path / "two"))
    other = environments(tmp_path).python(bundle(tmp_path / "three", "# something else\n"))

    assert first == second != other and len(names(tmp_path)) == 2
    script = "import paceline, scheduler.dagfiles.fork_server, sys; print(sys.prefix)"
    shown = subprocess.run([first, "-P", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.strip() == str(Path(first).parents[1])


def test_the_least_recently_used_go_and_one_in_use_stays(tmp_path: Path) -> None:
    kept, released = environments(tmp_path, keep=1), environments(tmp_path, keep=1)
    used = kept.python(bundle(tmp_path / "used", "# used\n"))
    old = released.python(bundle(tmp_path / "old", "# old\n"))
    released.release(old)

    new = released.python(bundle(tmp_path / "new", "# new\n"))

    assert names(tmp_path) == {Path(python).parents[1].name for python in (used, new)}
    again = released.python(tmp_path / "old")
    assert again == old and Path(again).exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        *((line, "names another file") for line in (
            "-r more.txt", "-r/etc/passwd", "--requirement=../x.txt", "-c more.txt", "-e .", "--editable ./lib",
        )),
        ("--index-url https://ann:secret@index.example.org/simple", "has a password"),
        ("lib @ https://ann:secret@example.org/lib.whl", "has a password"),
        *((line, "no archive in the bundle") for line in (
            "./lib", "/etc/passwd", "../lib.whl", "lib @ file:///tmp/lib.whl", "./wheels/../../lib.whl",
        )),
    ],
)  # fmt: skip
def test_requirements_that_lie_elsewhere_or_have_a_password_are_refused(tmp_path: Path, line: str, says: str) -> None:
    """An environment is shared by its name, which does not depend on other files."""
    folder = bundle(tmp_path / "one", f"# comment\n{line}\n")

    with pytest.raises(RequirementsError) as caught:
        environments(tmp_path).python(folder)

    text = str(caught.value)
    assert (
        text.startswith("requirements.txt of the bundle, line 2: ") and says in text and "secret" not in text and "\n" not in text
    )
