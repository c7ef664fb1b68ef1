"""Finds Spark on this machine, and the Java that runs it, with its class archive.

The class archive is a file of preloaded classes, with which a JVM starts faster than by loading 20,000 classes of Spark. It uses
Java's class data sharing (JEP 350): a JVM that has run typical work writes its loaded classes to a file, and later JVMs with the
same Java and jars map that file. They check this themselves, and ignore an archive that does not fit.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paceline.exceptions import FailTask
from scheduler.settings import Settings

OLDEST_JAVA = 17
INSTALL = f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."
#: Keeps the warnings of a JVM that cannot use an archive out of the logs of tasks.
QUIET = "-Xlog:cds*=off"
_CORE = re.compile(r"spark-core_(\d+\.\d+)-(\d+)\.(\d+)\b.*\.jar")


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
    java, spark = os.path.realpath(find_java() or "java"), spark_home()
    changed = [str(int(path.stat().st_mtime)) for path in (Path(java), Path(spark, "jars")) if path.exists()]
    return hashlib.sha256("\n".join([java, spark, *changed]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Installed:
    """A Spark installation: its folder, its feature release such as (4, 1), and the Scala of its jars, such as "2.13"."""

    home: Path
    version: tuple[int, int]
    scala: str

    @property
    def release(self) -> str:
        """The feature release as text, such as "4.1"."""
        return "{}.{}".format(*self.version)

    @property
    def defaults_file(self) -> Path:
        """The path of its spark-defaults.conf, which may not exist."""
        return Path(os.environ.get("SPARK_CONF_DIR") or self.home / "conf") / "spark-defaults.conf"


def spark_home() -> str:
    """The folder of Spark, found without the slow import of PySpark: that of SPARK_HOME, else that of the installed PySpark.

    ModuleNotFoundError if there is none.
    """
    if "SPARK_HOME" in os.environ:
        return os.environ["SPARK_HOME"]
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")
    module = Path(spec.origin).parent
    downloaded = module / "spark-distribution"  # with PYSPARK_HADOOP_VERSION
    return str(downloaded if downloaded.is_dir() else module)


def find_spark(folder: str | None = None) -> Installed | None:
    """The installation in a folder, by default in `spark_home`; None if there is none, or if its version cannot be read."""
    try:
        path = Path(folder or spark_home())
    except ModuleNotFoundError:
        return None
    for jar in path.glob("jars/spark-core_*.jar"):
        found = _CORE.fullmatch(jar.name)
        if found is not None:
            return Installed(path, (int(found[2]), int(found[3])), found[1])
    return None


def spark_of_binary(binary: str) -> Installed | None:
    """The installation of a spark-submit; None if it is a script somewhere else, or if its version cannot be read."""
    return find_spark(str(Path(binary).resolve().parent.parent))
