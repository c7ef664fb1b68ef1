"""The catalog of tables for an application: its address, and the token of the try, which no process list, log or page shows."""

import dataclasses
import json
from typing import TYPE_CHECKING, Protocol

from paceline import secrets_masker
from scheduler.settings import Settings
from workers.spark import iceberg, installed
from workers.spark.applications.driver import binary_of
from workers.spark.applications.tracking import say
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Cluster
from workers.spark.iceberg import TOKEN_VARIABLE, JarsMissingError

if TYPE_CHECKING:
    from scheduler.catalog.access import Access

#: The environment variables with which a Connect client sets the conf of its session, see pyspark/sql/connect/session.py.
CONNECT_CONF = "PYSPARK_REMOTE_INIT_CONF_0"
CONNECT_CONFS = "PYSPARK_REMOTE_INIT_CONF_LEN"


class TryCatalog(Protocol):
    """What a try may ask of the catalog."""

    def give(self, *, elsewhere: bool) -> "Access | None":
        """What an application of this try needs; with `elsewhere`, one on another machine, if that can reach the catalog."""

    def take_over(self) -> None:
        """Let the application of an earlier try, which this one resumes, write as this try."""


def added(submission: Submission, cluster: Cluster, settings: Settings, catalog: TryCatalog) -> Submission:
    """The submission with the catalog, if it can use it; else as it was, and the log has the reason."""
    on_server = not cluster.needs_java
    elsewhere = on_server or submission.target.is_cluster_mode
    access = catalog.give(elsewhere=elsewhere)
    if access is None:
        return _without(submission, settings, "Drivers on other machines need the address of a web process in tables.url.")
    secrets_masker.mask_secret(access.token)
    if on_server:
        return _on_server(submission, access)
    try:
        jars = _jars(submission, cluster, settings)
    except JarsMissingError as missing:
        return _without(submission, settings, str(missing))
    conf = iceberg.session_conf(access, submission.conf, f"env:{TOKEN_VARIABLE}")
    options = {name: iceberg.joined(submission.options.get(name, ""), value) for name, value in jars.items()}
    return dataclasses.replace(
        submission,
        conf={**submission.conf, **conf, **iceberg.extensions(submission.conf)},
        options={**submission.options, **options},
        environment={**submission.environment, TOKEN_VARIABLE: access.token},
    )


def _jars(submission: Submission, cluster: Cluster, settings: Settings) -> dict[str, str]:
    """The jars as options of spark-submit: files of this machine if the driver gets those, else packages. JarsMissingError."""
    spark = installed.of_binary(binary_of(submission))
    if settings.tables.spark_jars or cluster.uploads_files or not submission.target.is_cluster_mode:
        return {"jars": ",".join(iceberg.jars(settings, spark))}
    return {"packages": iceberg.packages_for(settings, spark)}


def _on_server(submission: Submission, access: "Access") -> Submission:
    """For a Connect server, which has its own jars: the conf of the session. It keeps its default catalog, and may lack Iceberg."""
    conf = {key: value for key, value in iceberg.session_conf(access, {}).items() if key.startswith("spark.sql.catalog.")}
    return dataclasses.replace(
        submission, environment={CONNECT_CONFS: "1", CONNECT_CONF: json.dumps(conf), **submission.environment}
    )


def _without(submission: Submission, settings: Settings, why: str) -> Submission:
    say(f"this application has no catalog {settings.tables.catalog!r} of tables. {why}", level="WARNING")
    return submission
