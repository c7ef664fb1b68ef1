"""The IDs of traces and of lineage. They follow from the names of a run and a try, so no process has to pass them to another.

A worker, the scheduler that sends the spans, and Spark therefore agree without a column, and without a field in a message.
"""

import hashlib
import uuid
from typing import Protocol

#: The version and the flags of a traceparent: sampled.
TRACEPARENT = "00-{trace:032x}-{span:016x}-01"
#: Names of runs and tries are hashed below this one.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://paceline/run")


class TryNames(Protocol):
    """The names of a try: the `ti` of a context, or a similar object."""

    run_key: int
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int


def trace_id(namespace: str, dag_run_id: int, dag_id: str, run_id: str) -> int:
    """The 128 bits of the trace of a run. `namespace` distinguishes installations with the same collector."""
    return _number(16, namespace, dag_run_id, dag_id, run_id)


def try_span_id(namespace: str, dag_run_id: int, task_id: str, map_index: int, try_number: int) -> int:
    """The 64 bits of the span of a try."""
    return _number(8, namespace, dag_run_id, task_id, map_index, try_number)


def span_id(*parts: object) -> int:
    """The 64 bits of another span."""
    return _number(8, *parts)


def traceparent(namespace: str, ti: TryNames) -> str:
    """The W3C trace context of a try, for the programs that it starts."""
    trace = trace_id(namespace, ti.run_key, ti.dag_id, ti.run_id)
    return TRACEPARENT.format(trace=trace, span=try_span_id(namespace, ti.run_key, ti.task_id, ti.map_index, ti.try_number))


def run_uuid(namespace: str, dag_run_id: int, dag_id: str, run_id: str) -> str:
    """The ID of a run in OpenLineage."""
    return _uuid(namespace, dag_run_id, dag_id, run_id)


def try_uuid(namespace: str, dag_run_id: int, task_id: str, map_index: int, try_number: int) -> str:
    """The ID of a try in OpenLineage."""
    return _uuid(namespace, dag_run_id, task_id, map_index, try_number)


def _uuid(*parts: object) -> str:
    return str(uuid.uuid5(NAMESPACE, "\0".join(map(str, parts))))


def _number(size: int, *parts: object) -> int:
    text = "\0".join(map(str, parts)).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest(), "big") or 1
