"""The traits of the runtimes: how those of `workers/task/execute.py` and `workers/spark/runtimes.py` differ."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """How a runtime differs from Python code in a pool process."""

    #: Whether a task may run in the process of the task before: it needs no session and no program of its own.
    in_place: bool = True
    #: Whether a task runs Spark jobs. Its default queue is then one of Spark.
    on_spark: bool = False
    #: Whether a task can return DataFrames.
    returns_frames: bool = False
    #: Whether a task submits an application to a cluster.
    submits: bool = False
    #: Whether a task has code. One without code succeeds at once, without a log.
    has_code: bool = True
    #: Whether processes that a task started stay after it, such as a warm JVM, which runs nothing of a task that has ended.
    keeps_processes: bool = False


#: By `Operator.worker_runtime`.
TRAITS = {
    "python": Traits(),
    "bash": Traits(),
    "empty": Traits(has_code=False),
    "pyspark": Traits(in_place=False, on_spark=True, returns_frames=True, keeps_processes=True),
    "spark_submit": Traits(in_place=False, on_spark=True, submits=True),
}
#: Of a runtime that only a later release has.
UNKNOWN = Traits(in_place=False)


def traits(runtime: str) -> Traits:
    """The traits of a runtime."""
    return TRAITS.get(runtime, UNKNOWN)
