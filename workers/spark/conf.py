"""What may stand in a Spark conf: a wrong key or value is refused here, in one sentence, before a JVM is started for it."""

import difflib
import functools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.exceptions import FailTask

#: Constant pools of these classes hold the keys that this version of Spark knows.
_DEFINED_IN = (
    ("spark-core_*.jar", r"org/apache/spark/internal/config/.*\.class"),
    ("spark-catalyst_*.jar", r"org/apache/spark/sql/internal/(SQLConf|StaticSQLConf)\$?\.class"),
    ("spark-sql-api_*.jar", r"org/apache/spark/sql/internal/.*Conf.*\.class"),
    ("spark-yarn_*.jar", r"org/apache/spark/deploy/yarn/config/.*\.class"),
    ("spark-kubernetes_*.jar", r"org/apache/spark/deploy/k8s/Config.*\.class"),
)
_KEY = re.compile(rb"spark\.[A-Za-z][A-Za-z0-9.]*[A-Za-z0-9]")
_SIZE = re.compile(r"\d+\s*([kmgtp]?b?)", re.IGNORECASE)
_TIME = re.compile(r"\d+\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_WHOLE = re.compile(r"\d+")
_KINDS: dict[str, tuple[re.Pattern[str], str]] = {
    "size": (_SIZE, "a size such as 512m or 4g"),
    "time": (_TIME, "a time such as 30s or 5min"),
    "whole": (_WHOLE, "a whole number"),
    "boolean": (re.compile("true|false", re.IGNORECASE), "true or false"),
}
#: The values that are most often wrong, and stop a JVM or an executor in a way that is hard to read.
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("spark.driver.memory", "spark.driver.memoryOverhead", "spark.driver.maxResultSize", "spark.executor.memory",
                     "spark.executor.memoryOverhead", "spark.executor.pyspark.memory", "spark.memory.offHeap.size"), "size"),
    **dict.fromkeys(("spark.executor.heartbeatInterval", "spark.network.timeout"), "time"),
    **dict.fromkeys(("spark.cores.max", "spark.default.parallelism", "spark.driver.cores", "spark.executor.cores",
                     "spark.executor.instances", "spark.sql.shuffle.partitions", "spark.task.cpus"), "whole"),
    **dict.fromkeys(("spark.dynamicAllocation.enabled", "spark.eventLog.enabled", "spark.shuffle.service.enabled",
                     "spark.sql.adaptive.enabled", "spark.ui.enabled", "spark.speculation"), "boolean"),
}  # fmt: skip


#: For a driver here: a host name that does not resolve, as in many containers, is no reason to fail.
LOOPBACK: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def checked(own: Mapping[Any, Any]) -> dict[str, str]:
    """A conf as Spark reads it: a bool is true or false, None leaves the key out.

    FailTask for a key that is surely a mistake, or a value that Spark cannot read.
    """
    found: dict[str, str] = {}
    for key, value in own.items():
        if not isinstance(key, str):
            raise FailTask(f"The conf key {key!r} is of type {type(key).__name__}; write a text that begins with spark.")
        if not isinstance(value, str | int | float | None):
            raise FailTask(f"The conf value of {key!r} is of type {type(value).__name__}; write a text, a number or a bool.")
        if value is not None:
            found[key] = str(value).lower() if isinstance(value, bool) else str(value)
            _check(key, found[key])
    return found


def _check(key: str, value: str) -> None:
    if not key.startswith("spark."):
        raise FailTask(f"The conf key {key!r} does not begin with spark., so Spark would pass over it: correct the key.")
    if "\n" in key or "=" in key or "\n" in value:
        raise FailTask(f"The conf key {key!r} or its value holds a line break or an equals sign where none can be: correct it.")
    if key not in VALUES:
        return _check_key(key)
    pattern, words = _KINDS[VALUES[key]]
    if value == "":
        raise FailTask(f"The conf {key} is empty: write {words}.")
    if not pattern.fullmatch(value.strip()):
        raise FailTask(f"The conf {key} cannot be {value!r}: write {words}.")


def _check_key(key: str) -> None:
    known = known_keys()
    if not known or key in known:
        return
    # Only what looks like a slip of the pen: keys of an application itself are free.
    alike = {one for one in known if abs(len(one) - len(key)) <= 2 and one.count(".") == key.count(".")}
    slip = difflib.get_close_matches(key, alike, 1, cutoff=0.93)
    if slip:
        raise FailTask(f"The conf key {key!r} is none of Spark's; did you mean {slip[0]!r}?")


@functools.cache
def known_keys() -> frozenset[str]:
    """Every conf key that the installed Spark defines; empty if its jars are not where they should be."""
    try:
        from pyspark.find_spark_home import _find_spark_home

        folder = Path(_find_spark_home()) / "jars"
    except (ImportError, SystemExit):
        return frozenset()
    found: set[str] = set()
    for jar, wanted in _DEFINED_IN:
        for path in folder.glob(jar):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if re.fullmatch(wanted, name):
                        found |= {key.decode() for key in _KEY.findall(archive.read(name))}
    return frozenset(found)


def as_properties(conf: Mapping[str, str]) -> str:
    """A conf as a Java properties file, which is nobody else's to read, unlike arguments."""
    return "".join(f"{_escaped(key, is_key=True)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str, *, is_key: bool = False) -> str:
    found = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if is_key:
        return re.sub(r"([ :=#!])", r"\\\1", found)
    return "\\" + found if found.startswith(" ") else found
