"""The interface of a cluster, which each module of a cluster manager implements."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime

from workers.spark.clusters.command import Submission
from workers.spark.clusters.status import Ids, Phase, Status

#: Runs spark-submit for a submission and returns its output.
Run = Callable[[Submission], str]
#: Returns the password of a connection by its ID. It is read when the first request is signed, and not stored.
Password = Callable[[str], str | None]


class Cluster(ABC):
    """The requests for following an application. Each method sends one request; ClusterUnreachableError without an answer."""

    def tagged(self, submission: Submission) -> Submission:
        """The submission with its tag in the place where this cluster can search for it; by default in its name."""
        return submission

    def submit(self, submission: Submission, run: Run) -> Ids:
        """Submit an application whose driver runs in the cluster. Not called for a master without the deploy mode cluster.

        FailTask, and ClusterUnreachableError with `refused`, mean that the cluster certainly did not accept it. After any other
        error it may have.
        """
        raise NotImplementedError

    @abstractmethod
    def find(self, tag: str, since: datetime) -> Ids | None:
        """The IDs of the application with a tag, submitted after `since`; None if the cluster has none at the moment."""

    @abstractmethod
    def status(self, ids: Ids, tag: str) -> Status:
        """The status. It is final only if the cluster reports the end of both the driver and the application."""

    @abstractmethod
    def kill(self, ids: Ids) -> None:
        """Request its end. Only a later status shows whether it has ended."""

    def gone(self, ids: Ids, tag: str) -> bool | None:
        """Whether it has ended; None if the cluster has no record of it."""
        phase = self.status(ids, tag).phase
        return None if phase is Phase.NOT_FOUND else phase.is_end

    def driver_host(self, ids: Ids) -> str | None:
        """The host of the driver's UI, if known; sends no request."""
        return None

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        """The output of the driver since the last call; `seen` stores the position between calls."""
        return ""
