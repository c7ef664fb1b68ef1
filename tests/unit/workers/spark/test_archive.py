"""The place of the archive of Spark's classes, and sources that cannot provide one."""

import os
import sys
from pathlib import Path

import pytest

from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Spark
from workers.spark.applications import submitter
from workers.spark.clusters.command import Submission, Target
from workers.spark.java import archive_options, archive_path
from workers.spark.sessions import archiving


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    binary = tmp_path / "java-17" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java-17"))
    return binary


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    return tmp_path / "spark"


def settings(folder: Path | str) -> Settings:
    return Settings(paths=Paths(home=Path("/nowhere")), spark=Spark(archive_folder=str(folder)))


def later(path: Path) -> None:
    os.utime(path, (path.stat().st_mtime + 10,) * 2)


def test_another_java_or_another_spark_has_another_archive(java: Path, spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [archive_path(settings("/a"))]
    later(java)
    names.append(archive_path(settings("/a")))
    later(spark / "jars")
    names.append(archive_path(settings("/a")))
    monkeypatch.delenv("SPARK_HOME")
    names.append(archive_path(settings("/a")))

    assert len(set(names)) == 4
    assert {name.parent for name in names} == {Path("/a")}
    assert archive_path(settings("/a")) == names[-1]


def test_it_lies_in_the_python_environment_unless_a_folder_is_set() -> None:
    assert archive_path(settings("")).is_relative_to(sys.prefix)
    assert archive_path(settings("/a/b")).parent == Path("/a/b")


def test_a_jvm_starts_from_it_only_if_it_is_there(java: Path, spark: Path, tmp_path: Path) -> None:
    assert archive_options(settings(tmp_path)) == []

    archive_path(settings(tmp_path)).touch()

    assert archive_options(settings(tmp_path))[0] == f"-XX:SharedArchiveFile={archive_path(settings(tmp_path))}"


def submission(binary: str | None) -> Submission:
    target = Target(kind="local", master="local", binary=binary)
    return Submission(target=target, tag="paceline-00000000-1-1", name="a", application="a.py")


def test_drivers_of_submitted_applications_start_from_it_too(
    java: Path, spark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    archive_path(settings(tmp_path)).touch()

    ours, theirs = (
        submitter._environment(submission(binary), settings(tmp_path)) for binary in (None, "/opt/spark/bin/spark-submit")
    )

    assert ours["SPARK_SUBMIT_OPTS"].startswith(f'-Dmine=1 "-XX:SharedArchiveFile={archive_path(settings(tmp_path))}"')
    assert theirs["SPARK_SUBMIT_OPTS"] == "-Dmine=1"


def test_an_unwritable_place_is_reported_with_the_fix(java: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(
        archiving.ArchiveError, match=r"cannot be written to .*/file/folder \(Not a directory\): .*spark\.archive_folder"
    ):
        archiving.make(settings(tmp_path / "file" / "folder"))
