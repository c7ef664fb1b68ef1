"""Tasks with Spark: a function with a SparkSession, an application of spark-submit, a streaming query. It does not import Spark."""

import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Unpack

from paceline.authoring import frames, running
from paceline.authoring.arguments import Arguments
from paceline.authoring.fields import Check, Field, anything, boolean, choice, mapping, optional, text
from paceline.authoring.operator import Operator
from paceline.authoring.params import DagParam
from paceline.authoring.task_arguments import TaskArguments
from paceline.authoring.templates import Literal
from paceline.authoring.xcom_arg import XComArg
from paceline.exceptions import PacelineError
from paceline.operators.python import PythonOperator


class PySparkOperator(PythonOperator):
    """Calls a function whose parameters `spark` and `sc` receive a SparkSession and its SparkContext.

    The session is new, in a warm JVM that is shared by tasks with the same static `conf`; `warm=False` starts a new JVM.
    Keys of `conf` that a session accepts (spark.sql.*) need no separate JVM. `heavy` sends the task to the queue of
    heavy tasks.

    `conn_id` is a connection to a Spark Connect server (type spark_connect), on which the session is then created, without a JVM
    here and with `sc` as None; or one with a master for the JVM (type spark).

    A DataFrame that the function returns is written to storage, and other tasks receive a reference to it. A reference in
    the arguments of the function is opened as a DataFrame.
    """

    worker_runtime: ClassVar[str] = "pyspark"
    injected: frozenset[str] = PythonOperator.injected | {"spark", "sc"}
    reserved: ClassVar[frozenset[str]] = frozenset({"spark", "sc"})

    def __init__(
        self,
        *,
        conf: Mapping[str, Any] | None = None,
        conn_id: str | None = None,
        heavy: bool = False,
        warm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.spark_conf = checks.mapping("conf", conf or {})
        self.conn_id = None if conn_id is None else checks.text("conn_id", conn_id)
        self.heavy = checks.boolean("heavy", heavy)
        self.warm = checks.boolean("warm", warm)

    def call(self, context: Mapping[str, Any]) -> Any:
        if "spark" in context and "sc" not in context:
            context = {**context, "sc": context["spark"].sparkContext}
        if "spark" in context:
            self.op_args = frames.opened(self.op_args, context["spark"])
            self.op_kwargs = frames.opened(self.op_kwargs, context["spark"])
        return super().call(context)


DEPLOY_MODES = ("client", "cluster")
#: The context variable with the function of the worker that submits an application and follows it to its end.
SUBMITTER = "spark_submitter"


def _late(value: Any) -> bool:
    """Whether a value is known only at run time: a result, a param, or text with a template."""
    return isinstance(value, XComArg | DagParam | Literal) or (isinstance(value, str) and "{{" in value)


def _late_or(check: Check) -> Check:
    """Accept None, a value that is known only at run time, and what `check` accepts."""
    return lambda checks, name, value: value if value is None or _late(value) else check(checks, name, value)


def _number(checks: Arguments, name: str, value: Any) -> Any:
    """An int of at least 1, or its digits."""
    digits = value.strip() if isinstance(value, str) else ""
    return checks.integer(name, int(digits) if digits.isdecimal() else value, least=1)


def _mapping(checks: Arguments, name: str, value: Any) -> Any:
    return value if _late(value) else mapping(checks, name, value)


def _list(checks: Arguments, name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, list | tuple) and not _late(value):
        raise checks.refuse(f"{name} must be a list, not {value!r}.")
    return [] if value is None else value


_TEXT = Field(None, _late_or(text))
_OFF = Field(False, boolean)
_NUMBER = Field(None, _late_or(_number))
#: The arguments that can be templates or results: what spark-submit gets as text.
_COMMON = (
    "conf", "master", "total_executor_cores", "executor_cores", "executor_memory", "keytab", "principal", "name",
    "num_executors", "yarn_queue",
)  # fmt: skip


class SparkArguments(TaskArguments, total=False):
    """The arguments that the operators for Spark clusters share."""

    conf: Annotated[Mapping[str, Any] | XComArg | None, Field(None, _mapping)]
    conn_id: Annotated[str | None, Field(None, optional(text))]
    master: Annotated[str | None, _TEXT]
    total_executor_cores: Annotated[int | str | XComArg | None, _NUMBER]
    executor_cores: Annotated[int | str | XComArg | None, _NUMBER]
    executor_memory: Annotated[str | None, _TEXT]
    keytab: Annotated[str | None, _TEXT]
    principal: Annotated[str | None, _TEXT]
    name: Annotated[str | None, _TEXT]
    num_executors: Annotated[int | str | XComArg | None, _NUMBER]
    verbose: Annotated[bool, _OFF]
    yarn_queue: Annotated[str | None, _TEXT]
    heavy: Annotated[bool, _OFF]
    reattach: Annotated[bool, Field(True, boolean)]


class SparkSubmitArguments(SparkArguments, total=False):
    """The arguments of SparkSubmitOperator except the application."""

    application_args: Annotated[Sequence[Any] | XComArg | None, Field(None, _list)]
    files: Annotated[str | None, _TEXT]
    py_files: Annotated[str | None, _TEXT]
    archives: Annotated[str | None, _TEXT]
    driver_class_path: Annotated[str | None, _TEXT]
    jars: Annotated[str | None, _TEXT]
    java_class: Annotated[str | None, _TEXT]
    packages: Annotated[str | None, _TEXT]
    exclude_packages: Annotated[str | None, _TEXT]
    repositories: Annotated[str | None, _TEXT]
    driver_memory: Annotated[str | None, _TEXT]
    proxy_user: Annotated[str | None, _TEXT]
    env_vars: Annotated[Mapping[str, Any] | XComArg | None, Field(None, _mapping)]
    deploy_mode: Annotated[str | None, Field(None, _late_or(choice(DEPLOY_MODES)))]
    spark_binary: Annotated[str | None, _TEXT]
    properties_file: Annotated[str | None, _TEXT]
    status_poll_interval: Annotated[float, Field(1, anything)]
    use_krb5ccache: Annotated[bool, _OFF]
    openlineage_inject_parent_job_info: Annotated[bool, _OFF]
    openlineage_inject_transport_info: Annotated[bool, _OFF]


class SparkOperator(Operator):
    """Base class of the two operators: the cluster, the conf and the size of an application, and whether a retry resumes it.

    `conn_id` is the connection of the cluster, unless `master` has its URL. `heavy` sends the task to the queue of heavy
    tasks. With `reattach`, a retry after a lost worker resumes the application instead of submitting it again.

    `conf` has further settings of Spark. `name`, `total_executor_cores`, `executor_cores`, `executor_memory` (such as "2g"),
    `num_executors`, `keytab`, `principal`, `yarn_queue` and `verbose` are the options of spark-submit with these names.
    """

    worker_runtime: ClassVar[str] = "spark_submit"
    conn_id_default: ClassVar[str] = "spark_default"

    declared: ClassVar[type] = SparkArguments

    conf: Any
    conn_id: str
    master: str | None
    name: str | None
    verbose: bool
    yarn_queue: str | None
    reattach: bool

    def __init__(self, **kwargs: Unpack[SparkArguments]) -> None:
        given: dict[str, Any] = {**kwargs}
        super().__init__(**given)
        if self.conn_id is None:
            self.conn_id = self.conn_id_default

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
    command in place of spark-submit. `properties_file` holds more settings of Spark. `status_poll_interval`,
    `use_krb5ccache`, `openlineage_inject_parent_job_info` and `openlineage_inject_transport_info` are accepted as in Airflow and
    have no effect.
    """

    template_fields: Sequence[str] = (
        *_COMMON, "application", "application_args", "files", "py_files", "archives", "jars", "driver_class_path", "packages",
        "exclude_packages", "repositories", "proxy_user", "env_vars", "deploy_mode", "java_class", "driver_memory",
        "properties_file",
    )  # fmt: skip

    declared: ClassVar[type] = SparkSubmitArguments

    def __init__(self, *, application: str | XComArg, **kwargs: Unpack[SparkSubmitArguments]) -> None:
        given: dict[str, Any] = {**kwargs}
        super().__init__(**given)
        self.application = self.text_or_result("application", application)


class SparkSqlOperator(SparkOperator):
    """Runs `sql` with spark-sql on a Spark cluster: statements, or the path of a .sql or .hql file next to the DAG file."""

    template_fields: Sequence[str] = ("sql", *_COMMON)
    template_ext: Sequence[str] = (".sql", ".hql")
    conn_id_default: ClassVar[str] = "spark_sql_default"

    def __init__(self, *, sql: str | XComArg, **kwargs: Unpack[SparkArguments]) -> None:
        super().__init__(**kwargs)
        self.sql = self.text_or_result("sql", sql)


#: Seconds that a query may take to stop. Then its JVM is killed with the task, and the next try uses its checkpoint.
STOP_TIMEOUT_S = 6.0
#: The longest time, in seconds, until a stop is noticed.
SIGNALS_S = 0.5


def run_until_stopped(query: Any) -> None:
    """Wait until a streaming query ends; its error is raised.

    If the task is stopped (cleared, marked, timed out, or its worker stops), the query is stopped first. The next try
    continues from its checkpoint. Meanwhile, the task reads tables as they are, and not as of its start. An application of
    SparkSubmitOperator may call it, too.
    """
    ended = threading.Event()

    def wait() -> None:
        # In a separate thread, so that a stop of the task does not interrupt a call to the JVM.
        try:
            query.awaitTermination()
        except Exception:  # noqa: S110 - the call at the end of this function raises it in the thread of the task
            pass
        finally:
            ended.set()

    try:
        if running.is_running():
            running.get_current_context()["ti"].follow_tables()
        else:
            from paceline.tables import streams

            streams.follow()
        threading.Thread(target=wait, name="streaming-query", daemon=True).start()
        # A signal just before a wait does not interrupt it; it is handled between two waits.
        while not ended.wait(SIGNALS_S):
            pass
    except BaseException:
        stopping = threading.Thread(target=query.stop, name="streaming-stop", daemon=True)
        stopping.start()
        stopping.join(STOP_TIMEOUT_S)
        raise
    query.awaitTermination()
