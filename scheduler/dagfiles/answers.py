"""The answers of the processes that run user code. They are not trusted.

An invalid answer becomes an import error of the file, or a failure of the callback.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from scheduler.store.dags.import_errors import Message, Problem, Storable, Strict

#: Maximum size of a child's result.
MAX_RESULT_BYTES = 64 << 20
#: Maximum length of the line in which the fork server passes a result on: the same JSON with the name of the file.
MAX_LINE_BYTES = MAX_RESULT_BYTES + (1 << 20)
#: Maximum size of the answer for a callback, and of the request for it, which contains the conf of its run.
MAX_CALL_ANSWER_BYTES = 256 << 10
MAX_CALL_REQUEST_BYTES = 64 << 20
MAX_CALLBACKS = 100
MAX_MODULES = 10_000
MAX_PATH_CHARACTERS = 4096


Path = Annotated[Storable, Field(max_length=MAX_PATH_CHARACTERS)]


class DagRow(Strict):
    """A DAG to store: its canonical JSON and its hash."""

    dag_id: Annotated[Storable, Field(min_length=1, max_length=250)]
    content_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    data: str
    is_paused_upon_creation: bool | None


class TaskDetails(Strict):
    """What a task executes, see task_details."""

    arguments: dict[Storable, Storable]
    code: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Reading(Strict):
    """The result of parsing a file: its DAGs, or a problem.

    `modules` are the imported modules of the DAGs folder, as relative paths. `settled` means that the DAGs depend only on code.
    `tasks` are by DAG and task ID, if they were asked for.
    """

    dags: tuple[DagRow, ...] = ()
    problem: Problem | None = None
    tasks: dict[str, dict[str, TaskDetails]] = {}
    modules: Annotated[tuple[Path, ...], Field(max_length=MAX_MODULES)] = ()
    settled: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.problem is not None and self.dags:
            raise ValueError("it has both DAGs and a problem")
        if len({row.dag_id for row in self.dags}) < len(self.dags):
            raise ValueError("it has a DAG id twice")
        return self


class Answer(Reading):
    """The result of parsing a file, as the fork server passes it on."""

    file: Path
    duration_s: Annotated[float, Field(ge=0)]

    def details_of(self, dag_id: str) -> str:
        """The details of the tasks of a DAG, as JSON."""
        return json.dumps({task_id: one.model_dump() for task_id, one in self.tasks.get(dag_id, {}).items()})


class Opened(Strict):
    """The result of loading a DAG file for its callbacks."""

    problem: Message | None


class Called(Strict):
    """The result of a callback: its error, and the number of callbacks of the event."""

    count: Annotated[int, Field(ge=0, le=MAX_CALLBACKS)]
    error: Message | None


class Wanted(Strict):
    """What a callback reads while it runs: a variable, a connection, or the XComs of a task. The next request has the value."""

    wanted: Literal["variable", "connection", "xcoms"]
    #: The key of the variable, or the ID of the connection or of the task.
    name: Annotated[Storable, Field(max_length=MAX_PATH_CHARACTERS)]
    dag_id: Storable = ""
    run_id: Storable = ""
    key: Storable = ""
    map_index: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    prior: bool = False


class Ended(Strict):
    """The child has ended. `ended` is its exit code, negative for a signal."""

    ended: Annotated[int, Field(ge=-64, le=255)]
    #: The violation of the protocol for which the child was killed, if any.
    fault: Message | None = None


#: All answers of the callback process. The caller checks that it gets the expected one.
CALLBACK_ANSWER: TypeAdapter[Opened | Called | Ended | Wanted] = TypeAdapter(Opened | Called | Ended | Wanted)


def fault(error: ValidationError) -> str:
    """Describe why an answer is invalid, without its content but with the start of a key that it should not have."""
    first: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"][:6])
    # The key comes from the answer too: with a NUL character it could not be passed on.
    where = "".join(character if character.isprintable() else "?" for character in where)
    return f"{where}: {first['msg'][:200]}" if where else first["msg"][:200]
