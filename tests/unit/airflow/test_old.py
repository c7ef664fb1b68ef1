"""Files that speak Airflow 2 have its data intervals."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.airflow import hook
from paceline.airflow.hook import speaks_airflow_2
from scheduler.dagfiles.load import forget, load
from scheduler.dagfiles.migrate.folder import rewrite
from scheduler.serialized.authored import from_dag
from scheduler.settings import Core, Scheduler

OLD = "from airflow.operators.bash import BashOperator\nfrom airflow import DAG\n"
NEW = "from airflow.sdk import DAG\nfrom airflow.providers.standard.operators.bash import BashOperator\n"
EITHER = "from airflow import DAG\nfrom airflow.decorators import task\n"


@pytest.fixture
def hooked() -> Iterator[None]:
    hook.install()
    yield
    hook.remove()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (OLD + "dag = DAG('d', schedule_interval='@daily')", "cron_interval"),
        (OLD + "dag = DAG('d', schedule='0 3 * * *')", "cron_interval"),
        (EITHER + "dag = DAG('d', schedule_interval='@daily')", "cron_interval"),
        (EITHER + "dag = DAG(**{'dag_id': 'd', 'schedule_interval': '@daily'})", "cron_interval"),
        (EITHER + "from datetime import timedelta\ndag = DAG('d', schedule_interval=timedelta(days=1))", "delta_interval"),
        (EITHER + "dag = DAG('d', schedule='@daily')\n@task\ndef t(execution_date=None): ...", "cron_interval"),
        (EITHER + "dag = DAG('d', schedule='@daily', description='{{ next_ds }}')", "cron_interval"),
        (EITHER + "dag = DAG('d', schedule='@daily')", "cron"),
        (NEW + "dag = DAG('d', schedule='@daily')", "cron"),
        (OLD + "dag = DAG('d', schedule_interval=None)", "never"),
        (OLD + "dag = DAG('d', schedule_interval='@once')", "once"),
        ("from paceline import DAG\ndag = DAG('d', schedule='@daily')", "cron"),
    ],
)
def test_a_schedule_has_the_intervals_of_the_airflow_that_the_file_speaks(
    source: str, kind: str, tmp_path: Path, hooked: None
) -> None:
    (tmp_path / "d.py").write_text(source)
    try:
        (dag,) = load(tmp_path, "d.py").values()
    finally:
        forget(tmp_path, "d.py")

    assert from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler()).schedule["kind"] == kind


def test_a_dag_of_a_module_that_speaks_airflow_2_has_its_intervals(
    tmp_path: Path, hooked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "factory_of_old_dags.py").write_text(OLD + "def make(): return DAG('d', schedule='@daily')")
    (tmp_path / "d.py").write_text("from factory_of_old_dags import make\ndag = make()")
    (dag,) = load(tmp_path, "d.py").values()
    forget(tmp_path, "d.py")

    assert dag.has_airflow_2_dates


def test_the_rewrite_of_a_file_of_airflow_2_warns_of_its_dates() -> None:
    rewritten = rewrite((OLD + "dag = DAG('d', schedule_interval='@daily')").encode())

    (note,) = rewritten.unsupported
    assert (note.line, "scheduler.create_cron_data_intervals" in note.text) == (3, True)
    for quiet in (OLD + "dag = DAG('d', schedule_interval=None)", NEW + "dag = DAG('d', schedule='@daily')"):
        assert not rewrite(quiet.encode()).unsupported
    assert not speaks_airflow_2(rewritten.content)
