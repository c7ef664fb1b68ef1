"""When an application counts as ended, and how one is ended: with a stand-in for the cluster that answers as it is told."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler.setting_sections import Spark
from scheduler.store.external_jobs import ExternalJob
from workers.outcome import TaskStopped
from workers.spark.submit.following import Followed, end_for
from workers.spark.submit.jobs import NoJobs
from workers.spark.submit.status import ApplicationLivesError, Ids, Phase, Status, StatusUnknownError, UnreachableError

QUICK = Spark(status_interval=0.001, status_patience=0.05, kill_timeout=1)
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DRIVER = Ids("driver-1")


class Cluster:
    """Answers in the order given, the last one for ever; an exception is raised."""

    def __init__(self, answers: Iterable[Any] = (), *, found: Ids | None = DRIVER, dies: bool = True) -> None:
        self.answers = list(answers)
        self.found, self.dies = found, dies
        self.killed: list[Ids] = []

    def status(self, ids: Ids, tag: str) -> Status:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Status) else Status(answer, "said", ids)

    def find(self, tag: str, since: datetime) -> Ids | None:
        return self.found

    def gone(self, ids: Ids, tag: str) -> bool:
        return self.dies and bool(self.killed)

    def kill(self, ids: Ids) -> None:
        self.killed.append(ids)

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        return ""

    def driver_host(self, ids: Ids) -> None:
        return None


class Jobs(NoJobs):
    """Remembers what was noted."""

    def __init__(self, *, mine: bool = True) -> None:
        super().__init__(NOW)
        self.noted: list[Status] = []
        self.mine = mine

    def note(self, job: ExternalJob, status: Status) -> bool:
        self.noted.append(status)
        return True

    def holds(self, job: ExternalJob) -> bool:
        return self.mine


def followed(cluster: Cluster, jobs: Jobs | None = None, *, driver: str | None = "driver-1") -> Followed:
    job = ExternalJob(
        id=1, ti_id=7, try_number=1, dispatch_id="x", max_tries=1, tag="paceline-0-7-1", kind="standalone", deploy_mode="cluster",
        master="spark://m:1", reach={}, driver_id=driver, application_id=None, ui_url=None, state="running",
        submitted_at=NOW,
    )  # fmt: skip
    return Followed(cluster, job, jobs or Jobs(), QUICK, say=lambda _: None)  # type: ignore[arg-type]


def test_an_unknown_status_and_no_answer_are_asked_again() -> None:
    answers = [Phase.RUNNING, Phase.UNKNOWN, UnreachableError("away"), Phase.UNKNOWN, Phase.RUNNING, Phase.FINISHED]
    jobs = Jobs()

    assert followed(Cluster(answers), jobs).to_the_end().phase is Phase.FINISHED
    assert [one.phase for one in jobs.noted] == [Phase.RUNNING, Phase.FINISHED]


@pytest.mark.parametrize("answer", [Phase.UNKNOWN, UnreachableError("the master does not answer")])
def test_patience_has_a_bound_that_is_named_and_ends_nothing(answer: Any) -> None:
    jobs = Jobs()

    with pytest.raises(StatusUnknownError, match=r"no status of driver driver-1 for 0.05 s .*it may still run"):
        followed(Cluster([answer]), jobs).to_the_end()

    assert jobs.noted == []


def test_an_application_without_a_stored_id_is_found_by_its_tag() -> None:
    lost, none = followed(Cluster(), driver=None), followed(Cluster(found=None), driver=None)

    lost.ids = Ids(ui_url="http://h:4040")  # which no cluster can be asked about

    assert (lost.look_up(), lost.ids.driver_id) == (True, "driver-1")
    assert none.look_up() is False


def test_an_application_is_killed_until_it_is_gone() -> None:
    cluster, jobs = Cluster(), Jobs()

    followed(cluster, jobs).end()

    assert cluster.killed == [DRIVER]
    assert [one.phase for one in jobs.noted] == [Phase.KILLED]


def test_one_that_lives_on_is_told_in_the_reason_of_the_task_and_its_row_stays_open() -> None:
    jobs, stopped = Jobs(), TaskStopped("cleared")
    one = followed(Cluster(dies=False), jobs)

    with pytest.raises(ApplicationLivesError, match=r"driver driver-1 at spark://m:1 was told to end and is not gone after 0.1 s"):
        one.end(0.1)
    end_for(stopped, one, 0.1)

    assert str(stopped).startswith("cleared driver driver-1 at spark://m:1 was told to end")
    assert jobs.noted == []


def test_what_another_try_has_taken_over_is_left_alone() -> None:
    cluster = Cluster()

    followed(cluster, Jobs(mine=False)).end()

    assert cluster.killed == []
