"""How a try treats applications of earlier tries and a submission without a response, with a stand-in for the cluster."""

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.exceptions import FailTask, NotFoundError, StaleTryError
from paceline.operators import SparkSubmitOperator
from scheduler.settings import Settings
from scheduler.settings.sections import Spark
from scheduler.store.worker.external_jobs import ExternalJob
from workers.spark.applications.jobs import NoJobs
from workers.spark.applications.submitter import Submitter
from workers.spark.clusters import protocol
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import ApplicationError, ClusterUnreachableError, Ids, Phase, Status, StatusUnknownError

#: A short wait for applications that never appear, and enough time for others on the slowest machine.
SHORT_S, LONG_S = 0.05, 60.0
TAG = "paceline-0123abcd-7-2"
Submit = Callable[..., None]


class Cluster(protocol.Cluster):
    """Takes applications by their tags, and has those of `there`. `answers` come back for submissions, and applications are listed
    only after `late` looks.
    """

    uploads_files = False

    def __init__(self, *answers: Any, late: int = 0, there: str | None = None) -> None:
        self.answers, self.late = list(answers), late
        self.submitted = [there] if there else []
        self.killed: list[str] = []
        self.while_submitting: Callable[[], None] = lambda: None

    def tagged(self, made: Submission) -> Submission:
        return made

    def submit(self, made: Submission, run: Any) -> Ids:
        answer = self.answers.pop(0) if self.answers else None
        if not isinstance(answer, FailTask) and not getattr(answer, "refused", False) and answer != "nothing":
            self.submitted.append(made.tag)
        self.while_submitting()
        if isinstance(answer, Exception):
            raise answer
        return Ids() if answer == "nothing" else Ids(driver_id=made.tag)

    def find(self, tag: str, since: datetime) -> Ids | None:
        self.late -= 1
        return Ids(driver_id=tag) if tag in self.submitted and self.late < 0 else None

    def status(self, ids: Ids, tag: str) -> Status:
        return Status(Phase.KILLED if tag in self.killed else Phase.FINISHED, "said", ids)

    def gone(self, ids: Ids, tag: str) -> bool | None:
        return tag in self.killed

    def kill(self, ids: Ids) -> None:
        self.killed.append(str(ids.driver_id))

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        return ""

    def driver_host(self, ids: Ids) -> None:
        return None


class Jobs(NoJobs):
    """The rows of a task instance: `left` are open ones of earlier tries."""

    def __init__(self, *left: ExternalJob, max_tries: int = 1) -> None:
        super().__init__(datetime(2026, 11, 22, tzinfo=UTC))
        self.left = list(left)
        self.max_tries = max_tries
        self.ends: dict[str, str] = {}
        #: Whether this try is the current one, and otherwise the dispatch in its row.
        self.current = True
        self.named: str | None = None

    def tag(self) -> str:
        return TAG

    def open(self) -> list[ExternalJob]:
        return self.left

    def note(self, job: ExternalJob, status: Status) -> bool:
        if not self.current:
            return False
        if status.phase.is_end:
            self.ends[job.tag] = status.phase.value
        return True

    def follows(self, job: ExternalJob) -> bool:
        return self.current

    def may_end(self, job: ExternalJob, ids: Ids) -> bool:
        return self.current or ids.driver_id != self.named

    def reported(self, look: Any) -> AbstractContextManager[None]:
        return nullcontext()


def left(tag: str, *, max_tries: int = 1) -> ExternalJob:
    """The row of a try whose submission got no answer."""
    return ExternalJob(
        id=1, ti_id=7, try_number=1, dispatch_id="x", max_tries=max_tries, tag=tag, kind="standalone", deploy_mode="cluster",
        master="spark://m:7077", reach={}, driver_id=None, application_id=None, ui_url=None,
        submitted_at=datetime(2026, 11, 22, tzinfo=UTC),
    )  # fmt: skip


class NoConnections(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        raise NotFoundError(key)


@pytest.fixture(autouse=True)
def _java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java of an unknown version."""
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


@pytest.fixture
def submit() -> Iterator[Submit]:
    """Run a task on a cluster. Something listens at the address of its master."""
    with socket.create_server(("127.0.0.1", 0)) as master:
        address = f"spark://127.0.0.1:{master.getsockname()[1]}"

        def run(cluster: Cluster, jobs: Jobs, *, patience_s: float = LONG_S, **arguments: Any) -> None:
            spark = Spark(status_interval=0.001, status_patience=60, kill_timeout=9, not_found_patience=patience_s)
            operator = SparkSubmitOperator(
                task_id="t", application=__file__, master=address, **{"deploy_mode": "cluster", **arguments}
            )
            values = {"ti": SimpleNamespace(dag_id="d", task_id="t"), "conn": NoConnections()}
            Submitter(values, Settings(spark=spark), jobs, lambda *_: cluster)(operator)  # type: ignore[arg-type,return-value]

        yield run


LOST, FAILED = ClusterUnreachableError("the answer was cut off"), ApplicationError("spark-submit ended with exit code 1")
REFUSED, DECLINED = ClusterUnreachableError("connection refused", refused=True), FailTask("The Spark master accepted no driver")
NEVER = 1_000_000


@pytest.mark.parametrize(
    ("cluster", "earlier", "patience_s", "error", "submitted", "killed", "ends"),
    [
        # The answer was lost: the application is found by its tag and followed. While it may still appear, its row stays open.
        (Cluster(LOST), [], LONG_S, None, [TAG], [], {TAG: "finished"}),
        (Cluster(LOST, late=5), [], LONG_S, None, [TAG], [], {TAG: "finished"}),
        (Cluster(LOST, late=NEVER), [], SHORT_S, (StatusUnknownError, "no answer .* It may still appear"), [TAG], [], {}),
        (Cluster("nothing"), [], SHORT_S, (StatusUnknownError, "gave no application ID"), [], [], {}),
        # A spark-submit that failed may have submitted its application.
        (Cluster(FAILED), [], LONG_S, None, [TAG], [], {TAG: "finished"}),
        (Cluster(FAILED, late=NEVER), [], LONG_S, (ApplicationError, "exit code 1"), [TAG], [], {}),
        # The cluster certainly did not accept it.
        (Cluster(REFUSED), [], LONG_S, (ApplicationError, "connection refused"), [], [], {TAG: "failed"}),
        (Cluster(DECLINED), [], LONG_S, (FailTask, "accepted no driver"), [], [], {TAG: "failed"}),
        # A retry continues with an application that appears late; after a clear it is ended before another is submitted; and one
        # that does not come is ruled out.
        (Cluster(late=5, there="earlier"), [left("earlier")], LONG_S, None, ["earlier"], [], {"earlier": "finished"}),
        (Cluster(late=1, there="earlier"), [left("earlier", max_tries=0)], LONG_S, None, ["earlier", TAG], ["earlier"],
         {"earlier": "killed", TAG: "finished"}),
        (Cluster(), [left("earlier")], SHORT_S, None, [TAG], [], {"earlier": "killed", TAG: "finished"}),
    ],
)  # fmt: skip
def test_applications_of_this_and_of_earlier_tries(
    submit: Submit,
    cluster: Cluster,
    earlier: list[ExternalJob],
    patience_s: float,
    error: Any,
    submitted: Any,
    killed: Any,
    ends: Any,
) -> None:
    jobs = Jobs(*earlier)

    with nullcontext() if error is None else pytest.raises(error[0], match=error[1]):
        submit(cluster, jobs, patience_s=patience_s)

    assert (cluster.submitted, cluster.killed, jobs.ends) == (submitted, killed, ends)


def test_a_try_that_is_no_longer_the_current_one_submits_nothing(submit: Submit) -> None:
    cluster, jobs = Cluster(), Jobs()
    jobs.current = False

    with pytest.raises(StaleTryError, match="nothing was submitted"):
        submit(cluster, jobs)

    assert cluster.submitted == []


@pytest.mark.parametrize("answer", [None, LOST])
@pytest.mark.parametrize("followed", [True, False])
def test_the_application_of_a_replaced_try_is_ended_unless_the_next_try_follows_it(
    submit: Submit, answer: Exception | None, followed: bool
) -> None:
    cluster, jobs = Cluster(answer), Jobs()
    jobs.named = TAG if followed else None

    def replaced() -> None:
        jobs.current = False

    cluster.while_submitting = replaced

    with pytest.raises(StaleTryError):
        submit(cluster, jobs)

    assert cluster.submitted == [TAG]
    assert cluster.killed == ([] if followed else [TAG])


def test_a_driver_is_not_started_here_either_for_a_try_that_is_no_longer_the_current_one(submit: Submit, tmp_path: Path) -> None:
    jobs, started = Jobs(), tmp_path / "started"
    jobs.current = False
    binary = tmp_path / "spark-submit"
    binary.write_text(f"#!/bin/sh\ntouch {started}\n")
    binary.chmod(0o755)

    with pytest.raises(StaleTryError, match="nothing was submitted"):
        submit(Cluster(), jobs, deploy_mode="client", spark_binary=str(binary))

    assert not started.exists()


def test_an_application_of_an_unreachable_cluster_does_not_count_as_ended(submit: Submit) -> None:
    class Locked(Cluster):
        def status(self, ids: Ids, tag: str) -> Status:
            raise FailTask("The password of connection 'spark_default' was removed.")

    cluster, jobs = Locked(), Jobs()

    with pytest.raises(FailTask):
        submit(cluster, jobs)

    assert cluster.submitted == [TAG]
    assert jobs.ends == {}
