"""What the processes of the author's code may answer. They are not trusted: whatever does not fit here becomes an import error of
their own file, or the failure of their own callback.
"""

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from scheduler.dagfiles import problem

#: What a child may write into its result pipe.
MAX_RESULT_BYTES = 64 << 20
#: The longest line with which the template process passes a result on: it writes the same JSON, and the file.
MAX_LINE_BYTES = MAX_RESULT_BYTES + (1 << 20)
#: What a child may answer for one callback, and the request for one: the conf of its run is in it.
MAX_CALL_ANSWER_BYTES = 256 << 10
MAX_CALL_REQUEST_BYTES = 64 << 20
MAX_CALLBACKS = 100
MAX_MODULES = 10_000
MAX_PATH_CHARACTERS = 4096


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("it has a NUL character")
    return text


Path = Annotated[str, Field(max_length=MAX_PATH_CHARACTERS), AfterValidator(_storable)]
#: With room for what stands in place of what was left out.
Message = Annotated[str, Field(max_length=problem.MAX_MESSAGE_CHARACTERS + 100), AfterValidator(_storable)]
Traceback = Annotated[str, Field(max_length=problem.MAX_TRACEBACK_CHARACTERS + 100), AfterValidator(_storable)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class DagRow(_Strict):
    """A DAG to store: its canonical JSON and the hash of that."""

    dag_id: Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_storable)]
    content_hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    data: str
    is_paused_upon_creation: bool | None


class FileProblem(_Strict):
    """Why a file could not be read."""

    message: Message
    line: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    traceback: Traceback = ""


class Reading(_Strict):
    """What a child says of its file: its DAGs, or a problem.

    `modules` of the DAGs folder were imported, by path relative to it. `settled`: the DAGs follow from the code alone.
    """

    dags: tuple[DagRow, ...] = ()
    problem: FileProblem | None = None
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
    """What reading one file gave, as the template process says it."""

    file: Path
    duration_s: Annotated[float, Field(ge=0)]


class Opened(_Strict):
    """Whether a DAG file was loaded to have its callbacks called."""

    problem: Message | None


class Called(_Strict):
    """How a callback ended: how many its event has, and what this one raised."""

    count: Annotated[int, Field(ge=0, le=MAX_CALLBACKS)]
    error: Message | None


class Ended(_Strict):
    """The child is gone: its exit code, negative for a signal."""

    ended: Annotated[int, Field(ge=-64, le=255)]
    #: What it did wrong, if it was ended for that.
    fault: Message | None = None


#: What may come from the process that runs callbacks; which of them is expected, its caller knows.
CALLBACK_ANSWER: TypeAdapter[Opened | Called | Ended] = TypeAdapter(Opened | Called | Ended)


def fault(error: ValidationError) -> str:
    """What is wrong with an answer, without what it said."""
    first: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:40] for part in first["loc"][:6])
    return f"{where}: {first['msg'][:200]}" if where else first["msg"][:200]
