"""Tasks whose function uses a SparkSession. This module does not import Spark."""

from collections.abc import Mapping
from typing import Any, ClassVar

from paceline.authoring import frames
from paceline.operators.python import PythonOperator


class PySparkOperator(PythonOperator):
    """Calls a function whose parameters `spark` and `sc` receive a SparkSession and its SparkContext.

    The session is new, in a warm JVM that is shared by tasks with the same static `conf`; `warm=False` starts a new JVM.
    Keys of `conf` that a session accepts (spark.sql.*) need no separate JVM. `heavy` sends the task to the queue of
    heavy tasks.

    A DataFrame that the function returns is written to storage, and other tasks receive a reference to it. A reference in
    the arguments of the function is opened as a DataFrame.
    """

    worker_runtime: ClassVar[str] = "pyspark"
    injected: frozenset[str] = PythonOperator.injected | {"spark", "sc"}
    reserved: ClassVar[frozenset[str]] = frozenset({"spark", "sc"})

    def __init__(self, *, conf: Mapping[str, Any] | None = None, heavy: bool = False, warm: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks = self.argument_checks()
        self.spark_conf = checks.mapping("conf", conf or {})
        self.heavy = checks.boolean("heavy", heavy)
        self.warm = checks.boolean("warm", warm)

    def call(self, context: Mapping[str, Any]) -> Any:
        if "spark" in context and "sc" not in context:
            context = {**context, "sc": context["spark"].sparkContext}
        if "spark" in context:
            self.op_args = frames.opened(self.op_args, context["spark"])
            self.op_kwargs = frames.opened(self.op_kwargs, context["spark"])
        return super().call(context)
