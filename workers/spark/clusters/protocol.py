"""One module a cluster manager: how it is asked, and how its answers are read."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from workers.spark.clusters.command import Submission
from workers.spark.clusters.status import Ids, Status

#: Runs a Submission's command line and gives what it printed, for clusters that are submitted to by spark-submit.
Run = Callable[[Submission], str]


#: The password of a connection, by its id; asked for when the first request is signed, and stored nowhere.
Password = Callable[[str], str | None]


class Cluster(Protocol):
    """What following an application needs. Each method asks once; UnreachableError if no answer came."""

    def tagged(self, made: Submission) -> Submission:
        """The submission with its tag where this cluster finds it again."""
        ...

    def submit(self, made: Submission, run: Run) -> Ids:
        """Hand over an application whose driver runs in the cluster. FailTask, and UnreachableError with `refused`, only if the
        cluster surely did not take it; after any other error it may have."""
        ...

    def find(self, tag: str, since: datetime) -> Ids | None:
        """What there is under a tag, submitted after `since`; None if the cluster says that there is nothing, for the moment."""
        ...

    def status(self, ids: Ids, tag: str) -> Status:
        """How it goes: an end only if the cluster says so of the driver and of the application."""
        ...

    def kill(self, ids: Ids) -> None:
        """Ask the cluster to end it; what it answers counts for nothing, its status does."""
        ...

    def gone(self, ids: Ids, tag: str) -> bool | None:
        """Whether nothing of it is at work any more; None if the cluster does not know it."""
        ...

    def driver_host(self, ids: Ids) -> str | None:
        """Where the driver's own UI listens, if that is known; asks nobody."""
        ...

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        """What the driver has printed since the last time; `seen` is kept between the calls."""
        ...
