"""Iceberg for Spark: the jars that fit the installed Spark, fetched once, and the conf of a session that uses the catalog of a try.

Iceberg builds its runtime for each feature release of Spark, and for some of them never. With a runtime of another release, a
session starts, and each write fails with an error of the JVM.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.exceptions import PacelineError
from scheduler.settings import Settings
from workers.spark import causes, java
from workers.spark.java import Installed

if TYPE_CHECKING:
    from scheduler.catalog.access import Access

#: The newest release of Iceberg that is tested with each feature release of Spark.
RELEASES = {"3.5": "1.10.2", "4.0": "1.10.2", "4.1": "1.12.0"}
#: The value of tables.spark_packages with which Spark uses no tables.
NONE = "none"
EXTENSIONS = "spark.sql.extensions"
OURS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG_CLASS = "org.apache.iceberg.spark.SparkCatalog"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
#: Iceberg sets these properties of Java when it first reads a table, after which a warm JVM would be unfit for another task.
ARROW = "-Darrow.enable_null_check_for_get=false -Darrow.enable_unsafe_memory_access=true"
#: Seconds for the download of the jars, of which the one of Iceberg has 50 MB.
FETCH_TIMEOUT_S = 300.0
#: A main class in every Spark that does nothing but print: spark-submit fetches the packages before it starts it.
HARMLESS = "org.apache.hadoop.util.VersionInfo"
#: What Spark reports for a table or a catalog that a session does not have.
NO_TABLE = re.compile(
    r"TABLE_OR_VIEW_NOT_FOUND|SCHEMA_NOT_FOUND|CATALOG_NOT_FOUND|REQUIRES_SINGLE_PART_NAMESPACE"
    rf"|UNSUPPORTED_FEATURE\.TABLE_OPERATION|{causes.NO_WAREHOUSE}"
)
_missing: dict[str, str] = {}


class JarsMissingError(PacelineError):
    """The jars with which Spark uses tables are not there, or there are none for this Spark."""


def jars(settings: Settings, spark: Installed | None = None) -> list[str]:
    """The jars for a Spark, by default the installed one, as paths or URLs; fetched if they are not there yet.

    JarsMissingError, in one sentence, if there are none. A failure to fetch is remembered, so that one task of a process waits.
    """
    if settings.tables.spark_jars:
        return _given(settings.tables.spark_jars)
    packages = packages_for(settings, spark or java.find_spark())
    folder = _folder(settings, packages)
    if not folder.is_dir():
        if packages in _missing:
            raise JarsMissingError(_missing[packages])
        try:
            _fetch(packages, folder)
        except JarsMissingError as error:
            _missing[packages] = str(error)
            raise
    return [str(path) for path in sorted(folder.glob("*.jar"))]


def fetched(settings: Settings) -> list[str] | None:
    """The jars if they need not be fetched any more, else None. JarsMissingError."""
    if settings.tables.spark_jars:
        return _given(settings.tables.spark_jars)
    folder = _folder(settings, packages_for(settings, java.find_spark()))
    return [str(path) for path in sorted(folder.glob("*.jar"))] if folder.is_dir() else None


def packages_for(settings: Settings, spark: Installed | None) -> str:
    """The Maven coordinates of Iceberg for a Spark, comma-separated. JarsMissingError if Iceberg has no release for it."""
    if settings.tables.spark_packages == NONE:
        raise JarsMissingError("Spark uses no tables, because tables.spark_packages is none: remove that, and it fetches its jars.")
    if settings.tables.spark_packages:
        return settings.tables.spark_packages
    if spark is None:
        raise JarsMissingError("The version of this Spark is unknown: name the jars of Iceberg for it in tables.spark_jars.")
    release = RELEASES.get(spark.release)
    if release is None:
        *others, last = RELEASES
        raise JarsMissingError(
            f"Apache Iceberg has no release for Spark {spark.release}: install PySpark {', '.join(others)} or {last}, or name "
            "jars of your own in tables.spark_jars."
        )
    return f"org.apache.iceberg:iceberg-spark-runtime-{spark.release}_{spark.scala}:{release}"


def jvm_conf(settings: Settings, own: Mapping[str, str]) -> dict[str, str]:
    """The keys of a JVM whose sessions can use the catalog, which keep what its `own` conf names. JarsMissingError."""
    return {
        "spark.jars": joined(own.get("spark.jars", ""), *jars(settings)),
        JAVA_OPTIONS: f"{own.get(JAVA_OPTIONS, '')} {ARROW}".strip(),
        **extensions(own),
    }


def extensions(own: Mapping[str, str]) -> dict[str, str]:
    """The extensions of Spark SQL: those of a conf, and that of Iceberg, for MERGE, UPDATE and its procedures."""
    given = own.get(EXTENSIONS, "")
    return {EXTENSIONS: given if OURS in given else joined(given, OURS)}


def joined(*names: str) -> str:
    """Names with commas between them, without those that are empty."""
    return ",".join(filter(None, names))


def session_conf(access: "Access", own: Mapping[str, str], token: str | None = None) -> dict[str, str]:
    """The keys of a session that uses the catalog of a try, without those of its `own`; `token` in place of the token itself.

    The catalog is the default one, unless names mean tables of Hive.
    """
    key = f"spark.sql.catalog.{access.catalog}"
    default = {} if own.get("spark.sql.catalogImplementation") == "hive" else {"spark.sql.defaultCatalog": access.catalog}
    conf = {
        key: CATALOG_CLASS,
        f"{key}.type": "rest",
        f"{key}.uri": access.uri,
        f"{key}.token": access.token if token is None else token,
        # Iceberg would find out both itself, and warn about it in the log of each task.
        f"{key}.rest.auth.type": "oauth2",
        f"{key}.oauth2-server-uri": f"{access.uri}/v1/oauth/tokens",
        f"{key}.warehouse": access.warehouse,
        # The try sees what it has written itself, and another session in this JVM has another catalog.
        f"{key}.cache-enabled": "false",
        **default,
        # `insert overwrite` replaces the partitions that it writes, not the table.
        "spark.sql.sources.partitionOverwriteMode": "dynamic",
    }
    return {name: value for name, value in conf.items() if name not in own}


def conf_on_server(access: "Access") -> dict[str, str]:
    """The keys of a session on a Connect server, which has its own jars: it keeps its default catalog, and may lack Iceberg."""
    return {key: value for key, value in session_conf(access, {}).items() if key.startswith("spark.sql.catalog.")}


def _given(names: str) -> list[str]:
    """The jars of the setting: paths, URLs, and folders that contain jars."""
    found: list[str] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        path = Path(name)
        if "://" in name or path.is_file():
            found.append(name)
        elif inside := [str(jar) for jar in sorted(path.glob("*.jar"))]:
            found += inside
        else:
            raise JarsMissingError(
                f"{name} of tables.spark_jars is neither a jar nor a folder with jars: put one there, or correct it."
            )
    return found


def _folder(settings: Settings, packages: str) -> Path:
    """The folder of these packages for this machine; it exists as soon as it is complete."""
    return settings.home / "jars" / hashlib.sha256(packages.encode()).hexdigest()[:16]


def _fetch(packages: str, folder: Path) -> None:
    """Let spark-submit resolve the packages, with the repositories of spark-defaults.conf, and move their jars to `folder`."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / "lock"), tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as name:
            if folder.is_dir():  # another process was first
                return
            output = _resolve(packages, Path(name))
            fetched = Path(name, "jars")
            if not any(fetched.glob("*.jar")):
                raise JarsMissingError(
                    f"The jars of {packages} could not be fetched ({_why(output)}): put them into a folder and name it "
                    "in tables.spark_jars, or let this machine reach a Maven repository."
                )
            fetched.replace(folder)
    except OSError as error:
        raise JarsMissingError(
            f"The jars of {packages} cannot be stored in {folder.parent} ({error.strerror}): give this user write permission "
            "there, or name a folder with them in tables.spark_jars."
        ) from error


def _resolve(packages: str, folder: Path) -> str:
    """The output of a spark-submit that fetches the packages into `folder`/jars."""
    command = [
        f"{java.spark_home()}/bin/spark-submit", "--master", "local", "--packages", packages, "--conf", f"spark.jars.ivy={folder}",
        "--class", HARMLESS, "spark-internal",
    ]  # fmt: skip
    try:
        ended = subprocess.run(
            command, env=java.environment(java.check_java()), capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {FETCH_TIMEOUT_S:g} s"
    return f"{ended.stderr}\n{ended.stdout}"


def _why(output: str) -> str:
    """Why spark-submit fetched nothing."""
    if re.search(r"UnknownHostException|ConnectException|NoRouteToHost|timed out", output):
        return "no Maven repository answered"
    found = re.search(r"(?:unresolved dependency|download failed): ([^\]\n]*)", output)
    return f"not found: {found[1]}" if found else causes.of_text(output) or "spark-submit named no cause"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
