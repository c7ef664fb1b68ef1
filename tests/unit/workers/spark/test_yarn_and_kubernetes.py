"""The output of spark-submit, YARN and Kubernetes, quoted from the named sources; no such cluster ran here."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from workers.spark.clusters import kubernetes, yarn
from workers.spark.clusters.protocol import ClusterUnreachableError, Ids, Phase

#: github.com/apache/airflow, tests of the provider apache-spark: spark-submit to YARN.
YARN_SUBMITTING = """\
INFO Client: Requesting a new application from cluster with 10 NodeManagers
INFO Client: Submitting application application_1486558679801_1820 to ResourceManager
"""
#: github.com/microsoft/Mobius issue 642: the same, further on.
YARN_SUBMIT = """\
17/03/20 22:06:47 INFO yarn.Client: Application report for application_1490070587984_0007 (state: ACCEPTED)
17/03/20 22:06:47 INFO yarn.Client:
         client token: N/A
         diagnostics: N/A
         ApplicationMaster host: N/A
         ApplicationMaster RPC port: -1
         queue: default
         start time: 1490072789938
         final status: UNDEFINED
         tracking URL: http://Master:8088/proxy/application_1490070587984_0007/
         user: test1
"""
#: Documentation of Yandex Data Proc, "Spark jobs": `yarn application -status` of a Spark application.
YARN_REPORT = """\
20/04/19 16:47:03 INFO client.RMProxy: Connecting to ResourceManager at rc1b-dataproc-m.mdb.yandexcloud.net/10.13.13.18:8032
Application Report :
\tApplication-Id : application_1586176069782_0003
\tApplication-Name : org.apache.spark.examples.SparkPi
\tApplication-Type : SPARK
\tUser : sparkuser
\tQueue : default
\tApplication Priority : 0
\tStart-Time : 1587314639386
\tFinish-Time : 1587314647621
\tProgress : 100%
\tState : FINISHED
\tFinal-State : SUCCEEDED
\tTracking-URL : rc1b-dataproc-m.mdb.yandexcloud.net:18080/history/application_1586176069782_0003/1
\tRPC Port : 41648
\tAM Host : rc1b-dataproc-d.mdb.yandexcloud.net
\tAggregate Resource Allocation : 141510 MB-seconds, 11 vcore-seconds
\tLog Aggregation Status : SUCCEEDED
\tDiagnostics :
\tUnmanaged Application : false
"""
#: Apache Hadoop's documentation, "ResourceManager REST APIs", Cluster Application API, shortened.
YARN_ANSWER = {
    "app": {
        "finishedTime": 1326824991300,
        "trackingUI": "History",
        "state": "FINISHED",
        "user": "user1",
        "id": "application_1326821518301_0005",
        "clusterId": 1326821518301,
        "finalStatus": "SUCCEEDED",
        "progress": 100,
        "name": "Sleep job",
        "trackingUrl": "http://host.domain.com:8088/proxy/application_1326821518301_0005/jobhistory/job/job_1326821518301_5_5",
        "startedTime": 1326824544552,
        "diagnostics": "",
        "queue": "a1",
    }
}
#: github.com/apache/airflow, tests of the provider apache-spark: spark-submit of Spark 3 and 4 to Kubernetes.
POD_DEPLOYED = (
    "INFO Client: Deployed Spark application arrow-spark-c8e2e29e73db9c93 with application ID "
    "spark-1e22d65826b74ac2927249b0e607ed54 and submission ID spark:arrow-spark-c8e2e29e73db9c93-driver into Kubernetes"
)
#: github.com/rootsongjc/kubernetes-handbook: spark-submit of Spark 2 to Kubernetes.
POD_CHANGED = """\
2017-09-14 14:59:01 INFO  LoggingPodStatusWatcherImpl:54 - State changed, new state:
\t pod name: spark-pi-1505372339796-driver
\t namespace: spark-cluster
\t labels: spark-app-selector -> spark-f4d3a5d3ad964a05a51feb6191d50357, spark-role -> driver
\t pod uid: 304cf440-991a-11e7-970c-f4e9d49f8ed0
\t phase: Pending
"""


def pod(phase: str, **state: Any) -> dict[str, Any]:
    """A driver's pod as the Kubernetes API reference has it."""
    driver = {"name": "spark-kubernetes-driver", "state": state}
    return {"status": {"phase": phase, "containerStatuses": [{"name": "istio-proxy", "state": {"running": {}}}, driver]}}


def test_the_ids_that_spark_submit_prints() -> None:
    assert yarn.submitted(YARN_SUBMITTING) == Ids(application_id="application_1486558679801_1820")
    assert yarn.submitted(YARN_SUBMIT) == Ids(
        application_id="application_1490070587984_0007", ui_url="http://Master:8088/proxy/application_1490070587984_0007/"
    )
    assert kubernetes.submitted(POD_DEPLOYED) == Ids(
        "arrow-spark-c8e2e29e73db9c93-driver", "spark-1e22d65826b74ac2927249b0e607ed54"
    )
    assert kubernetes.submitted(POD_CHANGED) == Ids("spark-pi-1505372339796-driver", "spark-f4d3a5d3ad964a05a51feb6191d50357")


@pytest.mark.parametrize("parse", [yarn.submitted, kubernetes.submitted])
def test_a_submission_that_prints_no_id_is_left_to_its_tag(parse: Any) -> None:
    assert parse("WARN NativeCodeLoader: Unable to load native-hadoop library\n") == Ids()


def test_a_report_and_a_response_of_yarn_agree() -> None:
    report, answer = yarn.of_report(YARN_REPORT), yarn.of_answer(YARN_ANSWER)

    assert report.phase is answer.phase is Phase.FINISHED
    assert report.ids.application_id == "application_1586176069782_0003"
    assert answer.ids.application_id == "application_1326821518301_0005"


@pytest.mark.parametrize(
    ("state", "final", "phase"),
    [
        ("NEW_SAVING", "UNDEFINED", Phase.SUBMITTED),
        ("ACCEPTED", "UNDEFINED", Phase.SUBMITTED),
        ("RUNNING", "UNDEFINED", Phase.RUNNING),
        ("FINISHING", "SUCCEEDED", Phase.RUNNING),
        ("FINISHED", "SUCCEEDED", Phase.FINISHED),
        ("FINISHED", "FAILED", Phase.FAILED),
        ("FINISHED", "KILLED", Phase.KILLED),
        ("FINISHED", "UNDEFINED", Phase.UNKNOWN),
        ("FAILED", "FAILED", Phase.FAILED),
        ("KILLED", "KILLED", Phase.KILLED),
        ("", "", Phase.UNKNOWN),
    ],
)
def test_states_of_yarn(state: str, final: str, phase: Phase) -> None:
    assert yarn.of_answer({"app": {"id": "application_1_1", "state": state, "finalStatus": final}}).phase is phase


def test_an_application_that_yarn_does_not_have_is_not_found() -> None:
    # Apache Hadoop's documentation, "Introduction to the web services REST APIs", error response.
    message = "java.lang.Exception: app with id: application_1324057493980_9999 not found"
    missing = {"RemoteException": {"exception": "NotFoundException", "message": message}}

    unknown = "Application with id 'application_1324057493980_9999' doesn't exist in RM or Timeline Server.\n"

    assert yarn.of_answer(missing).phase is Phase.NOT_FOUND
    assert "not found" in yarn.of_answer(missing).detail
    assert yarn.of_report(unknown).phase is Phase.NOT_FOUND
    assert yarn.of_answer({"message": "bad gateway"}).phase is Phase.UNKNOWN
    assert yarn.of_report("no such application\n").phase is Phase.UNKNOWN


def test_the_newest_application_of_a_tag_is_the_one() -> None:
    apps = [{"id": "application_1_1", "startedTime": 1}, {"id": "application_1_2", "startedTime": 2}]

    assert yarn.found({"apps": {"app": apps}}) == Ids(application_id="application_1_2")
    assert yarn.found({"apps": None}) is None


def test_an_empty_list_is_recognized() -> None:
    head = "Total number of applications (application-types: [], states: [NEW] and tags: [paceline-0-7-1]):"

    assert yarn.listed(f"{head}0\n  Application-Id\tApplication-Name\n") is None
    assert yarn.listed(f"{head}1\n application_1_2\td.t\tSPARK\n") == Ids(application_id="application_1_2")
    for no_list in ("", "application_1_2", "WARN RetryInvocationHandler: no route"):
        with pytest.raises(ClusterUnreachableError):
            yarn.listed(no_list)
    with pytest.raises(ClusterUnreachableError):
        yarn.found({"message": "bad gateway"})
    for no_pods in ({}, {"items": None}):
        with pytest.raises(ClusterUnreachableError):
            kubernetes.found(no_pods)


@pytest.mark.parametrize(
    ("found", "phase", "detail"),
    [
        (pod("Pending", waiting={"reason": "ContainerCreating"}), Phase.SUBMITTED, "pod Pending"),
        (pod("Running", running={}), Phase.RUNNING, "pod Running"),
        (pod("Running", terminated={"exitCode": 0, "reason": "Completed"}), Phase.FINISHED, "exit code 0"),
        (pod("Running", terminated={"exitCode": 137, "reason": "OOMKilled"}), Phase.FAILED, "exit code 137 (OOMKilled)"),
        (pod("Succeeded", terminated={"exitCode": 0, "reason": "Completed"}), Phase.FINISHED, "exit code 0"),
        (pod("Failed", terminated={"exitCode": 1, "reason": "Error"}), Phase.FAILED, "exit code 1"),
        (pod("Unknown"), Phase.UNKNOWN, "pod Unknown"),
        ({}, Phase.NOT_FOUND, "its pod is gone"),
    ],
)
def test_states_of_a_drivers_pod(found: dict[str, Any], phase: Phase, detail: str) -> None:
    status = kubernetes.of_pod(found, Ids("p"))

    assert status.phase is phase
    assert detail in status.detail


def test_the_pod_of_a_tag() -> None:
    items = [
        {"metadata": {"name": "old", "creationTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"name": "new", "creationTimestamp": "2026-01-01T00:01:00Z", "labels": {"spark-app-selector": "spark-1"}}},
    ]

    assert kubernetes.found({"items": items}) == Ids("new", "spark-1")
    assert kubernetes.found({"items": []}) is None


def test_the_log_of_a_pod_goes_on_where_it_was_left() -> None:
    stamps = [f"2026-01-01T00:00:0{second}.{part:09}Z" for second, part in ((1, 5), (1, 5), (2, 1), (2, 2), (3, 0))]
    lines = [f"{stamp} line {number}\n" for number, stamp in enumerate(stamps)]
    seen: dict[str, int] = {}

    parts = [
        kubernetes.new_lines("".join(lines[:1]), seen),
        kubernetes.new_lines("".join(lines[:3]), seen),  # from second 1
        kubernetes.new_lines("".join(lines[2:4]), seen),  # from second 2
        kubernetes.new_lines("".join(lines[2:4]), seen),
        kubernetes.new_lines("".join([*lines[2:4], lines[4][:-4]]), seen),  # a line that is not complete
        kubernetes.new_lines(lines[4], seen),
        kubernetes.new_lines("", seen),
    ]

    assert parts == ["line 0\n", "line 1\nline 2\n", "line 3\n", "", "lin", "e 4\n", ""]
    assert seen["second"] == int(datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC).timestamp())


def test_the_log_of_a_pod_is_requested_from_the_last_second_that_was_read(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho "2026-01-01T00:00:01.000000001Z first"\n'
        'case "$*" in *--since-time*) echo "2026-01-01T00:00:02.000000001Z second";; esac\n'
    )
    kubectl.chmod(0o755)
    cluster = kubernetes.Kubernetes("k8s://https://h", {"kubectl": str(kubectl)}, "cluster", lambda _: None)
    seen: dict[str, int] = {}

    assert [cluster.output(Ids("p"), seen), cluster.output(Ids("p"), seen)] == ["first\n", "second\n"]

    calls = (tmp_path / "calls").read_text().splitlines()
    assert "--since-time" not in calls[0]
    assert calls[1].endswith("--timestamps --since-time=2026-01-01T00:00:01Z")
