"""Creates the class archive: a JVM runs a rehearsal of typical work, and writes the archive when it ends."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.exceptions import PacelineError
from scheduler.settings import Settings
from workers.spark import archive, causes
from workers.spark.java import check_java
from workers.spark.sessions import configuration, rehearsal, session, session_pool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Work with a session, in a folder that is deleted after it.
Play = Callable[["SparkSession", Path], None]
#: Seconds that a JVM may take to write the archive when it ends.
WRITE_TIMEOUT_S = 300.0
#: The archive contains no compiled code, so the optimizing compiler would only take a third of the CPU.
UNOPTIMIZED = "-XX:TieredStopAtLevel=1"


class ArchiveError(PacelineError):
    """The class archive could not be created."""


def make(settings: Settings, play: Play = rehearsal.play) -> Path:
    """Create the archive, which takes half a minute, and delete earlier ones. Returns its path.

    The archive contains the classes that `play` uses.
    ArchiveError if it cannot be created or written; FailTask if there is no Java that Spark can use.
    """
    check_java()
    target = archive.path(settings)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In a folder beside it and then renamed, because JVMs may start at the same time.
        with tempfile.TemporaryDirectory(prefix=".spark-", dir=target.parent) as folder:
            new = Path(folder, target.name)
            _rehearse(settings, new, Path(folder), play)
            if not new.is_file():
                raise ArchiveError(
                    "Java wrote no archive of Spark's classes: this Java cannot, or a folder on Spark's class path contains files."
                )
            new.replace(target)
        for other in target.parent.glob("spark-*.jsa"):
            if other != target:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise ArchiveError(
            f"The archive of Spark's classes cannot be written to {target.parent} ({error.strerror}): "
            "give this user write permission there, or set spark.archive_folder."
        ) from error
    return target


def _rehearse(settings: Settings, target: Path, folder: Path, play: Play) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = configuration.merged(settings, {"spark.sql.warehouse.dir": str(folder / "warehouse")})
    with _silent():
        options = [f"-XX:ArchiveClassesAtExit={target}", UNOPTIMIZED, archive.QUIET]
        warm = session_pool.start(conf, {}, settings.spark, options)
        try:
            with session.opened(warm, {}, name="rehearsal") as spark:
                play(spark, folder)
            warm.jvm.stop(WRITE_TIMEOUT_S)
        except Exception as error:
            cause = causes.of_error(error, warm.jvm.recent_output()) or type(error).__name__
            raise ArchiveError(f"Spark could not run the rehearsal for the archive of its classes: {cause}") from error
        finally:
            session_pool.end(warm)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Discard the output of the JVM on stderr. A failure is reported with its cause."""
    stderr = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
