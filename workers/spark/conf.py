"""What is checked before a JVM is started, which would take minutes to report it: the keys and values of a Spark conf, the
configuration of a PySpark task with the keys that a session can take, and whether a server listens at the address of the master.
"""

import difflib
import functools
import re
import socket
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tenacity import stop_before_delay

from paceline.exceptions import FailTask, PacelineError
from scheduler.process import retries
from scheduler.settings import Settings
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


SESSION_PREFIX = "spark.sql."
#: The static keys of Spark SQL, which are read once for all sessions. A test compares them with those of the JVM.
STATIC = frozenset({
    "spark.sql.artifact.copyFromLocalToFs.allowDestLocal", "spark.sql.avro.schemaUrlAllowedSchemes",
    "spark.sql.broadcastExchange.maxThreadThreshold", "spark.sql.cache.serializer", "spark.sql.catalogImplementation",
    "spark.sql.catalog.spark_catalog.defaultDatabase",
    "spark.sql.codegen.cache.maxEntries", "spark.sql.codegen.comments", "spark.sql.connect.ui.retainedSessions",
    "spark.sql.connect.ui.retainedStatements", "spark.sql.debug", "spark.sql.defaultUrlStreamHandlerFactory.enabled",
    "spark.sql.event.truncate.length", "spark.sql.extensions", "spark.sql.extensions.test.loadFromCp",
    "spark.sql.filesourceTableRelationCacheSize", "spark.sql.globalTempDatabase",
    "spark.sql.hive.thriftServer.http.sniHostCheckEnabled", "spark.sql.hive.thriftServer.singleSession",
    "spark.sql.kafka.disallowedOptions", "spark.sql.legacy.hive.thriftServer.allowSettingSystemProperties",
    "spark.sql.legacy.sessionInitWithConfigDefaults", "spark.sql.metadataCacheTTLSeconds", "spark.sql.queryExecutionListeners",
    "spark.sql.reflect.allowList", "spark.sql.restrictedMode.enabled", "spark.sql.resultQueryStage.maxThreadThreshold",
    "spark.sql.shuffleExchange.maxThreadThreshold", "spark.sql.sources.disabledJdbcConnProviderList",
    "spark.sql.sources.schemaStringLengthThreshold", "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.streaming.ui.enabled", "spark.sql.streaming.ui.enabledCustomMetricList",
    "spark.sql.streaming.ui.retainedProgressUpdates", "spark.sql.streaming.ui.retainedQueries",
    "spark.sql.subquery.maxThreadThreshold", "spark.sql.ui.retainedExecutions", "spark.sql.warehouse.dir",
})  # fmt: skip
STATIC_PREFIXES = ("spark.sql.hive.metastore.", "spark.sql.hive.version")


def check(own: Mapping[str, str]) -> None:
    """FailTask if a task with this conf cannot have a driver of its own, or if one of its files does not exist."""
    master = own.get("spark.master", "")
    for key, url in (("spark.remote", own.get("spark.remote")), ("spark.master", master if master.startswith("sc:") else None)):
        if url is not None:
            raise FailTask(
                f"The conf {key} cannot be {url!r}: the session of this task is in a JVM of its worker. Name a connection to the "
                "Connect server in conn_id, and it is on that server."
            )
    for key in FILES:
        check_files(f"conf {key}", own.get(key, ""))


def merged(settings: Settings, own: Mapping[str, str]) -> dict[str, str]:
    """The defaults for a small local Spark, overridden by the keys of the task."""
    defaults = {
        "spark.app.name": "paceline",
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Limits on the data of ended jobs: only the newest are needed for the progress, and a warm JVM must not grow.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "20",
    }
    merged_conf = defaults | dict(own)
    if merged_conf["spark.master"].startswith("local"):
        return {**LOOPBACK, **merged_conf}
    # A worker of UDFs on another machine cannot be ended between two tasks, and would keep the environment of the first one.
    return {"spark.python.worker.reuse": "false", **merged_conf}


def split(own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of a task that need a new JVM, and those that a session can take."""
    session = {key: value for key, value in own.items() if takes_session(key)}
    return {key: value for key, value in own.items() if key not in session}, session


def takes_session(key: str) -> bool:
    return key.startswith(SESSION_PREFIX) and key not in STATIC and not key.startswith(STATIC_PREFIXES)


PAUSE_S = 0.5
LARGEST_PORT = 65_535
#: The URL schemes of masters with an address, or with several of which one is active.
SCHEMES = ("spark://", "sc://")


class MasterUnreachableError(PacelineError):
    """No server listens at the address of the Spark master of a task."""


def check_master(master: str, *, timeout_s: float, correct: str) -> None:
    """Check a master with an address; others are not checked. `correct` names the source of the address.

    MasterUnreachableError if no server listens there within `timeout_s`; FailTask if the address is not valid.
    """
    if not master.startswith(SCHEMES):
        return
    deadline = time.monotonic() + timeout_s
    addresses = [_address(master, part) for part in urlsplit(master).netloc.split(",")]

    def connect() -> None:
        refusal: str | None = None
        for address in addresses:
            refusal = _refusal(*address, max(0.1, (deadline - time.monotonic()) / len(addresses)))
            if refusal is None:
                return
        raise MasterUnreachableError(
            f"The Spark master {master} did not answer within {timeout_s:g} s ({refusal}): start it, or correct {correct}."
        )

    retries.repeated(lambda error: isinstance(error, MasterUnreachableError), pause_s=PAUSE_S, stop=stop_before_delay(timeout_s))(
        connect
    )


def _address(master: str, part: str) -> tuple[str, int]:
    host, _, port = part.rpartition(":")
    # getaddrinfo reduces a larger port modulo 65536, where another server may listen.
    if not host or not port.isdigit() or int(port) > LARGEST_PORT:
        raise FailTask(f"The Spark master {master} needs a host and a port, as in spark://host:7077.")
    return host.strip("[]"), int(port)


def _refusal(host: str, port: int, timeout_s: float) -> str | None:
    """Why a connection fails; None if it succeeds."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return None
    except (OSError, OverflowError) as error:
        return f"nothing answers at {host}:{port}: {error}"
