"""The default queue of a Spark task: that of heavy tasks if it is `heavy` or needs a large machine, else that of Spark."""

import re
from collections.abc import Mapping
from typing import Any

from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.mapping import MappedOperator
from scheduler.serialized.traits import traits
from scheduler.settings import Core

#: Spark's units of memory in MiB; a number without a unit is MiB for spark.executor.memory.
_UNITS = {"b": 1 / 2**20, "k": 1 / 2**10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}
#: A local master with its number of threads.
_LOCAL = re.compile(r"local\[(\d+)[],]")
_MEMORY = re.compile(r"(\d+)\s*([bkmgtp])?b?", re.IGNORECASE)


def default_queue(task: AbstractOperator, core: Core) -> str | None:
    """The queue of a Spark task without a queue of its own; None for other tasks."""
    if not traits(task.worker_runtime).on_spark:
        return None
    return core.heavy_spark_queue if is_heavy(arguments(task), core) else core.default_spark_queue


def cluster(task: AbstractOperator) -> str | None:
    """The connection ID of the cluster of a submitted application. A pool with the same name limits that cluster."""
    if not traits(task.worker_runtime).submits:
        return None
    given = arguments(task).get("conn_id")
    return given if isinstance(given, str) else getattr(task.operator_class, "conn_id_default", None)


def is_heavy(given: Mapping[str, Any], core: Core) -> bool:
    """Whether these arguments of a Spark operator have `heavy`, or a driver or executors at or above a limit of the settings."""
    if given.get("heavy"):
        return True
    conf = given.get("conf")
    conf = conf if isinstance(conf, Mapping) else {}
    memory, cores = (
        max(measure(given.get(f"{part}_{size}") or conf.get(f"spark.{part}.{size}")) for part in ("driver", "executor"))
        for size, measure in (("memory", megabytes), ("cores", _whole))
    )
    threads = _LOCAL.match(str(given.get("master") or conf.get("spark.master")))
    cores = max(cores, int(threads[1]) if threads else 0)
    return (0 < core.heavy_spark_memory_mb <= memory) or (0 < core.heavy_spark_cores <= cores)


def megabytes(text: object) -> float:
    """A Spark size (512m, 8g, 1024) in MiB; 0 for any other text, such as a template."""
    size = _MEMORY.fullmatch(str(text).strip()) if text is not None else None
    return 0.0 if size is None else int(size[1]) * _UNITS[(size[2] or "m").lower()]


def arguments(task: AbstractOperator) -> dict[str, Any]:
    """The arguments of a Spark task; for a mapped task, the arguments that all instances share."""
    if isinstance(task, MappedOperator):
        return task.given
    names = ("heavy", "driver_memory", "executor_memory", "executor_cores", "master", "conn_id")
    values = {name: getattr(task, name, None) for name in names}
    return values | {"conf": getattr(task, "spark_conf", None) or getattr(task, "conf", None)}


def _whole(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0
