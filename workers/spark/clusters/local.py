"""Local masters: the application is a process, which is searched in the process table of this machine."""

import dataclasses
import re
from datetime import datetime

import psutil

from workers.spark import conf
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Cluster, Ids, Phase, Status
from workers.supervision.descendants import kill_tree


class Local(Cluster):
    """The processes of this machine with the tag of an application in their command line."""

    masters = re.compile(r"local(\[.*\]|-cluster\[.*\])?")
    example = "local[N]"
    has_cluster_mode = False
    confirms_end = False

    def tagged(self, submission: Submission) -> Submission:
        """Let the driver listen on this machine only, unless the task sets another address."""
        return dataclasses.replace(submission, conf={**conf.LOOPBACK, **submission.conf})

    def find(self, tag: str, since: datetime) -> Ids | None:
        return Ids(driver_id=tag) if running(tag) else None

    def status(self, ids: Ids, tag: str) -> Status:
        return Status(Phase.RUNNING, "its process runs") if running(tag) else Status(Phase.KILLED, "its process has ended")

    def kill(self, ids: Ids) -> None:
        for process in running(ids.driver_id) if ids.driver_id else ():
            kill_tree(process.pid)

    def gone(self, ids: Ids, tag: str) -> bool:
        return not running(tag)


def running(tag: str) -> list[psutil.Process]:
    """The processes with a tag, except zombies."""
    processes = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(tag in word.split() or word.endswith(tag) for word in words):
            processes.append(process)
    return processes
