"""The IDs and the status of an application. An unknown status is a separate value, and is never final."""

from dataclasses import dataclass
from enum import StrEnum

from paceline.exceptions import PacelineError


class Phase(StrEnum):
    """The phase of an application, the same for every cluster manager."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"
    #: The cluster answers, but has no such application. Final only if it repeats this for a while.
    NOT_FOUND = "not found"

    @property
    def is_end(self) -> bool:
        return self in ENDS


ENDS = (Phase.FINISHED, Phase.FAILED, Phase.KILLED)


@dataclass(frozen=True, slots=True)
class Ids:
    """The IDs of an application in its cluster; None for an ID that is not known yet."""

    driver_id: str | None = None
    application_id: str | None = None
    ui_url: str | None = None

    @property
    def is_named(self) -> bool:
        """Whether a request to the cluster can name it."""
        return self.driver_id is not None or self.application_id is not None

    def known(self, more: "Ids") -> "Ids":
        """These IDs, completed by those of `more`."""
        return Ids(self.driver_id or more.driver_id, self.application_id or more.application_id, self.ui_url or more.ui_url)

    def __str__(self) -> str:
        return (
            " and ".join(f"{name} {id_}" for name, id_ in (("driver", self.driver_id), ("application", self.application_id)) if id_)
            or "an application without an ID"
        )


@dataclass(frozen=True, slots=True)
class Status:
    """One answer of a cluster; `detail` is its text beside the phase."""

    phase: Phase
    detail: str = ""
    ids: Ids = Ids()


class ClusterUnreachableError(Exception):
    """A cluster did not answer, or not in a known form. `refused`: the request was certainly not processed."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StatusUnknownError(PacelineError):
    """The status of an application is unknown. It may still run, and the next try requests the status again."""


class UnknownClusterError(PacelineError):
    """The stored kind of a cluster is one that only a later release has."""


class ApplicationError(PacelineError):
    """A submitted application failed."""


class ApplicationLivesError(PacelineError):
    """An application did not end within spark.kill_timeout after the request to end it."""
