"""The measurements of the DAG file manager; see scheduler/process/measures.py."""

from pathlib import PurePath

from scheduler.dagfiles.answers import Answer
from scheduler.process import measures


def of_iteration(listed: int | None) -> None:
    """Count an iteration; `listed` is the number of files if the folder was listed."""
    measures.count("dag_processor_heartbeat")
    if listed is not None:
        measures.count("dag_processing.file_path_queue_update_count")


def of_answer(answer: Answer, timeout_s: float) -> None:
    """Count a parse and its duration."""
    measures.observe("dag_processing.last_duration", answer.duration_s, dag_file=PurePath(answer.file).stem)
    if answer.problem is not None:
        measures.count("dag_file_refresh_error")
        if answer.duration_s >= timeout_s:
            measures.count("dag_processing.processor_timeouts")
