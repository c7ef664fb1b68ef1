"""Tasks that submit an application or SQL to a Spark cluster. This module does not import Spark."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from scheduler.authoring.operator import Operator
from scheduler.authoring.params import DagParam
from scheduler.authoring.task_arguments import TaskArguments
from scheduler.authoring.xcom_arg import XComArg
from scheduler.exceptions import PacelineError

DEPLOY_MODES = ("client", "cluster")
#: The context variable with the function of the worker that submits an application and follows it to its end.
SUBMITTER = "spark_submitter"


class SparkArguments(TaskArguments, total=False):
    """The arguments that the operators for Spark clusters share."""

    conf: Mapping[str, Any] | XComArg | None
    conn_id: str | None
    master: str | None
    total_executor_cores: int | None
    executor_cores: int | None
    executor_memory: str | None
    keytab: str | None
    principal: str | None
    name: str | None
    num_executors: int | None
    verbose: bool
    yarn_queue: str | None
    heavy: bool
    reattach: bool


class SparkOperator(Operator):
    """Base class of the two operators: the cluster, the conf and the size of an application, and whether a retry resumes it.

    `conn_id` is the connection of the cluster, unless `master` has its URL. `heavy` sends the task to the queue of heavy
    tasks. With `reattach`, a retry after a lost worker resumes the application instead of submitting it again.

    `conf` has further settings of Spark. `name`, `total_executor_cores`, `executor_cores`, `executor_memory` (such as "2g"),
    `num_executors`, `keytab`, `principal`, `yarn_queue` and `verbose` are the options of spark-submit with these names.
    """

    runtime: ClassVar[str] = "spark_submit"
    conn_id_default: ClassVar[str] = "spark_default"

    def __init__(
        self,
        *,
        conf: Mapping[str, Any] | XComArg | None = None,
        conn_id: str | None = None,
        master: str | None = None,
        total_executor_cores: int | None = None,
        executor_cores: int | None = None,
        executor_memory: str | None = None,
        keytab: str | None = None,
        principal: str | None = None,
        name: str | None = None,
        num_executors: int | None = None,
        verbose: bool = False,
        yarn_queue: str | None = None,
        heavy: bool = False,
        reattach: bool = True,
        **kwargs: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
        self.conf: Any = conf if _later(conf) else checks.mapping("conf", conf or {})
        self.conn_id = self.conn_id_default if conn_id is None else checks.text("conn_id", conn_id)
        self.master = master
        self.total_executor_cores = checks.limit("total_executor_cores", total_executor_cores)
        self.executor_cores = checks.limit("executor_cores", executor_cores)
        self.executor_memory = executor_memory
        self.num_executors = checks.limit("num_executors", num_executors)
        self.keytab = keytab
        self.principal = principal
        self.name = name
        self.verbose = checks.boolean("verbose", verbose)
        self.yarn_queue = yarn_queue
        self.heavy = checks.boolean("heavy", heavy)
        self.reattach = checks.boolean("reattach", reattach)
        self.check_texts("master", "executor_memory", "keytab", "principal", "name", "yarn_queue")

    def check_texts(self, *names: str) -> None:
        """Check optional arguments that must be a non-empty str."""
        for name in names:
            if getattr(self, name) is not None:
                self.text(name, getattr(self, name))

    def execute(self, context: Mapping[str, Any]) -> object:
        submitter = context.get(SUBMITTER)
        if submitter is None:
            raise PacelineError(f"{type(self).__name__} runs only in a worker, because only workers submit to Spark.")
        return submitter(self)


class SparkSubmitOperator(SparkOperator):
    """Submits `application` (a .py file, or a .jar with `java_class`) to the cluster of `conn_id`, or to `master`.

    The arguments have Airflow's names. `deploy_mode` is "client" or "cluster"; an application in cluster mode outlives its
    worker, and with `reattach` a retry resumes it.

    `application_args` are the arguments of the application. `files`, `py_files`, `archives`, `jars`, `packages`,
    `exclude_packages` and `repositories` are comma-separated, and go with `driver_class_path`, `driver_memory` (such as "2g") and
    `proxy_user` to the options of spark-submit with these names. `env_vars` are added to its environment. `spark_binary` is the
    command in place of spark-submit.
    """

    template_fields: Sequence[str] = (
        "application", "conf", "files", "py_files", "archives", "jars", "driver_class_path", "packages", "exclude_packages",
        "repositories", "keytab", "principal", "proxy_user", "name", "application_args", "env_vars", "yarn_queue", "deploy_mode",
        "master", "java_class",
    )  # fmt: skip

    def __init__(
        self,
        *,
        application: str | XComArg,
        application_args: Sequence[Any] | XComArg | None = None,
        files: str | None = None,
        py_files: str | None = None,
        archives: str | None = None,
        driver_class_path: str | None = None,
        jars: str | None = None,
        java_class: str | None = None,
        packages: str | None = None,
        exclude_packages: str | None = None,
        repositories: str | None = None,
        driver_memory: str | None = None,
        proxy_user: str | None = None,
        env_vars: Mapping[str, Any] | XComArg | None = None,
        deploy_mode: str | None = None,
        spark_binary: str | None = None,
        **kwargs: Unpack[SparkArguments],
    ) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
        self.application = self.text("application", application)
        self.application_args: Any = [] if application_args is None else application_args
        if not _later(application_args) and (
            isinstance(application_args, str | bytes) or not isinstance(self.application_args, list | tuple)
        ):
            raise checks.refuse(f"application_args must be a list, not {application_args!r}.")
        self.files, self.py_files, self.archives, self.jars = files, py_files, archives, jars
        self.driver_class_path, self.java_class = driver_class_path, java_class
        self.packages, self.exclude_packages, self.repositories = packages, exclude_packages, repositories
        self.driver_memory, self.proxy_user = driver_memory, proxy_user
        self.env_vars: Any = env_vars if _later(env_vars) else checks.mapping("env_vars", env_vars or {})
        self.deploy_mode = deploy_mode
        if deploy_mode is not None and "{" not in deploy_mode:
            checks.choice("deploy_mode", deploy_mode, DEPLOY_MODES)
        self.spark_binary = spark_binary
        self.check_texts("files", "py_files", "archives", "jars", "driver_class_path", "java_class", "packages", "exclude_packages",
                         "repositories", "driver_memory", "proxy_user", "spark_binary")  # fmt: skip


class SparkSqlOperator(SparkOperator):
    """Runs `sql` with spark-sql on a Spark cluster: statements, or the path of a .sql or .hql file beside the DAG file."""

    template_fields: Sequence[str] = ("sql", "conf", "master", "name", "yarn_queue", "keytab", "principal")
    template_ext: Sequence[str] = (".sql", ".hql")
    conn_id_default: ClassVar[str] = "spark_sql_default"

    def __init__(self, *, sql: str | XComArg, **kwargs: Unpack[SparkArguments]) -> None:
        super().__init__(**kwargs)
        self.sql = self.text("sql", sql)


def _later(value: object) -> bool:
    """Whether the value is known only at run time."""
    return isinstance(value, XComArg | DagParam)
