"""What is known of an application: its ids, and how it goes. An unknown status is a value of its own and never an end."""

from dataclasses import dataclass
from enum import StrEnum

from scheduler.exceptions import PacelineError


class Phase(StrEnum):
    """How an application goes, in one set of words for every cluster manager."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"
    #: The cluster answers, and does not know it, or not any more: an end only if it says so for a while.
    NOT_FOUND = "not found"

    @property
    def is_end(self) -> bool:
        return self in {Phase.FINISHED, Phase.FAILED, Phase.KILLED}


@dataclass(frozen=True, slots=True)
class Ids:
    """Under which names a cluster knows an application; what is not known yet is None."""

    driver_id: str | None = None
    application_id: str | None = None
    ui_url: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether the cluster can be asked about it."""
        return self.driver_id is not None or self.application_id is not None

    def known(self, more: "Ids") -> "Ids":
        """These, filled up with what `more` knows."""
        return Ids(self.driver_id or more.driver_id, self.application_id or more.application_id, self.ui_url or more.ui_url)

    def __str__(self) -> str:
        return (
            " and ".join(f"{name} {one}" for name, one in (("driver", self.driver_id), ("application", self.application_id)) if one)
            or "an application without an id"
        )


@dataclass(frozen=True, slots=True)
class Status:
    """One answer of a cluster; `detail` is what it said beside the state."""

    phase: Phase
    detail: str = ""
    ids: Ids = Ids()


class UnreachableError(Exception):
    """A cluster did not answer, or not in words that are understood. `refused`: what was asked surely did not reach it."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StatusUnknownError(PacelineError):
    """It is not known how an application goes, or whether there is one; it may still run, and the next try asks on."""


class ApplicationError(PacelineError):
    """A submitted application failed."""


class ApplicationLivesError(PacelineError):
    """An application was told to end and did not within spark.kill_timeout."""
