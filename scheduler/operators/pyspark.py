"""Tasks whose function works with a SparkSession; nothing here imports Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from scheduler.operators.python import PythonOperator


class PySparkOperator(PythonOperator):
    """Calls a function with `spark` (and `sc`) filled in by the worker; `heavy` asks for a worker with more memory."""

    runtime: ClassVar[str] = "pyspark"
    injected: ClassVar[frozenset[str]] = PythonOperator.injected | {"spark", "sc"}
    reserved: ClassVar[frozenset[str]] = frozenset({"spark", "sc"})

    def __init__(self, *, conf: Mapping[str, Any] | None = None, heavy: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checks = self.checks()
        self.spark_conf = checks.mapping("conf", conf or {})
        self.heavy = checks.boolean("heavy", heavy)

    def call(self, context: Mapping[str, Any]) -> Any:
        if "spark" in context and "sc" not in context:
            context = {**context, "sc": context["spark"].sparkContext}
        return super().call(context)
