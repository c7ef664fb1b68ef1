"""The installation of Spark on this machine: its folder, and the versions in the names of its jars."""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

_CORE = re.compile(r"spark-core_(\d+\.\d+)-(\d+)\.(\d+)\b.*\.jar")


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


def home() -> str:
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


def find(folder: str | None = None) -> Installed | None:
    """The installation in a folder, by default in `home`; None if there is none, or if its version cannot be read."""
    try:
        path = Path(folder or home())
    except ModuleNotFoundError:
        return None
    for jar in path.glob("jars/spark-core_*.jar"):
        found = _CORE.fullmatch(jar.name)
        if found is not None:
            return Installed(path, (int(found[2]), int(found[3])), found[1])
    return None


def of_binary(binary: str) -> Installed | None:
    """The installation of a spark-submit; None if it is a script somewhere else, or if its version cannot be read."""
    return find(str(Path(binary).resolve().parent.parent))
