"""The command line and environment of an application, from its operator and target: pure, and nothing secret is in an argument."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.exceptions import FailTask
from scheduler.masking import secrets_masker
from scheduler.operators.spark_submit import SparkOperator, SparkSqlOperator
from workers.spark import conf as confs
from workers.spark.clusters.target import Target

#: Every application carries it in its name; between the marks stand the task instance and the try that submitted it.
TAG = re.compile(r"paceline-[0-9a-f]{8}-\d+-\d+")
SQL_CLASS = "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"
#: spark-submit's options, in its own order, by the names of the operator.
OPTIONS = (
    ("files", "--files"), ("py_files", "--py-files"), ("archives", "--archives"), ("driver_class_path", "--driver-class-path"),
    ("jars", "--jars"), ("packages", "--packages"), ("exclude_packages", "--exclude-packages"), ("repositories", "--repositories"),
    ("num_executors", "--num-executors"), ("total_executor_cores", "--total-executor-cores"),
    ("executor_cores", "--executor-cores"), ("executor_memory", "--executor-memory"), ("driver_memory", "--driver-memory"),
    ("keytab", "--keytab"), ("principal", "--principal"), ("proxy_user", "--proxy-user"),
)  # fmt: skip
#: The same as conf, for a cluster that takes no command line.
AS_CONF = {
    "files": "spark.files", "py_files": "spark.submit.pyFiles", "archives": "spark.archives", "jars": "spark.jars",
    "driver_class_path": "spark.driver.extraClassPath", "packages": "spark.jars.packages",
    "exclude_packages": "spark.jars.excludes", "repositories": "spark.jars.repositories",
    "total_executor_cores": "spark.cores.max", "executor_cores": "spark.executor.cores",
    "executor_memory": "spark.executor.memory", "driver_memory": "spark.driver.memory",
    "num_executors": "spark.executor.instances",
}  # fmt: skip
#: Where a driver in the cluster finds its environment.
DRIVER_ENVIRONMENT = {"yarn": "spark.yarn.appMasterEnv.", "kubernetes": "spark.kubernetes.driverEnv."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One application as it is to be submitted."""

    target: Target
    tag: str
    name: str
    application: str
    arguments: Sequence[str] = ()
    #: Statements for spark-sql, if that is the application.
    sql: str | None = None
    java_class: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False

    @property
    def is_python(self) -> bool:
        return self.application.endswith((".py", ".zip", ".egg"))

    @property
    def app_name(self) -> str:
        """As the cluster shows it, the tag included."""
        return f"{self.name} {self.tag}"

    def with_conf(self, more: Mapping[str, str]) -> "Submission":
        """The same with further conf."""
        return dataclasses.replace(self, conf={**self.conf, **more})


def submission(operator: SparkOperator, target: Target, *, tag: str, name: str) -> Submission:
    """What a rendered operator asks for. FailTask says what cannot be."""
    conf = confs.checked({**target.conf, **_mapping("conf", operator.conf)})
    if target.kind == "local":
        conf = {**confs.LOOPBACK, **conf}
    options = {key: str(value) for key, _ in OPTIONS if (value := getattr(operator, key, None)) not in (None, "")}
    yarn_queue = operator.yarn_queue or target.yarn_queue
    if yarn_queue and target.kind == "yarn":
        conf["spark.yarn.queue"] = yarn_queue
    environment = {key: str(value) for key, value in _mapping("env_vars", getattr(operator, "env_vars", None)).items()}
    made = Submission(
        target=target,
        tag=tag,
        name=operator.name or name,
        application="" if isinstance(operator, SparkSqlOperator) else str(operator.application),  # type: ignore[attr-defined]
        arguments=[] if isinstance(operator, SparkSqlOperator) else _arguments(operator),
        sql=_sql(operator) if isinstance(operator, SparkSqlOperator) else None,
        java_class=getattr(operator, "java_class", None),
        options=options,
        conf=conf,
        environment=environment,
        verbose=operator.verbose,
    )
    _check(made)
    return made


def argv(made: Submission, *, binary: str, secrets: str | None = None, sql_file: str | None = None) -> list[str]:
    """spark-submit and its arguments; `secrets` is the file that `properties` was written to, if it has any."""
    command = [binary, "--master", made.target.master, "--deploy-mode", made.target.deploy_mode, "--name", made.app_name]
    command += [part for key, flag in OPTIONS if key in made.options for part in (flag, made.options[key])]
    public = {key: value for key, value in made.conf.items() if key not in secret_keys(made.conf)}
    command += [part for key, value in public.items() for part in ("--conf", f"{key}={value}")]
    if secrets is not None:
        # A properties file takes the place of spark-defaults.conf unless both are asked for.
        command += ["--properties-file", secrets, "--load-spark-defaults"]
    if made.verbose:
        command.append("--verbose")
    if sql_file is not None:
        return [*command, "--class", SQL_CLASS, "spark-internal", "-f", sql_file]
    if made.java_class:
        command += ["--class", made.java_class]
    return [*command, made.application, *made.arguments]


def secret_keys(conf: Mapping[str, str]) -> set[str]:
    """The keys whose values no list of processes may show: by their names, or because a secret of this task is in them."""
    return {key for key, value in conf.items() if secrets_masker.looks_secret(key) or secrets_masker.redact(value) != value}


def properties(conf: Mapping[str, str]) -> str:
    """What is secret in a conf as a Java properties file; empty if nothing is."""
    return confs.as_properties({key: conf[key] for key in sorted(secret_keys(conf))})


def shown(command: Sequence[str]) -> str:
    """A command line for the log, as a shell takes it, without the secrets of this task."""
    import shlex

    return secrets_masker.redact(shlex.join(command))


def environment_as_conf(made: Submission) -> dict[str, str]:
    """env_vars for a driver that runs in the cluster, where the cluster takes them as conf."""
    prefix = DRIVER_ENVIRONMENT.get(made.target.kind)
    if prefix is None or not made.target.is_cluster_mode:
        return {}
    return {f"{prefix}{key}": value for key, value in made.environment.items()}


def _sql(operator: SparkSqlOperator) -> str:
    sql = str(operator.sql).strip()
    if not sql:
        raise FailTask("The sql of this task is empty: write a statement, or name a .sql file beside the DAG file.")
    return sql if sql.endswith(";") else f"{sql};"


def _arguments(operator: SparkOperator) -> list[str]:
    given = getattr(operator, "application_args", None) or []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise FailTask(f"application_args must be a list, not {given!r}.")
    return [str(one) for one in given]


def _mapping(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FailTask(f"{name} must be a dict, not {value!r}.")
    return dict(value)


def _check(made: Submission) -> None:
    name = made.application
    if name.endswith(".jar") and not made.java_class and made.target.kind == "standalone" and made.target.is_cluster_mode:
        raise FailTask(f"The application {name} is a jar: name its main class with java_class.")
    if not name and made.target.is_cluster_mode:
        raise FailTask("SQL runs in deploy mode client only: leave deploy_mode out of its connection, or name another one.")
    if made.target.kind == "connect":
        if not made.is_python:
            raise FailTask(f"A Connect server takes Python applications only, not {name or 'SQL'}: name another master.")
        for what, given in (("conf", made.conf), ("options", made.options)):
            if given:
                first = next(iter(given))
                raise FailTask(
                    f"A Connect server has its own configuration and takes no {what} ({first}): leave it out of the task."
                )
