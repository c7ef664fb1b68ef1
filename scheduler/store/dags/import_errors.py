"""Import errors: why a DAG file cannot be used, as the process that parses it reports it and as the database stores it."""

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:  # the processes that parse files import this module, and use no database
    from sqlalchemy import Connection

MAX_MESSAGE_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 20_000


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("it has a NUL character")
    return text


Storable = Annotated[str, AfterValidator(_storable)]
#: Longer than a cut text, because the note on the omitted part is added.
Message = Annotated[Storable, Field(max_length=MAX_MESSAGE_CHARACTERS + 100)]


class Strict(BaseModel):
    """The base of the messages of processes with user code."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Problem(Strict):
    """Why a file could not be parsed. `line` is a line of that file; None if unknown."""

    message: Message
    line: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    traceback: Annotated[Storable, Field(max_length=MAX_TRACEBACK_CHARACTERS + 100)] = ""

    @classmethod
    def make(cls, message: str, line: int | None = None, trace: str = "") -> Self:
        """Create a problem that the database can store: bounded, without NUL and lone surrogates."""
        return cls(message=clean(message), line=line, traceback=clean(trace, MAX_TRACEBACK_CHARACTERS))

    @property
    def with_line(self) -> str:
        """The message with its line. One on several errors has the line of each already."""
        return self.message if self.line is None or "\nline " in self.message else f"line {self.line}: {self.message}"


def put(connection: "Connection", path: str, problem: Problem) -> None:
    """Store why a file cannot be used. An error that stays the same keeps the time at which it was first seen."""
    connection.exec_driver_sql(
        """
        insert into import_error as e (file, line, message, traceback, seen_at)
        values (%(file)s, %(line)s, %(message)s, %(traceback)s, clock_timestamp())
        on conflict (file) do update set line = excluded.line, message = excluded.message, traceback = excluded.traceback,
               seen_at = case when (e.line, e.message) is not distinct from (excluded.line, excluded.message)
                              then e.seen_at else excluded.seen_at end
        """,
        problem.model_dump() | {"file": path},
    )


def clean(text: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Return a text that the database can store."""
    text = text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n... {len(text) - limit} characters left out ...\n{text[-limit // 2 :]}"
