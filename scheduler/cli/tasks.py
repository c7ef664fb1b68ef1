"""`paceline tasks`: lists and changes task instances, and prints the logs of their tries."""

import json
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from paceline import states
from paceline.authoring import frames
from paceline.exceptions import NotFoundError
from scheduler.cli import lazy, options, output, run_actions

CHUNK_BYTES = 64 * 1024
#: Maximum characters of an XCom in the table. --json prints all.
SHOWN_CHARACTERS = 200
FOLLOW_POLL_S = 0.3
#: The columns of a task instance that are empty for a task without a run.
NO_RUN = ("run_id", "state", "worker", "queued_by", "scheduled_at", "queued_at", "started_at", "ended_at", "progress")


@click.group(cls=lazy.NounGroup)
def tasks() -> None:
    """List, clear and mark task instances, and read their logs."""


tasks.add_command(run_actions.clear_tasks)
tasks.add_command(run_actions.mark_task)


@tasks.command("list")
@options.dag
@click.argument("run_id", metavar="[RUN]", required=False, shell_complete=options.complete_runs)
@options.as_table
def list_(dag_id: str, run_id: str | None) -> None:
    """List the task instances of a run. Without RUN, list the tasks of the newest DAG version."""
    from scheduler.cli import progress
    from scheduler.store.read import reads
    from scheduler.store.read import why as queries

    if run_id is None:
        rows = _defined(options.transact(reads.dag, dag_id))
    else:
        rows = options.transact(reads.task_instances, dag_id, run_id)
        options.transact(queries.explain_open, options.settings(), rows)
    if output.json_wanted():
        output.print_json(rows)
    elif run_id is None:
        columns = ["task_id", "operator", "upstream", "trigger_rule", "max_tries", "queue", "pool", "priority_weight"]
        output.table(rows, columns, empty="This DAG has no tasks.")
    else:
        rows = [row | {"took": progress.duration(row["started_at"], row["ended_at"])} for row in rows]
        label = ["map_label"] if any(row["map_label"] is not None for row in rows) else []
        columns = ["task_id", "map_index", *label, "state", "try_number", "queue", "pool", "worker", "started_at", "took", "reason"]
        output.table(rows, columns, empty="This run has no tasks.")


@tasks.command()
@options.task
@click.option("--try", "try_number", type=click.IntRange(min=1), metavar="N", help="Number of the try. Default: the newest.")
@options.map_index
@click.option("--callbacks", is_flag=True, help="Print the output of the callbacks of the task instead.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the try ends.")
@options.as_json
def logs(dag_id: str, run_id: str, task_id: str, *, try_number: int | None, map_index: int, callbacks: bool, follow: bool) -> None:
    """Print the log of a try."""
    json_wanted = output.json_wanted()
    if callbacks:
        if follow or try_number:
            raise click.UsageError("--callbacks prints one whole log: leave out --follow and --try.")
        _print_callbacks(dag_id, run_id, task_id, map_index)
        return
    if follow and json_wanted:
        raise click.UsageError("--json prints one whole log; leave out --follow.")
    log = _TryLog(try_number, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    if follow:
        log.follow()
    elif not log.exists():
        log.missing()
    elif json_wanted:
        text = log.path.read_bytes().decode("utf-8", "replace")
        output.print_json({"path": log.path, "try_number": log.number, "log": text, "incomplete": log.incomplete()})
    else:
        log.print_from(0)
    if not json_wanted and (why_not := log.incomplete()) is not None:
        click.echo(f"Lines are missing in this log: {why_not}.", err=True)


@tasks.command()
@options.task
@click.option(
    "--map-index", type=click.IntRange(min=-1), help="Map index of a mapped task instance. Default: the first unfinished one."
)
@options.history
@options.as_json
def why(dag_id: str, run_id: str, task_id: str, *, map_index: int | None, history: bool) -> None:
    """Explain why a task instance is in its current state and has not moved on."""
    from scheduler.store.read import history as store
    from scheduler.store.read import reads
    from scheduler.store.read import why as queries

    answer = options.transact(queries.why, options.settings(), dag_id, run_id, task_id, map_index=map_index)
    if output.json_wanted() or history:
        ti = options.transact(reads.task_instance, dag_id, run_id, task_id, map_index=answer["map_index"])
        answer["history"] = options.transact(store.of_instance, options.settings(), ti["id"])
    output.explanation(answer)


@tasks.command()
@options.task
@options.map_index
@options.as_table
def xcoms(dag_id: str, run_id: str, task_id: str, *, map_index: int) -> None:
    """Print the XComs of a task instance. For a DataFrame, print its location, rows and columns."""
    from scheduler.store.read import reads

    options.transact(reads.task_instance, dag_id, run_id, task_id, map_index=map_index)
    rows = options.transact(reads.xcoms, dag_id, run_id, task_id, map_index=map_index)
    if not output.json_wanted():
        rows = [row | {"value": _shown(row["value"])} for row in rows]
    output.listing(rows, ["key", "value", "created_at"], empty="It pushed nothing.")


def _print_callbacks(dag_id: str, run_id: str, task_id: str, map_index: int) -> None:
    from scheduler.settings import log_paths
    from scheduler.store.read import reads

    options.transact(reads.task_instance, dag_id, run_id, task_id, map_index=map_index)
    settings = options.settings()
    named = log_paths.callbacks_path(settings.logs_folder, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    path = log_paths.local(settings, Path(named))
    if not path.is_file():
        raise NotFoundError(f"There is no output of callbacks at {path}: none has run yet, or it ran on another machine.")
    text = path.read_bytes().decode("utf-8", "replace")
    output.result({"path": path, "log": text}, text.removesuffix("\n"))


class _TryLog:
    """The log file of one try of a task instance."""

    def __init__(self, number: int | None, **key: Any) -> None:
        self._key = key
        self._instance = self._read()
        #: An undecided task instance has no try. Its first will be 1.
        self.number = number or max(1, self._instance["try_number"])

    @property
    def path(self) -> Path:
        from scheduler.settings import log_paths

        settings = options.settings()
        return log_paths.local(settings, Path(log_paths.try_path(settings.logs_folder, **self._key, try_number=self.number)))

    def exists(self) -> bool:
        return self.path.is_file()

    def incomplete(self) -> str | None:
        """Return why lines are missing in the log; None if it is complete or the try still runs."""
        from scheduler.settings import log_paths
        from scheduler.store.read import reads

        return log_paths.why_incomplete(options.transact(reads.reason_of_try, self._instance["id"], self.number))

    def missing(self) -> NoReturn:
        """Raise NotFoundError with the reason why there is no log."""
        run_id, task_id = self._key["run_id"], self._key["task_id"]
        tries, state = self._instance["try_number"], self._instance["state"] or "none"
        which = f"Try {self.number} of task {task_id!r} of run {run_id!r}"
        if tries == 0 and state in states.FINISHED:
            raise NotFoundError(f"Task {task_id!r} of run {run_id!r} is {state}: nothing ran, so there is no log.")
        if self.number > tries or (self.number == tries and state in states.NOT_BEGUN):
            raise NotFoundError(
                f"{which} has not begun; the task is {state} after {output.count(tries, 'try')}. `-f` waits for a log."
            )
        raise NotFoundError(f"{which} (now {state}) has no log at {self.path}: look on the machine of its worker.")

    def follow(self) -> None:
        """Print the log as it grows, until the try has ended."""
        offset = 0
        while True:
            # Checked before reading, so that the file then has all lines of an ended try.
            ended = self._ended()
            if self.exists():
                offset = self.print_from(offset)
            if ended:
                if offset == 0 and not self.exists():
                    self.missing()
                return
            time.sleep(FOLLOW_POLL_S)

    def print_from(self, offset: int) -> int:
        """Print the file from a byte offset on, in chunks. Returns the offset of its end."""
        stream = sys.stdout.buffer
        with self.path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(CHUNK_BYTES):
                stream.write(chunk)
                offset += len(chunk)
        stream.flush()
        return offset

    def _ended(self) -> bool:
        self._instance = now = self._read()
        if now["try_number"] > self.number:
            return True
        if now["try_number"] < self.number and now["state"] is not None:
            return now["state"] in states.FINISHED
        return (now["state"] or "none") not in states.CAN_LOG

    def _read(self) -> dict[str, Any]:
        from scheduler.store.read import reads

        return options.transact(reads.task_instance, **self._key)


def _defined(dag: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of a DAG as rows of task instances without a run."""
    return [
        {"dag_id": dag["dag_id"], "task_id": task["task_id"], "map_index": -1, "try_number": 0, "max_tries": task["retries"]}
        | dict.fromkeys(NO_RUN)
        | {name: task[name] for name in ("queue", "pool", "pool_slots", "priority_weight")}
        | {name: task[name] for name in ("operator", "upstream", "trigger_rule")}
        for task in dag["tasks"]
    ]


def _shown(value: Any) -> str:
    value = frames.revived(value)
    if isinstance(value, frames.DataFrameReference):
        return _described(value)
    text = json.dumps(value, ensure_ascii=False, default=_described)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def _described(frame: frames.DataFrameReference) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in frame.columns.items())
    return f"DataFrame of {frame.rows:,} rows ({columns}), {frame.bytes:,} bytes at {frame.url}"
