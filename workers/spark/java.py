"""Finds and checks the Java that runs Spark on this machine, and its class archive.

The class archive is a file of preloaded classes, with which a JVM starts faster than by loading 20,000 classes of Spark. It uses
Java's class data sharing (JEP 350): a JVM that has run typical work writes its loaded classes to a file, and later JVMs with the
same Java and jars map that file. They check this themselves, and ignore an archive that does not fit.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from paceline.exceptions import FailTask
from scheduler.settings import Settings
from workers.spark import installed

OLDEST_JAVA = 17
INSTALL = f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."


def check_java() -> str:
    """The path of the java command for Spark; FailTask, with the package to install, if none can run Spark."""
    java = find_java()
    if java is None:
        raise FailTask(f"Spark needs Java, and there is none on this machine: {INSTALL}")
    version = java_version(java)
    if version is not None and version < OLDEST_JAVA:
        raise FailTask(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is version {version}: {INSTALL}")
    return java


def find_java() -> str | None:
    """The path of the java command: that of JAVA_HOME, else the first in PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    return shutil.which("java")


def environment(java: str, *options: str) -> dict[str, str]:
    """The environment of spark-submit. Options in the conf come later and override these `options` of Java."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # spark-submit fails with a JAVA_HOME that has no Java; with an empty one it uses PATH.
        "JAVA_HOME": str(Path(java).parent.parent) if java.startswith(os.environ.get("JAVA_HOME") or "//") else "",
        "SPARK_SUBMIT_OPTS": " ".join([os.environ.get("SPARK_SUBMIT_OPTS", ""), *(f'"{option}"' for option in options)]).strip(),
    }


def java_version(java: str) -> int | None:
    """The feature release of a Java (8, 11, 17...); None if it is unknown."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


#: Keeps the warnings of a JVM that cannot use an archive out of the logs of tasks.
QUIET = "-Xlog:cds*=off"


def archive_path(settings: Settings) -> Path:
    """The path of the archive for the Java and Spark on this machine, whether it exists or not."""
    folder = settings.spark.archive_folder
    return (Path(folder) if folder else Path(sys.prefix, "share", "paceline")) / f"spark-{_archive_key()}.jsa"


def archive_options(settings: Settings) -> list[str]:
    """The options with which Java uses the archive; none if it does not exist."""
    archive = archive_path(settings)
    return [f"-XX:SharedArchiveFile={archive}", QUIET] if archive.is_file() else []


def _archive_key() -> str:
    """A hash of the Java and Spark, their paths and their times, so that an archive that does not fit has another name."""
    java, spark = os.path.realpath(find_java() or "java"), installed.home()
    changed = [str(int(path.stat().st_mtime)) for path in (Path(java), Path(spark, "jars")) if path.exists()]
    return hashlib.sha256("\n".join([java, spark, *changed]).encode()).hexdigest()[:16]
