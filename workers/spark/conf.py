"""Checks of a Spark conf: a wrong key or value is rejected with a clear error before a JVM is started."""

import difflib
import functools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.exceptions import FailTask
from workers.spark import java
from workers.spark.java import Installed

#: The constant pools of these classes contain the keys of this version of Spark.
_DEFINED_IN = (
    ("spark-core_*.jar", r"org/apache/spark/internal/config/.*\.class"),
    ("spark-catalyst_*.jar", r"org/apache/spark/sql/internal/(SQLConf|StaticSQLConf)\$?\.class"),
    ("spark-sql-api_*.jar", r"org/apache/spark/sql/internal/.*Conf.*\.class"),
    ("spark-yarn_*.jar", r"org/apache/spark/deploy/yarn/config/.*\.class"),
    ("spark-kubernetes_*.jar", r"org/apache/spark/deploy/k8s/Config.*\.class"),
)
_KEY = re.compile(rb"spark\.[A-Za-z][A-Za-z0-9.]*[A-Za-z0-9]")
#: By kind of value: its pattern, and its description.
_KINDS = {
    "size": (r"\d+\s*[kmgtp]?b?", "a size such as 512m or 4g"),
    "time": (r"\d+\s*(us|ms|s|m|min|h|d)?", "a time such as 30s or 5min"),
    "whole": (r"\d+", "a whole number"),
    "boolean": (r"true|false", "true or false"),
}
#: The keys whose values are most often wrong, with errors of a JVM or executor that are hard to read.
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("spark.driver.memory", "spark.driver.memoryOverhead", "spark.driver.maxResultSize", "spark.executor.memory",
                     "spark.executor.memoryOverhead", "spark.executor.pyspark.memory", "spark.memory.offHeap.size"), "size"),
    **dict.fromkeys(("spark.executor.heartbeatInterval", "spark.network.timeout"), "time"),
    **dict.fromkeys(("spark.cores.max", "spark.default.parallelism", "spark.driver.cores", "spark.executor.cores",
                     "spark.executor.instances", "spark.sql.shuffle.partitions", "spark.task.cpus"), "whole"),
    **dict.fromkeys(("spark.dynamicAllocation.enabled", "spark.eventLog.enabled", "spark.shuffle.service.enabled",
                     "spark.sql.adaptive.enabled", "spark.ui.enabled", "spark.speculation"), "boolean"),
}  # fmt: skip
#: The keys with comma-separated files for the driver and executors.
FILES = ("spark.jars", "spark.files", "spark.archives", "spark.submit.pyFiles")
#: Paths and URLs of files on this machine.
_HERE = re.compile(r"(file:/*)?/|(?![a-zA-Z][\w+.-]*:)")
#: For a driver on this machine, so that it works without a resolvable host name, as in many containers.
LOOPBACK: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def checked(own: Mapping[Any, Any]) -> dict[str, str]:
    """A conf in Spark's form: a bool becomes true or false, and a key with None is left out.

    FailTask for a key that is certainly a mistake, or a value that Spark cannot read.
    """
    conf: dict[str, str] = {}
    for key, value in own.items():
        if not isinstance(key, str):
            raise FailTask(f"The conf key {key!r} is of type {type(key).__name__}; write a str that starts with spark.")
        if not isinstance(value, str | int | float | None):
            raise FailTask(f"The conf value of {key!r} is of type {type(value).__name__}; write a str, a number or a bool.")
        if value is not None:
            conf[key] = str(value).lower() if isinstance(value, bool) else str(value)
            _check(key, conf[key])
    return conf


def from_properties(path: Path) -> dict[str, str]:
    """The settings in a properties file, such as spark-defaults.conf: lines with a key and a value, or key=value."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except OSError as error:
        raise FailTask(f"The properties_file {path} cannot be read: {error.strerror}.") from error
    parts = (re.match(r"([^\s=:]+)\s*[=:\s]\s*(.*)", line) for line in lines if line and not line.startswith(("#", "!")))
    return {found[1]: found[2] for found in parts if found is not None and found[1].startswith("spark.")}


def _check(key: str, value: str) -> None:
    if not key.startswith("spark."):
        raise FailTask(f"The conf key {key!r} does not start with spark., so Spark would ignore it: correct the key.")
    if "\n" in key or "=" in key or "\n" in value:
        raise FailTask(f"The conf key {key!r} contains a line break or an equals sign, or its value a line break: correct it.")
    if key not in VALUES:
        return _check_key(key)
    pattern, words = _KINDS[VALUES[key]]
    if value == "":
        raise FailTask(f"The conf {key} is empty: write {words}.")
    if not re.fullmatch(pattern, value.strip(), re.IGNORECASE):
        raise FailTask(f"The conf {key} cannot be {value!r}: write {words}.")


def _check_key(key: str) -> None:
    known = known_keys()
    if not known or key in known:
        return
    # Only likely typing errors: an application may have keys of its own.
    alike = {name for name in known if abs(len(name) - len(key)) <= 2 and name.count(".") == key.count(".")}
    nearest = difflib.get_close_matches(key, alike, 1, cutoff=0.93)
    if nearest:
        raise FailTask(f"Spark has no conf key {key!r}; did you mean {nearest[0]!r}?")


def check_files(what: str, names: str) -> None:
    """FailTask if one of these comma-separated files on this machine does not exist. Spark starts without a missing jar."""
    for name in filter(None, (part.strip() for part in names.split(","))):
        path = re.sub(r"^file:/*(?=/)", "", name).partition("#")[0]
        if not _HERE.match(name) or "*" in path:
            continue
        if not path.startswith("/"):
            raise FailTask(
                f"The {what} {path} of this task is a relative path, and drivers start in any folder: write an absolute path."
            )
        if not Path(path).exists():
            raise FailTask(f"The {what} {path} of this task is not a file on this worker: create it, or correct the path.")


@functools.cache
def known_keys() -> frozenset[str]:
    """Every conf key that the installed Spark defines; empty if its jars cannot be found."""
    try:
        jars = Path(java.spark_home(), "jars")
    except ModuleNotFoundError:
        return frozenset()
    keys: set[str] = set()
    for jar, wanted in _DEFINED_IN:
        for path in jars.glob(jar):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if re.fullmatch(wanted, name):
                        keys |= {key.decode() for key in _KEY.findall(archive.read(name))}
    return frozenset(keys)


def as_properties(conf: Mapping[str, str]) -> str:
    """A conf as a Java properties file. Other users cannot read the file, unlike arguments."""
    return "".join(f"{_escaped(key, is_key=True)}={_escaped(value)}\n" for key, value in conf.items())


def as_properties_file(conf: Mapping[str, str], spark: Installed | None) -> tuple[str, list[str]]:
    """The content of a properties file, and the options with which a spark-submit reads it on top of its spark-defaults.conf.

    A properties file replaces spark-defaults.conf. Since version 4.0, which is assumed for None, an option prevents that.
    """
    if spark is None or spark.version >= (4, 0):
        return as_properties(conf), ["--load-spark-defaults"]
    defaults = from_properties(spark.defaults_file) if spark.defaults_file.is_file() else {}
    return as_properties({**defaults, **conf}), []


def _escaped(text: str, *, is_key: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if is_key:
        return re.sub(r"([ :=#!])", r"\\\1", escaped)
    return "\\" + escaped if escaped.startswith(" ") else escaped
