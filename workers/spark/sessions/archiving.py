"""Makes the archive of Spark's classes: a JVM that has run a rehearsal of typical work writes it when it ends."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scheduler.exceptions import PacelineError
from scheduler.settings import Settings
from workers.spark import archive, causes
from workers.spark.java import check_java
from workers.spark.sessions import configuration, rehearsal, session, session_pool

#: Seconds that a JVM may take to write the archive when it ends.
WRITE_TIMEOUT_S = 300.0


class ArchiveError(PacelineError):
    """The archive could not be made."""


def make(settings: Settings) -> Path:
    """Make the archive, which takes half a minute, in the place of earlier ones.

    ArchiveError if it cannot be made or written; FailTask if there is no Java that Spark can use.
    """
    check_java()
    target = archive.path(settings)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, so that it appears there whole: JVMs may start meanwhile.
        with tempfile.TemporaryDirectory(prefix=".spark-", dir=target.parent) as folder:
            made = Path(folder, target.name)
            _rehearse(settings, made, Path(folder))
            if not made.is_file():
                raise ArchiveError(
                    "Java wrote no archive of Spark's classes: this Java cannot, or a folder on Spark's class path has files in it."
                )
            made.replace(target)
        for other in target.parent.glob("spark-*.jsa"):
            if other != target:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise ArchiveError(
            f"The archive of Spark's classes cannot be written to {target.parent} ({error.strerror}): "
            "give this user the right to write there, or set spark.archive_folder."
        ) from error
    return target


def _rehearse(settings: Settings, target: Path, folder: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = configuration.merged(settings, {"spark.sql.warehouse.dir": str(folder / "warehouse")})
    with _silent():
        one = session_pool.start(conf, {}, [f"-XX:ArchiveClassesAtExit={target}", archive.QUIET])
        try:
            with session.opened(one, {}, name="rehearsal") as spark:
                rehearsal.play(spark, folder)
            one.jvm.stop(WRITE_TIMEOUT_S)
        except Exception as error:
            cause = causes.of_error(error, one.jvm.said()) or type(error).__name__
            raise ArchiveError(f"Spark could not run what its classes are archived by: {cause}") from error
        finally:
            session_pool.end(one)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what the JVM says on the way, which goes wherever stderr goes; of a failure, the cause is told."""
    stderr = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
