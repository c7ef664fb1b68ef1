"""DataFrames that PySpark tasks return: each is written whole into the folder of its try, and a reference to it goes on.

The report of the try commits it: the XCom that names the folder is stored in the transaction that ends the try as a success, for
the current dispatch alone. So a reader sees a whole result or none on any file system: nothing is renamed, which object stores
cannot do at once, and no marker has to be looked for.
"""

import json
import re
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from scheduler.authoring.abstract_operator import AbstractOperator
from scheduler.authoring.frames import DataFrameReference
from scheduler.exceptions import FailTask, PacelineError
from scheduler.settings import Settings, data_folder
from scheduler.settings.data_folder import Place, component
from scheduler.store.worker.claims import Claim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Seconds that Spark may take, after the write, to say how many rows it wrote; else the files are asked. Of a DataFrame without
#: partitions it never says it.
COUNT_TIMEOUT_S = 1.0
#: Without what guards readers against a job that was cut off, since here the report does: each file and folder of that costs
#: milliseconds, for Hadoop starts a `chmod` for it.
WRITTEN_ONCE = {"mapreduce.fileoutputcommitter.algorithm.version": "2", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
#: Times as every reader of Parquet takes them: INT96, which Spark writes otherwise, other readers turn into nanoseconds, and those
#: end in 2262. Dates before 1582 are in the calendar of SQL and Python.
WRITTEN_AS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
#: DataFrames of one task that are written at once.
WRITERS = 3
#: What the file system says when it will not take data, and what to tell people.
_REFUSALS = {
    r"No space left on device|Disk quota exceeded|DSQuotaExceeded|not enough space|File too large": "no space left",
    r"AccessControlException|Permission denied|AccessDenied|Access Denied|Forbidden": "no permission",
    r"Read-only file system": "the file system is read-only",
    r"Mkdirs failed|ParentNotDirectoryException|Not a directory|FileAlreadyExistsException": "no folder can be made there",
    r"No FileSystem for scheme|UnsupportedFileSystemException|ClassNotFoundException: Class org\.apache\.hadoop\.fs": (
        "Spark lacks what speaks to such a URL"
    ),
}


class DataFrameNotWrittenError(PacelineError):
    """A DataFrame that a task returned could not be written."""


def stored(value: object, operator: AbstractOperator, ti: Any, settings: Settings) -> object:
    """`value` with a reference in place of each DataFrame in it, once its rows are written.

    DataFrameNotWrittenError if the file system does not take them; FailTask for what cannot be written at all.
    """
    if not operator.do_xcom_push or not _any(value):
        return value
    place = _place(ti, settings)
    data_folder.delete_earlier(place)
    found: dict[int, tuple[DataFrame, str]] = {}
    _find(value, place.url, found)
    return _replaced(value, _all_written(found))


def discard(claim: Claim, settings: Settings) -> None:
    """Delete what a try wrote that did not succeed, or whose report was refused."""
    data_folder.delete(
        Place(
            data_url=settings.data_url,
            dag_id=claim.dag_id,
            run_id=claim.run_id,
            run_key=claim.dag_run_id,
            task_id=claim.task_id,
            map_index=claim.map_index,
            try_number=claim.try_number,
            dispatch_id=claim.dispatch_id,
        )
    )


def _place(ti: Any, settings: Settings) -> Place:
    return Place(
        data_url=settings.data_url,
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        run_key=ti.run_key,
        task_id=ti.task_id,
        map_index=ti.map_index,
        try_number=ti.try_number,
        dispatch_id=ti.external_executor_id,
    )


def _any(value: object) -> bool:
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        return True
    if isinstance(value, dict):
        return any(_any(item) for item in value.values())
    return isinstance(value, list | tuple) and any(_any(item) for item in value)


def _find(value: Any, url: str, found: "dict[int, tuple[DataFrame, str]]") -> None:
    """Note in `found`, by its id, each DataFrame and where it is to lie: one that is returned twice is written once."""
    from pyspark.sql import DataFrame

    if isinstance(value, DataFrame):
        found.setdefault(id(value), (value, url))
    elif isinstance(value, dict):
        for key, item in value.items():
            _find(item, f"{url}/{component(str(key))}", found)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _find(item, f"{url}/{number}", found)


def _replaced(value: Any, written: dict[int, DataFrameReference]) -> Any:
    if id(value) in written:
        return written[id(value)]
    if isinstance(value, dict):
        return {key: _replaced(item, written) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, written) for item in value]
    return value


def _all_written(found: "dict[int, tuple[DataFrame, str]]") -> dict[int, DataFrameReference]:
    """Several at once: planning one, or writing a small one, keeps a single core busy."""
    from pyspark import inheritable_thread_target

    first, _ = next(iter(found.values()))
    for frame, _ in found.values():
        for key, value in WRITTEN_AS.items():
            # Of the session, since a writer has no options for it. The task has ended, and its session with it.
            frame.sparkSession.conf.set(key, value)
    pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="write")
    try:
        write = inheritable_thread_target(first.sparkSession)(_written)
        writes = {key: pool.submit(write, *one) for key, one in found.items()}
        ended, _ = wait(writes.values(), return_when=FIRST_EXCEPTION)
        # If one failed: the others are waited for, or files would appear after their folder was deleted.
        pool.shutdown(cancel_futures=True)
        for one in ended:
            one.result()
        return {key: one.result() for key, one in writes.items()}
    finally:
        # If this is an interruption: what is being written is called off with the session's jobs.
        pool.shutdown(wait=False, cancel_futures=True)


def _written(frame: "DataFrame", url: str) -> DataFrameReference:
    from pyspark.sql import Observation, functions

    if frame.isStreaming:
        raise FailTask("A streaming DataFrame cannot be returned: write it with writeStream, and return where it lies.")
    observation = Observation()
    try:
        frame.observe(observation, functions.count(functions.lit(1)).alias("rows")).write.options(**WRITTEN_ONCE).parquet(url)
        size = data_folder.size_bytes(url)
    except Exception as error:
        reason = refusal(str(error))
        if reason is None:
            raise
        raise DataFrameNotWrittenError(
            f"The returned DataFrame could not be written to {url}: {reason}. Mend that, or set paths.data_url to another place."
        ) from error
    rows = _observed(observation)
    return DataFrameReference(
        url=url, schema=json.loads(frame.schema.json()), rows=_counted(url) if rows is None else rows, bytes=size
    )


def refusal(text: str) -> str | None:
    """Why a file system did not take data, from the text of an error of Spark's; None if it is about something else."""
    return next((reason for pattern, reason in _REFUSALS.items() if re.search(pattern, text)), None)


def _observed(observation: Any) -> int | None:
    """The rows that were written, which Spark counted on the way; None if it does not say.

    In a thread: Spark tells it by an event, may drop events when there are too many, and `get` waits for ever.
    """
    found: list[int] = []
    asking = threading.Thread(target=lambda: found.append(int(observation.get["rows"])), daemon=True)
    asking.start()
    asking.join(COUNT_TIMEOUT_S)
    return found[0] if found else None


def _counted(url: str) -> int:
    """The rows that the files themselves say they hold; reads no row."""
    import fsspec
    from pyarrow import parquet

    files, path = fsspec.url_to_fs(url)
    return sum(parquet.read_metadata(name, filesystem=files).num_rows for name in files.glob(f"{path}/*.parquet"))
