"""The archive of Spark's classes: created by a real JVM, used by others, and harmless when it is useless."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.faulty import FULL

from scheduler.cli import paceline
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Spark
from workers.spark import conf, java
from workers.spark.sessions import archiving, session, session_pool
from workers.spark.sessions.session_pool import WarmJvm

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


@pytest.fixture(scope="module")
def settings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(paths=Paths(home=tmp_path_factory.mktemp("home")), spark=Spark(archive_folder=str(folder)))


@pytest.fixture(scope="module")
def made(settings: Settings, folder: Path) -> Path:
    """With a rehearsal of one job, unless there is time: `make setup` plays all of it."""
    (folder / "spark-of-an-earlier-java.jsa").touch()
    return archiving.make(settings) if FULL else archiving.make(settings, lambda spark, _: spark.range(7).count())


@pytest.fixture
def started(settings: Settings) -> Iterator[Any]:
    """Start a JVM as a task does, on the present archive."""
    jvms: list[WarmJvm] = []

    def start(mine: Settings = settings) -> WarmJvm:
        jvms.append(session_pool.start(conf.merged(mine, {}), {}, mine.spark, java.archive_options(mine)))
        return jvms[-1]

    yield start
    for jvm in jvms:
        session_pool.end(jvm)


def counted(jvm: WarmJvm) -> int:
    with session.opened(jvm, {}, name="count") as spark:
        return int(spark.range(7).count())


def is_mapped(jvm: WarmJvm, file: Path) -> bool:
    return str(file) in Path(f"/proc/{jvm.jvm.pid}/maps").read_text()


def test_a_jvm_starts_from_the_archive(made: Path, started: Any) -> None:
    jvm = started()

    assert is_mapped(jvm, made)
    assert counted(jvm) == 7
    assert "cds" not in jvm.jvm.recent_output()


def test_making_it_leaves_the_archive_alone_in_its_folder(made: Path, folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == [made.name]


def test_the_command_finds_the_archive_that_is_there(made: Path, folder: Path) -> None:
    before = made.stat().st_mtime_ns

    done = CliRunner().invoke(paceline, ["spark", "archive"], env={"PACELINE_SPARK_ARCHIVE_FOLDER": str(folder)})

    assert (done.exit_code, done.output) == (0, f"Spark's classes are archived in {made}.\n")
    assert made.stat().st_mtime_ns == before


def test_a_file_that_is_no_archive_is_ignored(tmp_path: Path, started: Any) -> None:
    mine = Settings(paths=Paths(home=tmp_path / "home"), spark=Spark(archive_folder=str(tmp_path)))
    java.archive_path(mine).write_bytes(b"not an archive")

    jvm = started(mine)

    assert counted(jvm) == 7
    assert "cds" not in jvm.jvm.recent_output()


def test_a_rehearsal_that_fails_states_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    def play(spark: Any, folder: Path) -> None:
        spark.read.parquet(f"{folder}/nothing").count()

    mine = Settings(paths=Paths(home=tmp_path / "home"), spark=Spark(archive_folder=str(tmp_path / "archives")))

    with pytest.raises(archiving.ArchiveError, match="Path does not exist"):
        archiving.make(mine, play)

    assert list((tmp_path / "archives").iterdir()) == []
