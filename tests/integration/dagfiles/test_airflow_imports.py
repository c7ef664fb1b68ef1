"""The processes that load DAG files provide Airflow's modules if the setting is on."""

from pathlib import Path

from scheduler.dagfiles.answers import Answer
from scheduler.dagfiles.callback_host import CallbackHost
from scheduler.dagfiles.parser import Parser
from scheduler.settings import Settings

SOURCE = """\
from airflow import DAG
from airflow.operators.dummy import DummyOperator

with DAG("old", schedule_interval="@daily", on_failure_callback=print):
    DummyOperator(task_id="a")
"""


def settings_of(folder: Path, *, airflow_imports: bool) -> Settings:
    (folder / "dags").mkdir()
    (folder / "dags" / "d.py").write_text(SOURCE)
    return Settings.load(
        {
            "PACELINE_HOME": str(folder / "home"),
            "PACELINE_DAGS_FOLDER": str(folder / "dags"),
            "PACELINE_CORE_AIRFLOW_IMPORTS": str(airflow_imports).lower(),
        }
    )


def parsed(settings: Settings) -> Answer:
    parser = Parser(settings)
    try:
        parser.submit(["d.py"])
        while not (answers := parser.collect()):
            assert parser.wait(30)
        return answers[0]
    finally:
        parser.stop()


def test_the_parser_answers_them_if_they_are_on(tmp_path: Path) -> None:
    answer = parsed(settings_of(tmp_path, airflow_imports=True))

    assert (answer.problem, [row.dag_id for row in answer.dags]) == (None, ["old"])


def test_they_are_off_by_default(tmp_path: Path) -> None:
    answer = parsed(settings_of(tmp_path, airflow_imports=False))

    assert answer.problem is not None
    assert answer.problem.message.splitlines()[:2] == [
        "Correct these imports:",
        "line 1: Airflow is not installed; write `from paceline import DAG`.",
    ]


def test_callbacks_run_in_such_a_file(tmp_path: Path) -> None:
    host = CallbackHost(settings_of(tmp_path, airflow_imports=True))
    try:
        assert host.open("d.py", str(tmp_path / "log")) is None
        host.close()
    finally:
        host.kill()
