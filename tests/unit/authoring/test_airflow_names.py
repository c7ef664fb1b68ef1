"""The attributes and methods of tasks, DAGs, groups and `ti` that files for Airflow use."""

import logging
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pendulum
import pytest
from support.tries import NOON, run

from paceline import DAG, BaseOperator, TaskGroup
from paceline.authoring import context, macros, zones
from paceline.authoring.context import DagRun
from paceline.authoring.execution import BaseOperatorLink
from paceline.authoring.retry_policy import ExceptionRetryPolicy, RetryAction, RetryDecision, RetryRule
from paceline.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    DagError,
    DownstreamTasksSkipped,
    PacelineError,
    TaskNotFound,
)
from paceline.operators import EmptyOperator, PythonOperator
from scheduler.serialized import authored
from scheduler.settings import Paths, Settings
from scheduler.testing.in_memory.run import MemoryRun


def diamond() -> DAG:
    with DAG("d", schedule=None, dag_display_name="Diamond", owner_links={"ann": "mailto:ann@example.com"}) as dag:
        first = EmptyOperator(task_id="first", owner="ann")
        with TaskGroup("g") as group:
            left, right = EmptyOperator(task_id="left"), EmptyOperator(task_id="right")
            left >> right
        first >> group >> EmptyOperator(task_id="last")
    return dag


def ids(tasks: Any) -> list[str]:
    return [task.node_id for task in tasks]


def test_relatives_of_a_task() -> None:
    dag = diamond()
    first, left = dag.get_task("first"), dag.get_task("g.left")

    assert ids(left.upstream_list) == ["first"] and ids(left.downstream_list) == ["g.right"]
    assert ids(first.get_direct_relatives()) == ["g.left"] and first.get_direct_relative_ids(upstream=True) == set()
    assert first.get_flat_relative_ids() == {"g.left", "g.right", "last"}
    assert first.get_flat_relative_ids(depth=1) == {"g.left"}
    assert ids(dag.get_task("last").get_flat_relatives(upstream=True)) == ["first", "g.left", "g.right"]
    assert (left.dag_id, left.task_type, left.is_mapped, left.get_dag() is dag) == ("d", "EmptyOperator", False, True)


def test_lists_of_a_dag_and_of_a_group() -> None:
    dag = diamond()
    group: Any = dag.task_group_dict["g"]

    assert ids(dag.roots) == ["first"] and ids(dag.leaves) == ["last"]
    assert ids(dag.topological_sort()) == ["first", "g.left", "g.right", "last"]
    assert dag.has_task("first") and not dag.has_task("g") and dag.has_task_group("g")
    assert ids(group.get_roots()) == ["g.left"] and ids(group.leaves) == ["g.right"]
    assert ids(group.topological_sort()) == ["g.left", "g.right"]
    assert (group.upstream_task_ids, group.downstream_task_ids) == ({"first"}, {"last"})
    assert dag.task_group.is_root and ids(dag.task_group.topological_sort()) == ["first", "g", "last"]
    assert (dag.dag_display_name, dag.owner_links) == ("Diamond", {"ann": "mailto:ann@example.com"})


def test_a_group_as_setup_and_teardown() -> None:
    with DAG("d", schedule=None) as dag:
        with TaskGroup("up") as up:
            EmptyOperator(task_id="a")
        with TaskGroup("down") as down:
            EmptyOperator(task_id="b")
        up.as_setup() >> EmptyOperator(task_id="work") >> down.as_teardown(setups=up)

    assert dag.get_task("up.a").is_setup and dag.get_task("down.b").is_teardown
    assert dag.get_task("down.b").upstream_task_ids == {"up.a", "work"}


def test_a_link_of_an_owner_is_an_address() -> None:
    with pytest.raises(DagError, match=r"the link of owner 'ann' must start with https://"):
        DAG("d", schedule=None, owner_links={"ann": "ann"})


def test_callbacks_are_attributes_of_tasks_and_dags() -> None:
    with DAG("d", schedule=None, on_failure_callback=print) as dag:
        task = EmptyOperator(task_id="t", on_retry_callback=[print, repr])

    assert (dag.on_failure_callback, dag.on_success_callback) == ((print,), ())
    assert task.on_retry_callback == (print, repr)
    task.on_success_callback = print
    assert "on_success" in task.noticed_events


def test_a_date_without_a_zone_is_in_the_default_zone() -> None:
    zones.set_default("Europe/Berlin")
    try:
        with DAG("d", schedule="@daily", start_date=datetime(2026, 7, 1)) as dag:
            task = EmptyOperator(task_id="t", end_date=datetime(2026, 12, 1))
    finally:
        zones.set_default("UTC")

    assert dag.timezone == "Europe/Berlin"
    assert dag.start_date == datetime(2026, 6, 30, 22, tzinfo=UTC) and task.end_date == datetime(2026, 11, 30, 23, tzinfo=UTC)


def test_dates_of_the_context_are_those_of_pendulum() -> None:
    seen: dict[str, Any] = {}
    with DAG("d", schedule=None) as dag:
        PythonOperator(
            task_id="t",
            python_callable=lambda text, **context: seen.update(context, text=text),
            op_args=["{{ logical_date.add(days=1).to_date_string() }} {{ data_interval_end.in_timezone('Asia/Tokyo').hour }}"],
        )

    run(dag.get_task("t"), run_after=NOON)

    assert seen["text"] == "2026-03-05 21"
    assert isinstance(seen["logical_date"], pendulum.DateTime) and seen["data_interval_start"] == NOON


def test_a_moment_of_another_zone_is_converted() -> None:
    moment = context.in_utc(datetime(2026, 3, 4, 12, 0, 0, 7, tzinfo=timezone(timedelta(hours=2))))

    assert moment.isoformat() == "2026-03-04T10:00:00.000007+00:00" and moment.timezone_name == "UTC"


def test_macros() -> None:
    assert macros.ds_add("2026-01-01", 5) == "2026-01-06"
    assert macros.datetime_diff_for_humans(NOON - timedelta(days=1), NOON) == "1 day before"
    assert 0 <= macros.random() < 1
    assert macros.yaml.safe_load("a: 1") == {"a": 1}


class Rendering(BaseOperator):
    template_fields = ("path",)

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def prepare_template(self) -> None:
        self.path = self.path.replace("DATE", "{{ ds }}")

    def execute(self, context: Any) -> Any:
        return [self.path, self.render_template({"a": "{{ ds_nodash }}"}, context)]


def test_an_operator_that_prepares_and_renders_its_templates() -> None:
    with DAG("d", schedule=None) as dag:
        Rendering(task_id="t", path="/data/DATE")

    assert run(dag.get_task("t"))[0] == ["/data/2026-03-04", {"a": "20260304"}]


# ------------------------------------------------------------------ whole runs


def rows(tmp_path: Path, dag: DAG) -> dict[str, dict[str, Any]]:
    """The task instances of a run, by task ID."""
    (tmp_path / "dags").mkdir(exist_ok=True)
    settings = Settings(paths=Paths(home=tmp_path / "home", dags_folder=tmp_path / "dags"))
    plan = authored.from_dag(dag, file="d.py", core=settings.core, scheduler=settings.scheduler)
    dag_run = DagRun(
        dag_id=dag.dag_id, run_id="r", run_type="manual", logical_date=NOON, data_interval_start=NOON, data_interval_end=NOON
    )
    done = MemoryRun(settings, dag, plan, dag_run)
    return {row["task_id"]: row for row in done.rows()}


class Killed(BaseOperator):
    killed: list[str] = []

    def execute(self, context: Any) -> None:
        try:
            time.sleep(30)
        except Exception as error:  # as py4j does
            raise RuntimeError("wrapped") from error

    def on_kill(self) -> None:
        self.killed.append(self.task_id)
        raise ValueError("its error does not hide the timeout")


def test_on_kill_is_called_at_a_timeout(tmp_path: Path) -> None:
    with DAG("d", schedule=None) as dag:
        Killed(task_id="t", execution_timeout=timedelta(seconds=0.05))

    row = rows(tmp_path, dag)["t"]

    assert Killed.killed == ["t"]
    assert row["state"] == "failed" and "execution_timeout" in row["reason"]


def fail(ti: Any, kind: type[Exception]) -> int:
    if ti.try_number == 1:
        raise kind("first try")
    return int(ti.try_number)


class Broken(ExceptionRetryPolicy):
    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("kind", "state", "reason"),
    [
        (KeyError, "failed", "KeyError: 'first try' (never)"),
        (ConnectionResetError, "success", ""),  # a subclass, with a delay of its own
        (AirflowFailException, "failed", "first try"),
        (ValueError, "success", ""),
    ],
)
def test_a_retry_policy_decides_by_the_exception(tmp_path: Path, kind: type[Exception], state: str, reason: str) -> None:
    policy = ExceptionRetryPolicy(
        rules=[
            RetryRule([KeyError, "no.such.Error"], RetryAction.FAIL, reason="never"),
            RetryRule("builtins.ConnectionError", retry_delay=timedelta(seconds=1)),
        ]
    )
    with DAG("d", schedule=None) as dag:
        PythonOperator(task_id="t", python_callable=fail, op_kwargs={"kind": kind}, retries=1, retry_policy=policy)

    row = rows(tmp_path, dag)["t"]

    assert (row["state"], row["reason"]) == (state, reason)


def test_a_broken_retry_policy_is_as_none(tmp_path: Path) -> None:
    with DAG("d", schedule=None) as dag:
        PythonOperator(task_id="t", python_callable=fail, op_kwargs={"kind": OSError}, retries=1, retry_policy=Broken([]))

    assert rows(tmp_path, dag)["t"]["result"] == 2


class Page(BaseOperatorLink):
    name = "Page of the job"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return f"https://jobs.example/{ti_key.run_id}/{operator.task_id}"


class Linking(BaseOperator):
    operator_extra_links = (Page(),)

    def execute(self, context: Any) -> str:
        ti = context["ti"]
        assert ti.task is self and ti.state == "running" and ti.hostname and ti.duration >= 0
        assert ti.get_template_context() is context and ti.log_url.endswith(".log")
        return ti.key.dag_id


def test_extra_links_are_xcoms(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with DAG("d", schedule=None) as dag:
        task = Linking(task_id="t")
        PythonOperator(task_id="after", python_callable=lambda ti: ti.xcom_pull(task_ids="t", key="_link_Page")) << task

    done = rows(tmp_path, dag)

    assert done["t"]["result"] == "d" and done["after"]["result"] == "https://jobs.example/r/t"
    assert "Page of the job: https://jobs.example/r/t" in caplog.text


class Choosing(BaseOperator):
    branches = True

    def execute(self, context: Any) -> None:
        raise DownstreamTasksSkipped(tasks=["no"])


def reschedule(ti: Any) -> int:
    if ti.now() < ti.start_date + timedelta(milliseconds=5):
        raise AirflowRescheduleException(ti.now() + timedelta(milliseconds=10))
    return int(ti.try_number)


def test_exceptions_that_decide_the_end_of_a_try(tmp_path: Path) -> None:
    with DAG("d", schedule=None) as dag:
        Choosing(task_id="t") >> [EmptyOperator(task_id="yes"), EmptyOperator(task_id="no")]
        PythonOperator(task_id="again", python_callable=reschedule)

    done = rows(tmp_path, dag)

    assert {name: done[name]["state"] for name in ("t", "yes", "no")} == {"t": "success", "yes": "success", "no": "skipped"}
    assert done["again"]["result"] == 1


def test_the_names_of_airflows_errors() -> None:
    with pytest.raises(TaskNotFound):
        diamond().get_task("none")
    assert issubclass(AirflowFailException, PacelineError)


def test_a_dag_has_its_folder_owners_and_teardowns_and_names_replacements_for_the_rest() -> None:
    with DAG("d") as dag:
        EmptyOperator(task_id="a", owner="zoe") >> EmptyOperator(task_id="b", owner="ann").as_teardown()

    assert dag.folder == str(Path(__file__).parent) and dag.owner == "ann, zoe"
    assert [task.task_id for task in dag.teardowns] == ["b"]
    with pytest.raises(AttributeError, match="A DAG has no attribute 'task': write @task inside of `with dag:`"):
        dag.task  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(dag, "nonsense")
