"""The archive of Spark's classes that a JVM starts from, instead of reading and verifying 20,000 of them anew: where it is.

Java's class data sharing (JEP 350): a JVM that has run typical work writes the classes it loaded to a file, and later ones of the
same Java and the same jars map that file. They check that themselves, and do without one that does not fit.
"""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from scheduler.settings import Settings
from workers.spark.java import find_java

#: A JVM that cannot use an archive would say so in the log of a task, where nobody can do anything about it.
QUIET = "-Xlog:cds*=off"


def path(settings: Settings) -> Path:
    """Where the archive is, or would be, for the Java and the Spark that are found here now."""
    folder = settings.spark.archive_folder
    return (Path(folder) if folder else Path(sys.prefix, "share", "paceline")) / f"spark-{_key()}.jsa"


def options(settings: Settings) -> list[str]:
    """What Java is told to start from the archive; nothing while there is none."""
    archive = path(settings)
    return [f"-XX:SharedArchiveFile={archive}", QUIET] if archive.is_file() else []


def _key() -> str:
    """Another one for another Java or Spark, or the same elsewhere: what a JVM would refuse has another name."""
    java, spark = os.path.realpath(find_java() or "java"), _spark_home()
    changed = [str(int(one.stat().st_mtime)) for one in (Path(java), Path(spark, "jars")) if one.exists()]
    return hashlib.sha256("\n".join([java, spark, *changed]).encode()).hexdigest()[:16]


def _spark_home() -> str:
    """Where Spark is, without importing PySpark, which takes longer than all else here."""
    found = importlib.util.find_spec("pyspark")
    return os.environ.get("SPARK_HOME") or str(Path(str(found and found.origin)).parent)
