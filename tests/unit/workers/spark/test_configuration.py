"""The conf of a task, and the part of its own conf that a session accepts."""

from pathlib import Path
from typing import Any

import pytest

from paceline.exceptions import FailTask
from paceline.operators import SparkSubmitOperator
from scheduler.settings import Paths, Settings
from workers.spark import conf
from workers.spark.clusters import command, target

SETTINGS = Settings(paths=Paths(home=Path("/home/p")))


REMOTE = {"spark.master": "spark://m:7077"}


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"spark.driver.memory": "4g"}, "spark.driver.memory", "4g"),
        ({"spark.mine": True}, "spark.mine", "true"),
        ({"spark.count": 3}, "spark.count", "3"),
        ({"spark.sql.warehouse.dir": "/x"}, "spark.sql.warehouse.dir", "/x"),
        (REMOTE, "spark.sql.warehouse.dir", None),
        # Workers of UDFs on other machines serve one task.
        ({"spark.master": "local[2]"}, "spark.python.worker.reuse", None),
        (REMOTE, "spark.python.worker.reuse", "false"),
        # Only a local driver is bound to loopback.
        ({}, "spark.driver.host", "127.0.0.1"),
        (REMOTE, "spark.driver.host", None),
    ],
)
def test_keys_of_a_task_override_ours(given: dict[str, Any], key: str, value: str | None) -> None:
    assert conf.merged(SETTINGS, conf.checked(given)).get(key) == value


def test_a_session_takes_the_keys_that_spark_sql_reads_each_time() -> None:
    own = {
        "spark.sql.shuffle.partitions": 9,
        "spark.sql.warehouse.dir": "/x",
        "spark.executor.memory": "1g",
        "spark.sql.extensions": "x",
    }

    for_jvm, for_session = conf.split(own)

    assert for_session == {"spark.sql.shuffle.partitions": 9}
    assert for_jvm == {key: own[key] for key in ("spark.sql.warehouse.dir", "spark.executor.memory", "spark.sql.extensions")}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"driver.memory": "1g"}, "does not start with spark."),
        ({"": "1g"}, "does not start with spark."),
        ({3: "1g"}, "of type int"),
        ({"spark.driver.memory": "lots"}, "write a size such as 512m or 4g"),
        ({"spark.excutor.memory": "1g"}, "did you mean 'spark.executor.memory'?"),
        ({"spark.x": ["a"]}, "of type list"),
        ({"spark.ui.enabled": ""}, "spark.ui.enabled is empty: write true or false."),
        ({"spark.x=1 spark.y": "a"}, "an equals sign"),
    ],
)
def test_an_invalid_key_or_value_is_one_sentence(own: dict[Any, Any], words: str) -> None:
    """For a session and for an application that is submitted."""
    submitted = SparkSubmitOperator(task_id="t", application="/a.py")
    submitted.conf = own
    for read in (
        lambda: conf.checked(own),
        lambda: command.submission(submitted, target.choose("local", None, None, None), tag="paceline-0-0-0", name="d.t"),
    ):
        with pytest.raises(FailTask, match=r"^[^\n]*$") as caught:
            read()
        assert words in str(caught.value)


def test_properties_keep_characters_that_java_would_change() -> None:
    text = conf.as_properties({"spark.a": "x=1:2 #", "spark.b": "C:\\new\nline", "spark.c": " begins", "spark.é": "ü"})

    assert text == "spark.a=x=1:2 #\nspark.b=C:\\\\new\\nline\nspark.c=\\ begins\nspark.é=ü\n"


@pytest.mark.parametrize("key", conf.FILES)
@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("/nowhere/x.jar", "/nowhere/x.jar of this task is not a file on this worker"),
        ("{there},file:///nowhere/x.jar#alias", "/nowhere/x.jar of this task is not a file on this worker"),
        ("{there}, x.jar", "x.jar of this task is a relative path"),
        ("{there},file:{there}#alias,hdfs://h/x.jar,/nowhere/*.jar", None),
        ("", None),
    ],
)
def test_a_file_in_a_conf_that_does_not_exist_is_one_sentence(tmp_path: Path, key: str, names: str, words: str | None) -> None:
    (tmp_path / "there.jar").touch()
    own = {key: names.format(there=tmp_path / "there.jar")}

    if words is None:
        conf.check(own)
    else:
        with pytest.raises(FailTask, match=r"^[^\n]*$") as caught:
            conf.check(own)
        assert f"The conf {key} " in str(caught.value)
        assert words in str(caught.value)


@pytest.mark.parametrize("own", [{"spark.master": "sc://h:15002"}, {"spark.remote": "sc://h:15002"}])
def test_a_connect_server_is_no_master_of_a_task_with_a_driver_of_its_own(own: dict[str, str]) -> None:
    with pytest.raises(FailTask, match=r"cannot be 'sc://h:15002': .*in conn_id"):
        conf.check(own)
