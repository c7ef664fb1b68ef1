"""Stores the DataFrames that PySpark tasks return: each is written to the folder of its dispatch, and its XCom is a reference.

The report of the try commits it: the XCom with the path is stored in the transaction that ends the try as a success, and only
for the current dispatch. So readers see a complete result or none, on any file system, without renaming, which is not atomic
in object stores, and without marker files.
"""

import json
import re
import sys
from collections.abc import Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.authoring import pruning
from paceline.authoring.abstract_operator import AbstractOperator
from paceline.authoring.frames import DataFrameReference
from paceline.exceptions import FailTask, PacelineError
from scheduler.settings import Settings, data_folder
from scheduler.settings.data_folder import Place, component
from scheduler.store.worker.claims import Claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Turns off Hadoop's protection of readers against unfinished jobs, since the report of the try protects them. Each of its files
#: and folders costs milliseconds, because Hadoop starts a `chmod` for it.
WRITTEN_ONCE = {"mapreduce.fileoutputcommitter.algorithm.version": "2", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Writes times that every reader of Parquet can read: other readers convert Spark's default, INT96, to nanoseconds, which end in
#: 2262. Dates before 1582 are in the calendar of SQL and Python.
WRITTEN_AS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
#: DataFrames of one task that are written in parallel.
WRITERS = 3
#: Files whose rows are counted in parallel: a request to an object store takes tens of milliseconds.
READERS = 16
#: Errors of file systems that cannot store data, and the reasons to show.
_REFUSALS = {
    r"No space left on device|Disk quota exceeded|DSQuotaExceeded|not enough space|File too large": "no space left",
    r"AccessControlException|Permission denied|AccessDenied|Access Denied|Forbidden": "no permission",
    r"Read-only file system": "the file system is read-only",
    r"Mkdirs failed|ParentNotDirectoryException|Not a directory|FileAlreadyExistsException": "no folder can be created there",
    r"No FileSystem for scheme|UnsupportedFileSystemException|ClassNotFoundException: Class org\.apache\.hadoop\.fs": (
        "Spark has no library for such a URL"
    ),
}


class DataFrameNotWrittenError(PacelineError):
    """A DataFrame that a task returned could not be written."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A DataFrame with its places in the return value: the keys and numbers that lead to each."""

    frame: "DataFrame"
    paths: list[tuple[str | int, ...]] = field(default_factory=list)

    def url(self, folder: str) -> str:
        """Where it is written, in the folder of the try."""
        return "/".join([folder, *(component(str(step)) for step in self.paths[0])])

    def columns(self, operator: AbstractOperator) -> list[str]:
        """The columns to write: those that tasks take, or all."""
        taken = [pruning.taken(operator, path) for path in self.paths]
        names = [name for each in taken for name in each or ()]
        every = list(self.frame.columns)
        return every if None in taken else [name for name in every if name.lower() in names] or every


def stored(value: object, operator: AbstractOperator, ti: Any, settings: Settings) -> object:
    """Write each DataFrame in `value`, and return `value` with references in their place.

    DataFrameNotWrittenError if the file system cannot store one; FailTask for one that cannot be written at all.
    """
    place = _place(ti, settings, ti.run_key, ti.external_executor_id)
    frames: dict[int, Returned] = {}
    if operator.do_xcom_push:
        _collect(value, (), frames)
    if not frames:
        return value
    data_folder.delete_earlier(place)
    return _replaced(value, _all_written(frames, operator, place.url))


def discard(claim: Claim, settings: Settings) -> None:
    """Delete the DataFrames of a try that did not succeed, or whose report was rejected."""
    data_folder.delete(_place(claim, settings, claim.dag_run_id, claim.dispatch_id))


def _place(source: Any, settings: Settings, run_key: int, dispatch_id: str) -> Place:
    """The folder of a claim, or of the task instance in a context."""
    same = {name: getattr(source, name) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")}
    return Place(data_url=settings.data_url, run_key=run_key, dispatch_id=dispatch_id, **same)


def _collect(value: Any, path: tuple[str | int, ...], frames: dict[int, Returned]) -> None:
    """Collect each DataFrame by its `id()`, so that one that is returned twice is written once."""
    if isinstance(value, _frame_classes()):
        frames.setdefault(id(value), Returned(value)).paths.append(path)
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(item, (*path, str(key)), frames)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _collect(item, (*path, number), frames)


def _frame_classes() -> tuple[type, ...]:
    """The classes of DataFrames. In Spark 3.5, those of a Connect server have one of their own."""
    from pyspark.sql import DataFrame

    on_server = sys.modules.get("pyspark.sql.connect.dataframe")
    return (DataFrame,) if on_server is None else (DataFrame, on_server.DataFrame)


def _replaced(value: Any, written: dict[int, DataFrameReference]) -> Any:
    if id(value) in written:
        return written[id(value)]
    if isinstance(value, dict):
        return {key: _replaced(item, written) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, written) for item in value]
    return value


def _all_written(frames: dict[int, Returned], operator: AbstractOperator, folder: str) -> dict[int, DataFrameReference]:
    """Write the DataFrames in parallel, because planning one, or writing a small one, uses only one core."""
    from pyspark import __version__, inheritable_thread_target

    for one in frames.values():
        for key, value in WRITTEN_AS.items():
            # Set in the session, since a writer has no such options. The session ends after this with its task.
            one.frame.sparkSession.conf.set(key, value)
    if len(frames) == 1:
        # Another thread would need a connection of its own to the JVM.
        return {key: _written(one.frame, one.url(folder), one.columns(operator), operator.task_id) for key, one in frames.items()}
    first = next(iter(frames.values())).frame
    pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="write")
    try:
        # Before Spark 4.0, it takes only the function itself.
        inherit = inheritable_thread_target if __version__.startswith("3.") else inheritable_thread_target(first.sparkSession)
        write = inherit(_written)
        writes = {
            key: pool.submit(write, one.frame, one.url(folder), one.columns(operator), operator.task_id)
            for key, one in frames.items()
        }
        ended, _ = wait(writes.values(), return_when=FIRST_EXCEPTION)
        # If one failed, wait for the others: they must not write files after their folder was deleted.
        pool.shutdown(cancel_futures=True)
        for future in ended:
            future.result()
        return {key: future.result() for key, future in writes.items()}
    finally:
        # After an interruption, the writes are cancelled with the jobs of the session.
        pool.shutdown(wait=False, cancel_futures=True)


def _written(frame: "DataFrame", url: str, columns: Collection[str], task_id: str) -> DataFrameReference:
    if frame.isStreaming:
        raise FailTask("A streaming DataFrame cannot be returned: write it with writeStream, and return its path.")
    left_out = tuple(name for name in frame.columns if name not in columns)
    if left_out:
        frame = frame.select(*(f"`{name.replace('`', '``')}`" for name in columns))
    try:
        frame.write.options(**WRITTEN_ONCE).parquet(url)
        sizes = data_folder.sizes(url)
    except Exception as error:
        reason = refusal(str(error))
        if reason is None:
            raise
        raise DataFrameNotWrittenError(
            f"The returned DataFrame could not be written to {url}: {reason}. Fix that, or set paths.data_url to another place."
        ) from error
    if not sizes:
        raise DataFrameNotWrittenError(
            f"Spark wrote the returned DataFrame to {url}, and this worker finds no files there: set paths.data_url to a place "
            "that the Spark server and the workers share."
        )
    return DataFrameReference(
        url=url, schema=json.loads(frame.schema.json()), rows=_rows(url, sizes), bytes=sum(sizes.values()),
        left_out=left_out, task_id=task_id if left_out else "",
    )  # fmt: skip


def refusal(text: str) -> str | None:
    """Why a file system could not store data, from the text of a Spark error; None for other errors."""
    return next((reason for pattern, reason in _REFUSALS.items() if re.search(pattern, text)), None)


def _rows(url: str, names: Collection[str]) -> int:
    """The number of rows according to the footers of the files. Spark would count them one by one while it writes them."""
    import fsspec
    from pyarrow import parquet

    files, _ = fsspec.url_to_fs(url)

    def count(name: str) -> int:
        return int(parquet.read_metadata(name, filesystem=files).num_rows)

    with ThreadPoolExecutor(READERS, thread_name_prefix="count") as pool:
        return sum(pool.map(count, [name for name in names if name.endswith(".parquet")]))
