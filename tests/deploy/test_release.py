"""`make release` in a copy of the checkout."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit, and the files that a release reads and builds."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "deploy/release", "deploy/chart/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("deploy/kustomize", "docs/how-to"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        git(tmp_path, *command)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def release(folder: Path, version: str, build: str = "true") -> subprocess.CompletedProcess[str]:
    """Release with another program in place of the build, which the test of the wheel does."""
    script = folder / "deploy" / "release"
    text = script.read_text(encoding="utf-8").replace('[sys.executable, "-m", "build", "--outdir", "dist", "."]', f'["{build}"]')
    environment = {f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    code = f"__file__ = {str(script)!r}\n{text}"
    return subprocess.run([sys.executable, "-c", code, version], cwd=folder, env=environment | {"PATH": "/usr/bin:/bin"},
                          capture_output=True, text=True, check=False)  # fmt: skip


def named_versions(folder: Path) -> list[str]:
    """The versions in labels, images, tags and wheels of the files in a folder."""
    files = (path for path in folder.rglob("*") if path.suffix in (".yaml", ".md"))
    return [
        version
        for path in files
        for version in re.findall(r"(?:version: |newTag: |paceline[\w-]*[:-]|v)(\d+\.\d+\.\d+)\b", path.read_text(encoding="utf-8"))
    ]


def test_a_failed_build_commits_and_tags_nothing(checkout: Path) -> None:
    before = git(checkout, "rev-parse", "HEAD")
    done = release(checkout, "3.4.5", build="false")

    assert done.returncode != 0
    assert (git(checkout, "rev-parse", "HEAD"), git(checkout, "tag", "--list")) == (before, "")
    git(checkout, "checkout", ".")
    assert git(checkout, "status", "--porcelain") == ""


def test_a_release_sets_versions_closes_the_changelog_and_tags(checkout: Path) -> None:
    done = release(checkout, "3.4.5")

    assert done.returncode == 0, done.stderr
    assert 'version = "3.4.5"' in (checkout / "pyproject.toml").read_text(encoding="utf-8")
    chart = (checkout / "deploy/chart/Chart.yaml").read_text(encoding="utf-8")
    assert "\nversion: 3.4.5\nappVersion: 3.4.5\n" in chart
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[Unreleased\]\n\n## \[3\.4\.5\] - \d{4}-\d\d-\d\d\n", changelog, re.MULTILINE)
    former = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for folder in ("deploy/kustomize", "docs/how-to"):
        before, after = (named_versions(root / folder) for root in (ROOT, checkout))
        assert before.count(former) == after.count("3.4.5") > 0 and former not in after
    assert git(checkout, "tag", "--list") == "v3.4.5"
    assert git(checkout, "log", "-1", "--format=%s") == "Release 3.4.5"
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("version", "words"), [("", "make release VERSION"), ("1.2", "make release VERSION"), ("0.0.1", "older than")]
)
def test_a_wrong_version_is_refused(checkout: Path, version: str, words: str) -> None:
    done = release(checkout, version)

    assert done.returncode == 1
    assert words in done.stderr
    assert git(checkout, "tag", "--list") == ""


def test_changes_that_are_not_committed_and_an_empty_changelog_are_refused(checkout: Path) -> None:
    (checkout / "README.md").write_text("changed")
    assert "not committed" in release(checkout, "3.4.5").stderr
    git(checkout, "checkout", "--quiet", "README.md")
    assert release(checkout, "3.4.5").returncode == 0

    again = release(checkout, "3.4.5")
    empty = release(checkout, "3.4.6")

    assert "The tag v3.4.5 exists" in again.stderr
    assert "no unreleased change" in empty.stderr
