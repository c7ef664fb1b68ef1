"""Applications of a Connect server: their session is named after the tag, and no call waits for an unreachable server."""

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask
from scheduler.settings import Settings
from scheduler.settings.sections import Spark
from scheduler.store.worker.external_jobs import ExternalJob
from workers.spark import connect_session
from workers.spark.applications import submitter
from workers.spark.applications.jobs import NoJobs
from workers.spark.applications.tracking import Followed
from workers.spark.clusters import connect, target
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import ApplicationError, ApplicationLivesError, ClusterUnreachableError, Ids
from workers.spark.clusters.target import Target

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TAG = "paceline-0123abcd-7-2"


def test_the_session_of_a_tag_is_the_same_in_any_process_and_with_any_url() -> None:
    session = f"user_id=paceline;session_id={connect.session_of(TAG)}"

    assert connect.remote("sc://h:15002", TAG) == f"sc://h:15002/;{session}"
    assert connect.remote("sc://h:15002/;token=t;session_id=x", TAG) == f"sc://h:15002/;token=t;{session}"
    assert connect.remote("sc://h:1/;user_id=me", TAG) == f"sc://h:1/;user_id=me;session_id={connect.session_of(TAG)}"
    assert connect.session_of(TAG) != connect.session_of("paceline-0123abcd-7-3")


def test_an_interruption_of_an_unreachable_server_is_reported_in_time() -> None:
    with pytest.raises(ClusterUnreachableError, match="did not stop its session"):
        connect.close(connect.remote("sc://127.0.0.1:1", TAG), within_s=1.0)


def test_an_application_of_a_lost_worker_is_not_absent_while_its_server_does_not_answer() -> None:
    """Whichever machine looks for its driver: the server may still execute it, so a retry must not submit another one."""
    cluster = connect.Connect("sc://127.0.0.1:1", {}, "client", lambda _: None)
    job = ExternalJob(
        id=1, ti_id=7, try_number=1, dispatch_id="x", max_tries=1, tag=TAG, kind="connect", deploy_mode="client",
        master="sc://127.0.0.1:1", reach={}, driver_id=None, application_id=None, ui_url=None, submitted_at=NOW,
    )  # fmt: skip
    followed = Followed(cluster, job, NoJobs(NOW), Spark(), say=lambda _: None)

    with pytest.raises(ApplicationLivesError, match="did not stop its session"):
        followed.end(within_s=1.0)


def test_the_token_of_a_session_comes_from_its_connection() -> None:
    cluster = connect.Connect("sc://h:1", {"conn_id": "c"}, "client", {"c": "a/b"}.get)

    assert cluster._master() == "sc://h:1/;token=a%2Fb"
    connection = Connection(conn_id="c", conn_type="spark_connect", host="h", password="a/b")
    assert target.choose(None, None, None, connection).reach == {"conn_id": "c"}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"host": "h"}, "sc://h:15002"),
        ({"host": "sc://h", "port": 1}, "sc://h:1"),
        ({"host": "sc://h:2/;use_ssl=true"}, "sc://h:2/;use_ssl=true"),
        (
            {"host": "h", "login": "me", "password": "a=b", "extra": '{"use_ssl": true}'},
            "sc://h:15002/;user_id=me;token=a%3Db;use_ssl=true",
        ),
    ],
)
def test_a_connection_has_the_fields_of_airflow(given: dict[str, Any], url: str) -> None:
    connection = Connection(conn_id="c", conn_type="spark_connect", **given)

    chosen = target.choose(None, None, None, connection)

    assert (chosen.kind, chosen.master) == ("connect", url)
    # What is stored is enough for another worker to build the URL again, with the password of the connection.
    again = connect.Connect(chosen.address, chosen.reach, "client", lambda _: given.get("password"))
    assert _parts(again._master()) == _parts(url)
    assert "a%3Db" not in str(chosen.reach)


def _parts(url: str) -> tuple[str, set[str]]:
    address, _, parameters = url.partition("/;")
    return address, set(filter(None, parameters.split(";")))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": "h", "extra": '{"use_ssl": "maybe"}'}, "cannot be 'maybe': write true or false"),
        ({"host": "h", "extra": '{"token": "t"}'}, "make it the password"),
        ({"host": "sc://h/;token=t"}, "make it the password"),
    ],
)
def test_a_connection_that_would_show_its_token_or_is_wrong_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(FailTask, match=words):
        target.choose(None, None, None, Connection(conn_id="c", conn_type="spark_connect", **given))


class Stage(NamedTuple):
    """As PySpark describes a stage."""

    stage_id: int
    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int
    done: bool


def test_progress_adds_up_the_operations_of_a_session() -> None:
    watched = connect_session.Watched(object())
    assert watched.look() is None

    watched([Stage(1, 4, 4, 10, True), Stage(2, 4, 1, 5, False)], 2, "a", False)
    watched([Stage(3, 8, 2, 0, False)], 1, "b", False)
    now = watched.look()

    assert now is not None
    assert (now.stages, now.stages_done, now.tasks, now.tasks_done, now.bytes_read) == (3, 1, 16, 7, 15)
    assert [(stage.id, stage.tasks, stage.tasks_done) for stage in now.running] == [(2, 4, 1), (3, 8, 2)]

    watched([Stage(1, 4, 4, 10, True), Stage(2, 4, 4, 20, True)], 0, "a", True)
    watched(None, 0, "c", True)
    later = watched.look()

    assert later is not None
    assert (later.stages, later.stages_done, later.tasks_done, later.bytes_read) == (3, 2, 10, 30)
    assert [stage.id for stage in later.running] == [3]


class Recorded(connect.Connect):
    """Records when it is asked to close the session of a submission."""

    def __init__(self, *, reachable: bool) -> None:
        super().__init__("sc://127.0.0.1:1", {}, "client", lambda _: None)
        self.reachable = reachable
        self.closed: list[str] = []

    def interrupt(self, submission: Submission, *, within_s: float) -> None:
        self.closed.append(submission.tag)
        if not self.reachable:
            raise ClusterUnreachableError("the Connect server did not stop its session: it is away")

    def gone(self, ids: Ids, tag: str) -> bool:
        return True


@pytest.mark.parametrize(
    ("application", "reachable", "problem"),
    [
        ("print('done')", True, None),
        ("raise SystemExit(3)", True, "The Spark application ended with exit code 3"),
        ("raise SystemExit(3)", False, "ended with exit code 3, but the Connect server did not stop its session"),
    ],
    ids=["it succeeds", "it fails", "it fails, and the server is away"],
)
def test_the_session_is_closed_when_its_driver_has_ended(
    tmp_path: Path, application: str, reachable: bool, problem: str | None
) -> None:
    file = tmp_path / "application.py"
    file.write_text(application, encoding="utf-8")
    cluster = Recorded(reachable=reachable)
    jobs = NoJobs(NOW)
    made = Submission(target=Target(kind="connect", master="sc://127.0.0.1:1"), tag=TAG, name="a", application=str(file))
    followed = Followed(cluster, jobs.add(made), jobs, Spark(), say=lambda _: None)

    with pytest.raises(ApplicationError, match=problem) if problem else contextlib.nullcontext():
        submitter.run(made, followed, Settings.load({"PACELINE_HOME": str(tmp_path)}))

    assert cluster.closed == [TAG]
