"""When an application has ended, and how it is ended, with a stand-in for the cluster that gives prepared answers."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline.exceptions import TaskStopped
from scheduler.settings.sections import Spark
from scheduler.store.worker.external_jobs import ExternalJob
from workers.spark.applications.jobs import NoJobs
from workers.spark.applications.tracking import Followed, end_for
from workers.spark.clusters.protocol import ApplicationLivesError, ClusterUnreachableError, Ids, Phase, Status, StatusUnknownError

QUICK = Spark(status_interval=0.001, status_patience=0.5, kill_timeout=1, not_found_patience=0.7)
#: Time for an application that is found in the end, on the slowest machine.
PATIENT = Spark(status_interval=0.001, status_patience=60, kill_timeout=9, not_found_patience=60)
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DRIVER = Ids("driver-1")
AWAY = ClusterUnreachableError("the master does not answer")


class Cluster:
    """Answers in the given order, the last of them forever; an exception is raised."""

    def __init__(self, answers: Iterable[Any] = (), *, found: Any = DRIVER, dies: bool | None = True) -> None:
        self.answers = list(answers)
        self.found = found if isinstance(found, list) else [found]
        self.dies = dies
        self.killed: list[Ids] = []

    def status(self, ids: Ids, tag: str) -> Status:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Status) else Status(answer, "said", ids)

    def find(self, tag: str, since: datetime) -> Ids | None:
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, Exception):
            raise found
        return found

    def gone(self, ids: Ids, tag: str) -> bool | None:
        return self.dies and bool(self.killed)

    def kill(self, ids: Ids) -> None:
        self.killed.append(ids)

    #: The parts of the output of the driver; an exception is raised.
    parts: Iterable[Any] = ()

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        self.parts = list(self.parts)
        part = self.parts.pop(0) if self.parts else ""
        if isinstance(part, Exception):
            raise part
        return str(part)

    def driver_host(self, ids: Ids) -> None:
        return None


class Jobs(NoJobs):
    """Records the noted statuses."""

    def __init__(self, *, mine: bool = True) -> None:
        super().__init__(NOW)
        self.noted: list[Status] = []
        self.mine = mine

    def note(self, job: ExternalJob, status: Status) -> bool:
        self.noted.append(status)
        return True

    def may_end(self, job: ExternalJob, ids: Ids) -> bool:
        return self.mine


def followed(
    cluster: Cluster,
    jobs: Jobs | None = None,
    *,
    driver: str | None = "driver-1",
    deploy_mode: str = "cluster",
    settings: Spark = QUICK,
) -> Followed:
    job = ExternalJob(
        id=1, ti_id=7, try_number=1, dispatch_id="x", max_tries=1, tag="paceline-0-7-1", kind="standalone", deploy_mode=deploy_mode,
        master="spark://m:1", reach={}, driver_id=driver, application_id=None, ui_url=None,
        submitted_at=NOW,
    )  # fmt: skip
    return Followed(cluster, job, jobs or Jobs(), settings, say=lambda _: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "settings", "noted"),
    [
        # An unknown status and no response are queried again.
        ([Phase.RUNNING, Phase.UNKNOWN, AWAY, Phase.UNKNOWN, Phase.RUNNING, Phase.FINISHED], PATIENT, ["running", "finished"]),
        # One that the cluster does not find for a while has failed.
        ([Phase.RUNNING, Phase.NOT_FOUND, AWAY, Phase.NOT_FOUND, Phase.FINISHED], PATIENT, ["running", "finished"]),
        ([Phase.RUNNING, Phase.NOT_FOUND], QUICK, ["running", "failed: said, for 0.7 s"]),
    ],
)
def test_an_application_is_followed_to_its_end(answers: list[Any], settings: Spark, noted: list[str]) -> None:
    jobs = Jobs()

    end = followed(Cluster(answers), jobs, settings=settings).to_the_end()

    assert [one.phase.value if one.phase is not Phase.FAILED else f"failed: {one.detail}" for one in jobs.noted] == noted
    assert end.phase is jobs.noted[-1].phase


@pytest.mark.parametrize("answer", [Phase.UNKNOWN, AWAY])
def test_patience_has_a_bound_that_is_named_and_ends_nothing(answer: Any) -> None:
    jobs = Jobs()

    with pytest.raises(StatusUnknownError, match=r"no status of driver driver-1 for 0.5 s .*It may still run"):
        followed(Cluster([answer]), jobs).to_the_end()

    assert jobs.noted == []


@pytest.mark.parametrize("found", [DRIVER, [None, None, DRIVER], [AWAY, None, AWAY, None, DRIVER]])
def test_an_application_without_a_stored_id_is_found_by_its_tag_also_if_it_is_listed_later(found: Any) -> None:
    lost = followed(Cluster(found=found), driver=None, settings=PATIENT)
    lost.ids = Ids(ui_url="http://h:4040")  # which no cluster can find

    assert (lost.look_up(), lost.ids.driver_id) == (True, "driver-1")


@pytest.mark.parametrize(
    ("found", "mine", "options", "killed", "noted"),
    [
        (DRIVER, True, {}, [DRIVER], [Phase.KILLED]),
        # Another try has taken it over.
        (DRIVER, False, {}, [], []),
        # A driver in client mode died with its worker, so one look is enough.
        ([None, DRIVER], True, {"driver": None, "deploy_mode": "client"}, [], [Phase.KILLED]),
        # It shows up while it is being ended.
        ([None, None, DRIVER], True, {"driver": None, "settings": PATIENT}, [DRIVER], [Phase.KILLED]),
    ],
)
def test_an_application_is_killed_until_it_is_gone(
    found: Any, mine: bool, options: dict[str, Any], killed: list[Ids], noted: list[Phase]
) -> None:
    cluster, jobs = Cluster(found=found), Jobs(mine=mine)

    followed(cluster, jobs, **options).end()

    assert (cluster.killed, [one.phase for one in jobs.noted]) == (killed, noted)


def test_an_application_that_keeps_running_is_named_in_the_reason_of_the_task_and_its_row_stays_open() -> None:
    jobs, stopped = Jobs(), TaskStopped("cleared")
    one = followed(Cluster(dies=False), jobs)

    with pytest.raises(ApplicationLivesError, match=r"driver driver-1 at spark://m:1 has not ended 0.1 s after the request"):
        one.end(0.1)
    end_for(stopped, one, 0.1)

    assert str(stopped).startswith("cleared driver driver-1 at spark://m:1 has not ended")
    assert jobs.noted == []


def test_one_that_is_never_listed_is_absent_only_after_not_found_patience() -> None:
    started = time.monotonic()

    assert followed(Cluster(found=None), driver=None).look_up() is False

    assert time.monotonic() - started >= QUICK.not_found_patience


def test_an_application_that_is_not_listed_yet_is_not_reported_absent() -> None:
    jobs = Jobs()

    with pytest.raises(ApplicationLivesError, match="the submission may still be on its way"):
        followed(Cluster(found=None), jobs, driver=None).end(0.05)

    assert jobs.noted == []


def test_an_application_that_a_later_try_takes_over_during_the_search_is_not_killed() -> None:
    jobs = Jobs()

    class TakenOver(Cluster):
        def find(self, tag: str, since: datetime) -> Ids | None:
            found = super().find(tag, since)
            jobs.mine = found is None
            return found

    cluster = TakenOver(found=[None, DRIVER])

    followed(cluster, jobs, driver=None, settings=PATIENT).end()

    assert cluster.killed == []
    assert jobs.noted == []


def test_all_output_is_read_after_the_end_although_requests_fail(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster([Phase.FAILED])
    away = ClusterUnreachableError("away")
    cluster.parts = ["first\n", away, away, "second\n", "java.lang.OutOfMemoryError: Java heap space\n"]
    one = followed(cluster)

    assert one.to_the_end().phase is Phase.FAILED

    assert capfd.readouterr().out == "first\nsecond\njava.lang.OutOfMemoryError: Java heap space\n"
    assert "ran out of memory" in one.cause


def test_output_that_cannot_be_read_is_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster([Phase.FINISHED])
    cluster.parts = ["first\n", *[ClusterUnreachableError("its pod is gone")] * 10]

    assert followed(cluster).to_the_end().phase is Phase.FINISHED

    assert "the end of the output of driver driver-1 is not in this log: its pod is gone" in capfd.readouterr().out
