"""Tasks whose function works with a SparkSession; nothing here imports Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from scheduler.authoring import frames
from scheduler.operators.python import PythonOperator


class PySparkOperator(PythonOperator):
    """Calls a function with `spark` (and `sc`) filled in by the worker; `heavy` asks for a worker with more memory.

    The session is a new one in a JVM that is kept for tasks of the same `conf`; with `warm=False` the JVM is new too. Keys of
    `conf` that a session can take (spark.sql.*) need no JVM of their own.

    A DataFrame it returns is written, and what is passed on is a reference to it; a reference among its arguments is a DataFrame.
    """

    runtime: ClassVar[str] = "pyspark"
    injected: ClassVar[frozenset[str]] = PythonOperator.injected | {"spark", "sc"}
    reserved: ClassVar[frozenset[str]] = frozenset({"spark", "sc"})

    def __init__(self, *, conf: Mapping[str, Any] | None = None, heavy: bool = False, warm: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
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
