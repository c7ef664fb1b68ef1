"""From an operator and its connection to a command line, and arguments that are refused before a JVM starts."""

from pathlib import Path
from typing import Any

import pytest

from paceline import secrets_masker
from paceline.authoring.connection import Connection
from paceline.exceptions import FailTask
from paceline.operators import SparkSqlOperator, SparkSubmitOperator
from workers.spark import conf
from workers.spark.clusters import command, standalone, target
from workers.spark.clusters.command import Submission, Target
from workers.spark.clusters.protocol import Cluster, UnknownClusterError
from workers.spark.clusters.target import CLUSTERS, cluster_of

TAG = "paceline-0123abcd-7-2"


def submit(connection: str | None = None, **given: Any) -> Submission:
    """The submission of one operator; `connection` is a URI."""
    operator = SparkSubmitOperator(task_id="t", **{"application": "/app.py", **given})
    found = None if connection is None else Connection.from_uri("c", connection)
    where = target.choose(operator.master, operator.deploy_mode, operator.spark_binary, found)
    made = command.submission(operator, where, tag=TAG, name="d.t")
    cluster = cluster_for(made)
    cluster.check(made)
    return cluster.tagged(made)


def cluster_for(made: Submission) -> Cluster:
    where = made.target
    return cluster_of(where.kind, where.address, where.reach, where.deploy_mode, lambda _: None)


@pytest.fixture(autouse=True)
def _no_secrets() -> None:
    secrets_masker.begin()


def test_every_option_of_the_operator_becomes_one_of_spark_submit() -> None:
    submission = submit(
        master="yarn", deploy_mode="cluster", name="mine", files="/f", py_files="/p.zip", archives="/a.tgz", driver_class_path="/d",
        jars="/j.jar", packages="g:a:1", exclude_packages="g:b", repositories="https://r", num_executors=3, total_executor_cores=8,
        executor_cores=2, executor_memory="2g", driver_memory="1g", keytab="/k", principal="me", proxy_user="you", yarn_queue="q",
        conf={"spark.ui.enabled": False, "spark.jars.ivy": None}, application_args=["--date", 3], verbose=True,
    )  # fmt: skip

    assert command.argv(submission, binary="spark-submit") == [
        "spark-submit", "--master", "yarn", "--deploy-mode", "cluster", "--name", f"mine {TAG}", "--files", "/f",
        "--py-files", "/p.zip", "--archives", "/a.tgz", "--driver-class-path", "/d", "--jars", "/j.jar", "--packages", "g:a:1",
        "--exclude-packages", "g:b", "--repositories", "https://r", "--num-executors", "3", "--total-executor-cores", "8",
        "--executor-cores", "2", "--executor-memory", "2g", "--driver-memory", "1g", "--keytab", "/k", "--principal", "me",
        "--proxy-user", "you", "--conf", "spark.ui.enabled=false", "--conf", "spark.yarn.queue=q",
        "--conf", f"spark.yarn.tags={TAG}",
        "--conf", "spark.yarn.submit.waitAppCompletion=false", "--verbose", "/app.py", "--date", "3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("master", "mode"), [("local[1]", "client"), ("spark://m:7077", "client"), ("yarn", "cluster"), ("k8s://https://h", "cluster")]
)
def test_a_jar_is_named_after_its_main_class_and_before_its_arguments(master: str, mode: str) -> None:
    submission = submit(
        master=master, deploy_mode=mode, application="/a.jar", java_class="x.Y", jars="/b.jar,/c.jar", application_args=["in", 7]
    )
    unnamed = submit(master=master, deploy_mode=mode, application="/a.jar")

    words = command.argv(submission, binary="spark-submit")

    assert words[words.index("--jars") + 1] == "/b.jar,/c.jar"
    assert words[-5:] == ["--class", "x.Y", "/a.jar", "in", "7"]
    assert command.argv(unnamed, binary="spark-submit")[-1] == "/a.jar", "its manifest names the class"
    assert "--class" not in command.argv(unnamed, binary="spark-submit")


def test_secrets_go_into_a_file_and_into_no_argument() -> None:
    secrets_masker.mask_secret("letmein")
    submission = submit(conf={"spark.my.password": "hush: x\\y", "spark.jdbc.url": "jdbc://u:letmein@h", "spark.a.b": "seen"})

    words = command.argv(submission, binary="spark-submit", secrets=["--properties-file", "/run/s.properties"])

    assert words[words.index("--properties-file") + 1] == "/run/s.properties" and "spark.a.b=seen" in words
    assert not any("hush" in word or "letmein" in word for word in words)
    assert command.secret_properties(submission.conf) == {
        "spark.jdbc.url": "jdbc://u:letmein@h", "spark.my.password": "hush: x\\y",
    }  # fmt: skip
    assert command.secret_properties({"spark.a.b": "seen"}) == {}


def test_a_connection_holds_master_conf_and_deploy_mode_and_the_task_goes_before_it() -> None:
    uri = "spark://m:7078?deploy-mode=cluster&rest_port=6067&spark.a.b=theirs&spark.c.d=kept"

    of_connection, of_task = submit(uri), submit(uri, deploy_mode="client", conf={"spark.a.b": "mine"})

    assert of_connection.target == Target(
        "standalone", "spark://m:7078", "cluster", conf={"spark.a.b": "theirs", "spark.c.d": "kept"}, reach={"rest_port": "6067"}
    )
    assert (of_task.target.deploy_mode, dict(of_task.conf)) == ("client", {"spark.a.b": "mine", "spark.c.d": "kept"})


@pytest.mark.parametrize(
    ("uri", "master"),
    [
        ("spark://yarn", "yarn"),
        ("spark://local%5B2%5D", "local[2]"),
        ("spark://host", "spark://host:7077"),
        ("spark://k8s%3A%2F%2Fhttps%3A%2F%2Fapi:6443", "k8s://https://api:6443"),
        ("spark-connect://:to%2Fken@h:15002", "sc://h:15002/;token=to%2Fken"),
    ],
)
def test_the_master_of_a_connection(uri: str, master: str) -> None:
    found = target.choose(None, None, None, Connection.from_uri("c", uri))

    assert found.master == master
    assert "ken" not in found.address


@pytest.mark.parametrize(
    ("mode", "key"), [("yarn", "spark.yarn.appMasterEnv.A"), ("k8s://https://h", "spark.kubernetes.driverEnv.A")]
)
def test_the_environment_of_a_driver_in_the_cluster_travels_as_conf(mode: str, key: str) -> None:
    in_cluster, on_client = submit(master=mode, deploy_mode="cluster", env_vars={"A": 1}), submit(master=mode, env_vars={"A": 1})

    assert cluster_for(in_cluster).environment_as_conf(in_cluster) == {key: "1"}
    assert cluster_for(on_client).environment_as_conf(on_client) == {}


def test_sql_runs_the_command_line_driver_of_spark_sql() -> None:
    operator = SparkSqlOperator(task_id="t", sql=" select 1 ", master="local[1]")
    submission = command.submission(operator, target.choose(operator.master, None, None, None), tag=TAG, name="d.t")

    words = command.argv(submission, binary="spark-submit", sql_file="/run/s.sql")

    assert words[-5:] == ["--class", command.SQL_CLASS, "spark-internal", "-f", "/run/s.sql"]
    assert submission.sql == "select 1;"


def test_a_python_driver_in_a_standalone_cluster_is_spark_submit_itself() -> None:
    submission = submit("spark://m:7077", deploy_mode="cluster", driver_memory="1g", env_vars={"A": "1"}, application_args=["x"])

    asked = standalone.request(submission)

    assert (asked["mainClass"], asked["appResource"]) == (standalone.PYTHON_CLASS, "")
    assert asked["sparkProperties"]["spark.driver.memory"] == "1g" and asked["environmentVariables"] == {"A": "1"}
    assert asked["appArgs"][-2:] == ["/app.py", "x"] and f"spark.app.name=d.t {TAG}" in asked["appArgs"]
    assert "spark.submit.deployMode=client" in asked["appArgs"]


@pytest.mark.parametrize("given", [{}, {"spark.driver.defaultJavaOptions": "-Da=b"}])
def test_a_driver_in_a_standalone_cluster_of_spark_3_5_runs_on_java_17(given: dict[str, str]) -> None:
    asked = standalone.request(submit("spark://m:7077", deploy_mode="cluster", conf=given))

    options = asked["sparkProperties"]["spark.driver.defaultJavaOptions"].split()
    assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in options
    assert options[-1] == (given.get("spark.driver.defaultJavaOptions") or "-Djdk.reflect.useDirectMethodHandle=false")


def test_a_jar_in_a_standalone_cluster_is_its_own_driver() -> None:
    asked = standalone.request(
        submit("spark://m:7077", deploy_mode="cluster", application="/a.jar", java_class="x.Y", jars="/b.jar")
    )

    assert (asked["mainClass"], asked["appResource"], asked["appArgs"]) == ("x.Y", "/a.jar", [])
    assert asked["sparkProperties"]["spark.jars"] == "/b.jar,/a.jar"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"master": "spork://m"}, "The Spark master cannot be 'spork://m'"),
        ({"master": "local[2]", "deploy_mode": "cluster"}, "has no deploy mode cluster"),
        ({"conf": {"park.x": 1}}, "does not start with spark."),
        ({"conf": {"spark.executor.memroy": "1g"}}, "did you mean 'spark.executor.memory'?"),
        ({"conf": {"spark.executor.memory": "lots"}}, "write a size such as 512m or 4g"),
        ({"conf": {"spark.sql.shuffle.partitions": "many"}}, "write a whole number"),
        ({"master": "sc://h", "conf": {"spark.a.b": 1}}, "accepts no conf (spark.a.b)"),
        ({"master": "sc://h", "application": "/a.jar"}, "accepts only Python applications"),
        ({"master": "spark://m:1", "deploy_mode": "cluster", "application": "/a.jar"}, "name its main class with java_class"),
    ],
)
def test_an_invalid_command_is_refused_in_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FailTask) as refused:
        submit(**given)

    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_a_standalone_cluster_gets_no_secret_for_its_drivers_command_line() -> None:
    with pytest.raises(FailTask, match=r"spark.my.password is secret"):
        standalone.request(submit("spark://m:7077", deploy_mode="cluster", conf={"spark.my.password": "x"}))


@pytest.mark.parametrize(
    ("uri", "sentence"),
    [
        ("postgres://h", "has the type 'postgres', not spark"),
        ("spark://h?deploi-mode=cluster", "has the unknown key 'deploi-mode'; known are"),
    ],
)
def test_a_connection_that_does_not_fit_is_refused(uri: str, sentence: str) -> None:
    with pytest.raises(FailTask, match=sentence):
        target.choose(None, None, None, Connection.from_uri("c", uri))


@pytest.mark.parametrize("kind", CLUSTERS)
def test_the_example_of_a_master_is_of_its_kind(kind: str) -> None:
    assert target.kind_of(CLUSTERS[kind].example) == kind


def test_a_stored_application_of_a_kind_that_a_later_release_has_is_refused_in_one_sentence() -> None:
    with pytest.raises(UnknownClusterError, match=r"^This worker has no Spark master of the kind 'later' \(later://m\): [^\n]*$"):
        cluster_of("later", "later://m", {}, "cluster", lambda _: None)


def test_keys_of_an_application_itself_are_free() -> None:
    own = {"spark.mine.anything": "x", "spark.executorEnv.PATH": "/bin", "spark.hadoop.fs.s3a.endpoint": "e"}

    assert conf.checked(own) == own


def test_secrets_in_arguments_and_the_environment_are_masked(tmp_path: Path) -> None:
    properties = tmp_path / "spark.properties"
    properties.write_text("# ours\nspark.hadoop.fs.s3a.secret.key = hidden4\nspark.ui.enabled false\nother.key=1\n")
    operator = SparkSubmitOperator(
        task_id="t", application="/a.py", properties_file=str(properties), env_vars={"DB_PASSWORD": "hidden3"},
        application_args=["--db-password=hidden1", "--token", "hidden2", "--secret", "--day", "2026-01-01"],
        conf={"spark.ui.enabled": True},
    )  # fmt: skip
    made = command.submission(operator, Target("local", "local[1]"), tag="tag", name="n")
    line = command.shown(command.argv(made, binary="spark-submit", secrets=["--properties-file", "/s"]))

    assert "hidden" not in line and "2026-01-01" in line
    assert "hidden3" not in secrets_masker.redact("DB_PASSWORD=hidden3")

    assert dict(made.conf) == {"spark.hadoop.fs.s3a.secret.key": "hidden4", "spark.ui.enabled": "true"}
