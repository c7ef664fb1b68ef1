"""An application to submit, from its operator and target, and its command line."""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paceline import secrets_masker
from paceline.exceptions import FailTask
from paceline.operators.spark import SparkOperator, SparkSqlOperator
from workers.spark import conf as confs

SQL_CLASS = "org.apache.spark.sql.hive.thriftserver.SparkSQLCLIDriver"
#: The arguments of the operator that are options of spark-submit, in its order: `py_files` is --py-files.
OPTIONS = (
    "files", "py_files", "archives", "driver_class_path", "jars", "packages", "exclude_packages", "repositories", "num_executors",
    "total_executor_cores", "executor_cores", "executor_memory", "driver_memory", "keytab", "principal", "proxy_user",
)  # fmt: skip
#: The same options as conf keys, for a cluster without a command line.
AS_CONF = {
    "files": "spark.files", "py_files": "spark.submit.pyFiles", "archives": "spark.archives", "jars": "spark.jars",
    "driver_class_path": "spark.driver.extraClassPath", "packages": "spark.jars.packages",
    "exclude_packages": "spark.jars.excludes", "repositories": "spark.jars.repositories",
    "total_executor_cores": "spark.cores.max", "executor_cores": "spark.executor.cores",
    "executor_memory": "spark.executor.memory", "driver_memory": "spark.driver.memory",
    "num_executors": "spark.executor.instances",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster and deploy mode. `kind` is a name in registry.CLUSTERS; `reach` has the data for requests, without secrets, since
    it is stored.
    """

    kind: str
    master: str
    deploy_mode: str = "client"
    binary: str | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)
    yarn_queue: str | None = None
    reach: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_cluster_mode(self) -> bool:
        return self.deploy_mode == "cluster"

    @property
    def address(self) -> str:
        """The master without the parameters of a Connect URL, which may contain a token."""
        return self.master.partition("/;")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One application to submit."""

    target: Target
    tag: str
    name: str
    application: str
    arguments: Sequence[str] = ()
    #: The statements, if the application is spark-sql.
    sql: str | None = None
    java_class: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    yarn_queue: str | None = None
    verbose: bool = False

    @property
    def is_python(self) -> bool:
        return self.application.endswith((".py", ".zip", ".egg"))

    @property
    def app_name(self) -> str:
        """The name in the cluster, with the tag."""
        return f"{self.name} {self.tag}"

    def with_conf(self, more: Mapping[str, str]) -> "Submission":
        """The same submission with more conf."""
        return dataclasses.replace(self, conf={**self.conf, **more})


def submission(operator: SparkOperator, target: Target, *, tag: str, name: str) -> Submission:
    """The submission for a rendered operator; FailTask if an argument is wrong."""
    file = getattr(operator, "properties_file", None)
    conf = confs.checked({**target.conf, **(confs.from_properties(Path(file)) if file else {}), **_mapping("conf", operator.conf)})
    options = {key: str(value) for key in OPTIONS if (value := getattr(operator, key, None)) not in (None, "")}
    environment = {key: str(value) for key, value in _mapping("env_vars", getattr(operator, "env_vars", None)).items()}
    for secret in (
        *secrets_masker.secrets_in(conf),
        *secrets_masker.secrets_in(environment),
        *_secret_arguments(_arguments(operator)),
    ):
        secrets_masker.mask_secret(secret)
    sql = _sql(operator) if isinstance(operator, SparkSqlOperator) else None
    return Submission(
        target=target,
        tag=tag,
        name=operator.name or name,
        application=str(operator.application) if sql is None else "",  # type: ignore[attr-defined]
        arguments=_arguments(operator),
        sql=sql,
        java_class=getattr(operator, "java_class", None),
        options=options,
        conf=conf,
        environment=environment,
        yarn_queue=operator.yarn_queue or target.yarn_queue,
        verbose=operator.verbose,
    )


def argv(submission: Submission, *, binary: str, secrets: Sequence[str] = (), sql_file: str | None = None) -> list[str]:
    """spark-submit and its arguments; `secrets` are the options for the file with `secret_properties`."""
    target, hidden = submission.target, secret_keys(submission.conf)
    command = [binary, "--master", target.master, "--deploy-mode", target.deploy_mode, "--name", submission.app_name]
    command += [part for key, value in submission.options.items() for part in (f"--{key.replace('_', '-')}", value)]
    command += [part for key, value in submission.conf.items() if key not in hidden for part in ("--conf", f"{key}={value}")]
    command += secrets
    if submission.verbose:
        command.append("--verbose")
    if sql_file is not None:
        return [*command, "--class", SQL_CLASS, "spark-internal", "-f", sql_file]
    if submission.java_class:
        command += ["--class", submission.java_class]
    return [*command, submission.application, *submission.arguments]


def secret_keys(conf: Mapping[str, str]) -> set[str]:
    """The keys whose values must not show in process lists: those with secret names, or with a secret of this task."""
    return {key for key, value in conf.items() if secrets_masker.looks_secret(key) or secrets_masker.redact(value) != value}


def secret_properties(conf: Mapping[str, str]) -> dict[str, str]:
    """The part of a conf that must not show in process lists."""
    return {key: conf[key] for key in sorted(secret_keys(conf))}


def shown(command: Sequence[str]) -> str:
    """A command line for the log, quoted for a shell, without the secrets of this task."""
    return secrets_masker.redact(shlex.join(command))


def _sql(operator: SparkSqlOperator) -> str:
    sql = str(operator.sql).strip()
    if not sql:
        raise FailTask("The sql of this task is empty: write a statement, or name a .sql file beside the DAG file.")
    return sql if sql.endswith(";") else f"{sql};"


def _arguments(operator: SparkOperator) -> list[str]:
    given = getattr(operator, "application_args", None) or []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise FailTask(f"application_args must be a list, not {given!r}.")
    return [str(argument) for argument in given]


def _secret_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """The values of options with secret names: those of --db-password=value and of --token value."""
    for argument, after in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if name.startswith("-") and secrets_masker.looks_secret(name):
            value = value if equals else after
            if equals or not value.startswith("-"):
                yield value


def _mapping(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FailTask(f"{name} must be a dict, not {value!r}.")
    return dict(value)
