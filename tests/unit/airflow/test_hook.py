"""Files that were written for Apache Airflow load unchanged with the import hook, on Paceline's classes."""

import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.airflow import hook
from paceline.authoring import arguments
from paceline.authoring.dag import DAG
from paceline.exceptions import PacelineError
from scheduler.dagfiles import load
from scheduler.dagfiles.problem import of_exception


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    path, modules, finders = list(sys.path), set(sys.modules), list(sys.meta_path)
    yield
    hook.remove()
    sys.path[:], sys.meta_path[:] = path, finders
    for name in {name for name in set(sys.modules) - modules if not name.startswith(("paceline", "scheduler"))}:
        del sys.modules[name]


def loaded(folder: Path, source: str) -> dict[str, DAG]:
    (folder / "d.py").write_text(textwrap.dedent(source))
    load.configure("UTC", airflow_imports=True)
    return load.load(folder, "d.py")


def message(folder: Path, source: str) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the message is judged
        loaded(folder, source)
    return of_exception(caught.value, folder / "d.py", memory_limit_mb=100).message


def test_a_file_of_airflow_3_loads_unchanged(tmp_path: Path) -> None:
    dags = loaded(
        tmp_path,
        """
        from datetime import UTC, datetime

        from airflow.providers.standard.operators.bash import BashOperator
        from airflow.providers.standard.operators.empty import EmptyOperator
        from airflow.sdk import DAG, Asset, chain, dag, task, task_group
        from airflow.sdk.exceptions import AirflowSkipException

        with DAG("classic", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC)):
            chain(BashOperator(task_id="a", bash_command="ls"), EmptyOperator(task_id="b"))

        @dag(schedule=[Asset("s3://in")])
        def flow():
            @task
            def f():
                raise AirflowSkipException

            @task_group
            def g():
                f()

            g()

        flow()
        """,
    )

    assert {name: dag.task_ids for name, dag in dags.items()} == {"classic": ["a", "b"], "flow": ["g.f"]}
    assert all(isinstance(dag, paceline.DAG) for dag in dags.values())


def test_a_file_of_airflow_2_loads_with_its_arguments(tmp_path: Path) -> None:
    dags = loaded(
        tmp_path,
        """
        from airflow import DAG
        from airflow.models import Variable
        from airflow.operators.dummy import DummyOperator
        from airflow.operators.python import PythonOperator
        from airflow.sensors.time_delta import TimeDeltaSensorAsync
        from airflow.utils import timezone
        from airflow.utils.dates import days_ago
        from airflow.utils.decorators import apply_defaults
        from airflow.utils.task_group import TaskGroup
        from airflow.utils.trigger_rule import TriggerRule
        import airflow.utils.state

        args = {"owner": "me", "start_date": timezone.datetime(2026, 1, 1), "provide_context": True, "retires": 1}
        with DAG("d", default_args=args, schedule_interval="@hourly", concurrency=3, default_view="graph") as dag:
            with TaskGroup("g"):
                PythonOperator(task_id="a", python_callable=print, provide_context=True, task_concurrency=2)
            DummyOperator(task_id="b", trigger_rule=TriggerRule.ALL_DONE)
            TimeDeltaSensorAsync(task_id="c", delta=days_ago(1) - days_ago(2))
        assert airflow.utils.state.State.SUCCESS == "success"
        """,
    )

    dag = dags["d"]
    assert (dag.schedule, dag.max_active_tasks) == ("@hourly", 3)
    assert dag.task_ids == ["g.a", "b", "c"] and dag.get_task("g.a").max_active_tis_per_dag == 2
    assert [type(task).__name__ for task in dag.tasks] == ["PythonOperator", "EmptyOperator", "TimeDeltaSensorAsync"]
    assert vars(dag.get_task("c"))["deferrable"] is True


def test_errors_have_the_line_of_the_file(tmp_path: Path) -> None:
    assert "unknown argument 'schedul'" in message(tmp_path, "from airflow import DAG\nDAG('d', schedul=None)\n")


def test_names_that_are_not_supported_are_named_with_a_replacement(tmp_path: Path) -> None:
    text = message(
        tmp_path,
        """\
        from airflow.sdk import DAG, Nope
        from airflow.models import XCom
        from airflow.contrib.operators.ssh_operator import SSHOperator
        import airflow.providers.google
        """,
    )

    assert text.splitlines() == [
        "Correct these imports:",
        "line 1: Paceline has no Nope: define what you need of it in a module of the DAGs folder.",
        "line 2: Paceline has no XCom: use ti.xcom_pull and ti.xcom_push.",
        "line 3: Paceline has no counterpart of airflow.contrib.operators.ssh_operator, which is"
        " airflow.providers.ssh.operators.ssh now: import that module, and install its package next to Paceline with `pip install"
        " --no-deps apache-airflow-providers-ssh`, or use the Python client of the service in a @task function.",
        "line 4: Paceline has no counterpart of airflow.providers.google: install its package next to Paceline with `pip install"
        " --no-deps apache-airflow-providers-google`, or use the Python client of the service in a @task function.",
    ]


def test_a_wrong_import_of_a_module_of_the_folder_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "lib_of_it.py").write_text("import os\nfrom airflow.models import XCom\n")

    assert message(tmp_path, "import lib_of_it\n") == (
        "lib_of_it.py, line 2: Paceline has no XCom: use ti.xcom_pull and ti.xcom_push."
    )


def test_an_installed_provider_package_is_not_blamed(tmp_path: Path) -> None:
    package = tmp_path / "airflow" / "providers" / "thing"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")

    text = message(tmp_path, "from airflow.providers.thing import __name__\nfrom airflow.models import XCom\n")

    assert text == "Paceline has no XCom: use ti.xcom_pull and ti.xcom_push."


def test_a_file_of_airflow_1_and_2_loads(tmp_path: Path) -> None:
    dags = loaded(
        tmp_path,
        """
        from airflow import DAG
        from airflow.contrib.operators.spark_submit_operator import SparkSubmitOperator
        from airflow.contrib.sensors.file_sensor import FileSensor
        from airflow.models.xcom import LazyXComAccess
        from airflow.operators.email import EmailOperator
        from airflow.operators.python import PythonOperator
        from airflow.sensors.external_task_sensor import ExternalTaskSensor
        from airflow.utils.email import send_email

        def read(ti): ...

        with DAG("d", schedule_interval=None) as dag:
            PythonOperator(task_id="a", python_callable=read, op_kwargs={"not_a_parameter": 1})
            PythonOperator.partial(task_id="b", python_callable=read).expand(op_kwargs=[{"not_a_parameter": 1}])
            EmailOperator(task_id="c", to="a@example.org", subject="{{ ds }}", html_content="x")
        """,
    )

    assert dags["d"].get_task("a").op_kwargs == {}
    assert dags["d"].task_ids == ["a", "b", "c"]


def test_a_module_of_helpers_may_hold_tasks(tmp_path: Path) -> None:
    assert loaded(tmp_path, "from airflow.decorators import task\n@task\ndef a(): ...\na_task = a()\n") == {}


def test_a_file_may_catch_the_error_of_an_import(tmp_path: Path) -> None:
    dags = loaded(
        tmp_path,
        """
        try:
            from airflow.sdk import NotThereYet
        except ImportError:
            NotThereYet = None
        from airflow.sdk import DAG
        import airflow
        assert not hasattr(airflow, "nope") and airflow.__version__.startswith("3.")
        assert airflow.sdk.__version__.startswith("1.")
        d = DAG("d")
        """,
    )

    assert list(dags) == ["d"]


def test_all_names_of_a_module_can_be_imported(tmp_path: Path) -> None:
    dags = loaded(
        tmp_path, "from airflow.operators.python import *\nfrom airflow.models.dag import *\nd, _ = DAG('d'), PythonOperator\n"
    )

    assert list(dags) == ["d"]


def test_a_provider_package_is_found_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Provider packages have no airflow/__init__.py, so their folders join those of the package `airflow`."""
    package = tmp_path / "site" / "airflow" / "providers" / "acme"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "operators.py").write_text(
        "from airflow.sdk import BaseOperator\n\nclass AcmeOperator(BaseOperator):\n    def execute(self, context): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")

    dags = loaded(
        tmp_path,
        "from airflow.sdk import DAG\nfrom airflow.providers.acme.operators import AcmeOperator\n"
        "from airflow.providers.standard.operators.bash import BashOperator\n"
        "with DAG('d'): AcmeOperator(task_id='t')\n",
    )

    assert dags["d"].task_ids == ["t"]


DECORATOR = """
from airflow.sdk import BaseOperator
from airflow.sdk.bases.decorator import DecoratedOperator, context_merge, determine_kwargs, task_decorator_factory

class AcmeOperator(BaseOperator):
    template_fields = ("query",)
    def __init__(self, *, query, times=1, **kwargs):
        super().__init__(**kwargs)
        self.query, self.times = query, times
    def execute(self, context):
        return [self.query] * self.times

class DecoratedAcme(DecoratedOperator, AcmeOperator):
    template_fields = (*DecoratedOperator.template_fields, *AcmeOperator.template_fields)
    def __init__(self, *, python_callable, **kwargs):
        super().__init__(python_callable=python_callable, query=None, **kwargs)
    def execute(self, context):
        context_merge(context, self.op_kwargs)
        self.query = self.python_callable(*self.op_args, **determine_kwargs(self.python_callable, self.op_args, context))
        return AcmeOperator.execute(self, context)

def acme_task(python_callable=None, **kwargs):
    return task_decorator_factory(python_callable, decorated_operator_class=DecoratedAcme, **kwargs)

def info():
    return {"task-decorators": [{"name": "acme", "class-name": "airflow.providers.acme.acme_task"}]}
"""


def test_a_decorator_of_a_provider_package_makes_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, about = tmp_path / "site" / "airflow" / "providers" / "acme", tmp_path / "site" / "acme-1.0.dist-info"
    package.mkdir(parents=True)
    about.mkdir()
    (package / "__init__.py").write_text(DECORATOR)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[apache_airflow_provider]\nprovider_info = airflow.providers.acme:info\n")
    monkeypatch.syspath_prepend(tmp_path / "site")

    dag = loaded(
        tmp_path,
        """
        from airflow.sdk import DAG, task
        with DAG("d"):
            @task.acme(times=2)
            def one(n, ds=None): return f"select {n} {ds}"
            one(3)
            @task.acme
            def two(): return "select"
            two()
        """,
    )["d"]

    assert dag.task_ids == ["one", "two"]
    assert dag.get_task("one").execute({"ds": "2026-01-01", "other": 1}) == ["select 3 2026-01-01"] * 2
    assert dag.get_task("two").execute({}) == ["select"]


def test_an_installed_airflow_is_never_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "airflow").mkdir(parents=True)
    (tmp_path / "site" / "airflow" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")

    with pytest.raises(PacelineError) as caught:
        load.configure("UTC", airflow_imports=True)

    assert str(caught.value) == (
        f"Apache Airflow is installed in {tmp_path}/site/airflow, and core.airflow_imports would hide it: uninstall Airflow from"
        " this environment, or set core.airflow_imports to false."
    )
    assert not hook.is_installed()


def test_without_the_setting_nothing_answers(tmp_path: Path) -> None:
    load.configure("UTC", airflow_imports=False)
    (tmp_path / "d.py").write_text("from airflow import DAG\nDAG('d')\n")

    with pytest.raises(ModuleNotFoundError, match="No module named 'airflow'"):
        load.load(tmp_path, "d.py")
    assert not arguments.ACCEPTED


def test_an_unchanged_file_has_the_dates_of_airflow_2_in_its_context(tmp_path: Path, run_dag: Any) -> None:
    dag = loaded(
        tmp_path,
        """
        from airflow import DAG
        from airflow.operators.bash import BashOperator
        from airflow.operators.python import PythonOperator

        def dates(execution_date, next_ds_nodash, **context):
            return [str(execution_date), next_ds_nodash, context["yesterday_ds"], context["prev_execution_date"] == execution_date]

        with DAG("d", schedule_interval="@daily") as dag:
            BashOperator(task_id="shell", bash_command="echo {{ execution_date }} {{ prev_ds }} {{ tomorrow_ds_nodash }}")
            PythonOperator(task_id="python", python_callable=dates)
        """,
    )["d"]
    day = datetime(2026, 3, 1, tzinfo=UTC)

    scheduled = run_dag(dag, logical_date=day, run_type="scheduled", data_interval=(day, day + timedelta(days=1)))
    by_hand = run_dag(dag, logical_date=day)

    assert scheduled.xcoms["shell"] == "2026-03-01 00:00:00+00:00 2026-02-28 20260302"
    assert scheduled.xcoms["python"] == ["2026-03-01 00:00:00+00:00", "20260302", "2026-02-28", False]
    assert by_hand.xcoms["shell"] == "2026-03-01 00:00:00+00:00 2026-03-01 20260302" and by_hand.xcoms["python"][3]


def test_a_module_is_found_without_its_own_import(tmp_path: Path) -> None:
    source = """
        import airflow
        from airflow.settings import TIMEZONE

        start = airflow.utils.dates.days_ago(1).astimezone(TIMEZONE)
        dag = airflow.DAG("d", schedule=None, start_date=start)
        """

    assert loaded(tmp_path, source)["d"].timezone == "UTC"
    assert "airflow.utils has no 'nothing' here" in message(tmp_path, "import airflow\nairflow.utils.nothing")


def test_a_session_is_refused_with_the_reason(tmp_path: Path) -> None:
    assert message(tmp_path, "from airflow.settings import Session").startswith(
        "Paceline has no Session: a task has no access to the"
    )
