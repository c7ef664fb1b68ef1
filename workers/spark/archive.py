"""The class archive: a file of preloaded classes, with which a JVM starts faster than by loading 20,000 classes of Spark.

It uses Java's class data sharing (JEP 350): a JVM that has run typical work writes its loaded classes to a file, and later JVMs
with the same Java and jars map that file. They check this themselves, and ignore an archive that does not fit.
"""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from scheduler.settings import Settings
from workers.spark.java import find_java

#: Keeps the warnings of a JVM that cannot use an archive out of the logs of tasks.
QUIET = "-Xlog:cds*=off"


def path(settings: Settings) -> Path:
    """The path of the archive for the Java and Spark on this machine, whether it exists or not."""
    folder = settings.spark.archive_folder
    return (Path(folder) if folder else Path(sys.prefix, "share", "paceline")) / f"spark-{_key()}.jsa"


def options(settings: Settings) -> list[str]:
    """The options with which Java uses the archive; none if it does not exist."""
    archive = path(settings)
    return [f"-XX:SharedArchiveFile={archive}", QUIET] if archive.is_file() else []


def _key() -> str:
    """A hash of the Java and Spark, their paths and their times, so that an archive that does not fit has another name."""
    java, spark = os.path.realpath(find_java() or "java"), _spark_home()
    changed = [str(int(path.stat().st_mtime)) for path in (Path(java), Path(spark, "jars")) if path.exists()]
    return hashlib.sha256("\n".join([java, spark, *changed]).encode()).hexdigest()[:16]


def _spark_home() -> str:
    """The folder of Spark, found without the slow import of PySpark."""
    spec = importlib.util.find_spec("pyspark")
    return os.environ.get("SPARK_HOME") or str(Path(str(spec and spec.origin)).parent)
