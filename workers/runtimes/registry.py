"""The runtime of each kind of task."""

from workers.runtimes.protocol import Runtime
from workers.runtimes.python import Python
from workers.runtimes.spark import PySpark, SparkSubmit

_PYTHON = Python()
#: By `Operator.runtime`.
RUNTIMES: dict[str, Runtime] = {
    "python": _PYTHON,
    "bash": _PYTHON,
    "empty": _PYTHON,
    "pyspark": PySpark(),
    "spark_submit": SparkSubmit(),
}
