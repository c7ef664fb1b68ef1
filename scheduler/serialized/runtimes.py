"""The runtimes of tasks by name, and how they differ. `workers/task/runtimes.py` runs them."""

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


#: By `Operator.runtime`.
TRAITS = {
    "python": Traits(),
    "bash": Traits(),
    "empty": Traits(),
    "pyspark": Traits(in_place=False, on_spark=True, returns_frames=True),
    "spark_submit": Traits(in_place=False, on_spark=True, submits=True),
}
#: Of a runtime that only a later release has.
UNKNOWN = Traits(in_place=False)


def traits(runtime: str) -> Traits:
    """The traits of a runtime."""
    return TRAITS.get(runtime, UNKNOWN)
