"""The pytest plugin, as the tests of a DAG repository use it."""

import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline import DAG, BaseHook, BaseNotifier, BaseOperator, Connection, SkipMixin, Variable, task
from paceline.authoring import dag as authoring_dag
from paceline.exceptions import DagError, FailTask, NotFoundError, PacelineError, SkipTask
from paceline.operators import BashOperator, EmptyOperator, TriggerDagRunOperator
from paceline.testing.results import RunResult, TaskResult
from paceline.triggers import DateTimeTrigger
from scheduler.testing import runs
from scheduler.testing.plugin import DagMaker, InEnvironment

DATE = datetime(2026, 3, 4, tzinfo=UTC)
Run = Callable[..., RunResult]
RunTask = Callable[..., TaskResult]


def pipeline(maker: DagMaker) -> DAG:
    with maker("etl", params={"limit": 2}) as dag:

        @task
        def extract(params: Any = None) -> list[int]:
            return list(range(params["limit"]))

        @task
        def double(number: int) -> int:
            return 2 * number

        @task
        def load(numbers: list[int], ds: str = "") -> str:
            return f"{sum(numbers)} on {ds}"

        load(double.expand(number=extract())) >> BashOperator(task_id="echo", bash_command="echo {{ params.limit }} {{ ds }}")
    return dag


def test_a_run_has_states_xcoms_and_order(dag_maker: DagMaker, run_dag: Run) -> None:
    dag = pipeline(dag_maker)

    result = run_dag(dag, logical_date=DATE, conf={"limit": 3})

    assert result.success and result.order == ["extract", "double[0]", "double[1]", "double[2]", "load", "echo"]
    assert result.states["double[2]"] == "success" and result.xcoms["load"] == "6 on 2026-03-04"
    assert result.all_xcoms["echo"] == {"return_value": "3 2026-03-04"}
    assert result["load"].success and result["load"].result == "6 on 2026-03-04" and result["double", 2] == result["double[2]"]
    with pytest.raises(KeyError, match="no task instance 'double'; it has extract, double"):
        result["double"]
    result.raise_for_failure()


def test_a_task_reads_names_of_airflow_and_gets_the_replacements_of_missing_ones(dag_maker: DagMaker, run_dag: Run) -> None:
    with dag_maker("d") as dag:

        @task(task_display_name="First")
        def first(ti: Any = None, dag_run: Any = None, logical_date: Any = None) -> list[Any]:
            assert ti.dag_run is dag_run is ti.get_dagrun() and ti.execution_date == dag_run.execution_date == logical_date
            assert ti.logical_date.add(days=1) > logical_date
            with pytest.raises(AttributeError, match="a task does not read other runs and tasks; use ExternalTaskSensor"):
                ti.get_previous_ti()
            with pytest.raises(
                AttributeError, match="dag_run, has no attribute 'note': the notes of runs are read by the REST API"
            ):
                dag_run.note  # noqa: B018
            return [
                ti.task_display_name,
                ti.operator,
                ti.priority_weight,
                dag_run.state,
                dag_run.end_date,
                dag_run.external_trigger,
            ]

        first()

    result = run_dag(dag, logical_date=DATE)

    result.raise_for_failure()
    assert result.xcoms["first"] == ["First", "PythonOperator", 1, "running", None, True]


class Noted(BaseOperator):
    """Overrides all that is called around its work, and waits for a trigger in between."""

    calls: ClassVar[list[str]] = []

    def pre_execute(self, context: Any) -> None:
        self.calls.append("pre")

    def execute(self, context: Any) -> None:
        self.defer(trigger=DateTimeTrigger(DATE), method_name="go_on")

    def go_on(self, context: Any, event: Any = None) -> int:
        return 3

    def post_execute(self, context: Any, result: object = None) -> None:
        self.calls.append(f"post {result}")


def test_functions_and_methods_around_the_work_are_all_called(dag_maker: DagMaker) -> None:
    Noted.calls.clear()
    with dag_maker("d"):
        Noted(
            task_id="noted",
            pre_execute=lambda context: Noted.calls.append("function before"),
            post_execute=lambda context, result: Noted.calls.append(f"function after {result}"),
        )

    assert dag_maker.run().success
    assert Noted.calls == ["function before", "pre", "function before", "pre", "function after 3", "post 3"]


def test_a_task_sees_no_change_that_another_one_made_to_conf_and_params(dag_maker: DagMaker, run_dag: Run) -> None:
    with dag_maker("d", params={"p": [1], "c": []}) as dag:

        @task
        def first(dag_run: Any = None, params: Any = None) -> None:
            dag_run.conf["c"].append(2)
            params["p"].append(2)

        @task
        def second(dag_run: Any = None, params: Any = None) -> list[Any]:
            return [dag_run.conf, params["p"]]

        first() >> second()

    assert run_dag(dag, conf={"c": [1]}).xcoms["second"] == [{"c": [1]}, [1]]


def test_a_failed_run_has_reasons_and_the_exception(dag_maker: DagMaker) -> None:
    with dag_maker():

        @task
        def broken() -> None:
            raise KeyError("x")

        broken() >> EmptyOperator(task_id="after")

    result = dag_maker.run()

    assert result.failed and result.states == {"broken": "failed", "after": "upstream_failed"}
    assert "KeyError" in result.reasons["broken"] and isinstance(result.errors["broken"], KeyError)
    with pytest.raises(KeyError):
        result.raise_for_failure()


def test_one_task_runs_alone(dag_maker: DagMaker, run_task: RunTask) -> None:
    dag = pipeline(dag_maker)

    assert run_task(dag.get_task("load"), xcoms={"double": [4, 5]}, logical_date=DATE).result == "9 on 2026-03-04"
    mapped = run_task(dag, "double", xcoms={"extract": [7, 8]})
    assert mapped.success and mapped.result == [14, 16] and mapped.xcoms == {"return_value": 14}
    with pytest.raises(NotFoundError, match="did you mean 'extract'"):
        run_task(dag, "load", xcoms={"extrakt": 1})
    with pytest.raises(PacelineError, match="A task is needed, not 'load'"):
        run_task("load")


def test_an_operator_outside_of_a_dag_runs_alone(run_task: RunTask, render_task: Callable[..., Any]) -> None:
    operator = BashOperator(task_id="echo", bash_command="echo {{ ds }} {{ params.p }}", params={"p": 1})

    assert render_task(operator, logical_date=DATE)["bash_command"] == "echo 2026-03-04 1"
    assert run_task(operator, logical_date=DATE).result == "2026-03-04 1"


def test_a_date_without_a_time_zone_is_in_the_default_one(
    dag_maker: DagMaker, task_context: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in that of the machine."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        context = task_context(pipeline(dag_maker), "echo", logical_date=datetime(2026, 3, 4))
    finally:
        monkeypatch.undo()
        time.tzset()

    assert (context["ds"], context["run_id"]) == ("2026-03-04", "test__2026-03-04T00:00:00+00:00")


def test_a_date_that_is_no_datetime_is_refused(dag_maker: DagMaker, run_dag: Run) -> None:
    with pytest.raises(DagError, match=r"A run of DAG 'etl': logical_date must be a datetime.*not '2026-03-04' \(str\)"):
        run_dag(pipeline(dag_maker), logical_date="2026-03-04")


def test_one_task_that_fails_branches_or_waits(dag_maker: DagMaker, run_task: RunTask) -> None:
    with dag_maker():

        @task(retries=2, retry_delay=60)
        def flaky(ti: Any = None) -> int:
            if ti.try_number < 2:
                raise OSError("once")
            return int(ti.try_number)

        @task.branch
        def choose() -> str:
            return "left"

        @task.sensor(poke_interval=0.01, mode="reschedule")
        def later(ti: Any = None) -> bool:
            return bool(ti.resume)

        tasks = flaky(), choose(), later()
        tasks[1] >> [EmptyOperator(task_id="left"), EmptyOperator(task_id="right")]

    assert run_task(tasks[0]).state == "failed"
    again = run_task(tasks[0], retries=True)
    assert again.result == 2 and isinstance(again.error, OSError)
    assert run_task(tasks[1]).skipped == ("right",)
    assert run_task(tasks[2]).success


def test_templates_and_context_of_one_task(
    dag_maker: DagMaker, render_task: Callable[..., Any], task_context: Callable[..., Any]
) -> None:
    dag = pipeline(dag_maker)

    assert render_task(dag, "echo", logical_date=DATE)["bash_command"] == "echo 2 2026-03-04"
    assert render_task(dag, "double", xcoms={"extract": [7, 8]}, map_index=1)["op_kwargs"] == {"number": 8}
    context = task_context(dag, "echo", conf={"limit": 5}, logical_date=DATE)
    assert (context["ds"], context["params"]["limit"], context["task"].task_id) == ("2026-03-04", 5, "echo")


def test_a_coroutine_reads_and_writes_xcoms_and_state(dag_maker: DagMaker) -> None:
    with dag_maker():

        @task
        async def first(ti: Any = None, task_state_store: Any = None) -> Any:
            await ti.axcom_push("rows", 3)
            await task_state_store.aset("page", 7)
            return await task_state_store.aget("page")

        @task
        async def second(ti: Any = None) -> Any:
            return await ti.axcom_pull("first", key="rows")

        first() >> second()

    result = dag_maker.run()

    assert (result.xcoms["first"], result.xcoms["second"]) == (7, 3)


def test_only_commands_have_the_context_in_their_environment(dag_maker: DagMaker) -> None:
    with dag_maker("d"):

        @task
        def python() -> str | None:
            return os.environ.get("AIRFLOW_CTX_DAG_ID")

        python()
        BashOperator(task_id="command", bash_command="echo $AIRFLOW_CTX_DAG_ID")

    result = dag_maker.run()

    assert (result.xcoms.get("python"), result.xcoms["command"]) == (None, "d")


def test_an_operator_of_a_repository_skips_with_any_order_of_its_base_classes(dag_maker: DagMaker) -> None:
    class Mine(BaseOperator, SkipMixin):
        def execute(self, context: Any) -> None:
            self.skip(context["ti"], ["below"])

    with dag_maker():
        Mine(task_id="mine") >> EmptyOperator(task_id="below")

    assert dag_maker.run().states == {"mine": "success", "below": "skipped"}


def test_a_run_of_another_dag_is_noted_and_not_made(dag_maker: DagMaker) -> None:
    with dag_maker():
        TriggerDagRunOperator(task_id="start", trigger_dag_id="other", trigger_run_id="{{ ds }}", conf={"n": 1}, logical_date=DATE)
        TriggerDagRunOperator(task_id="wait", trigger_dag_id="other", wait_for_completion=True)

    result = dag_maker.run(logical_date=DATE)

    assert result.states == {"start": "success", "wait": "failed"}
    assert [(one.dag_id, one.conf) for one in result.triggered] == [("other", {"n": 1}), ("other", {})]
    assert (result.triggered[0].run_id, result.triggered[0].logical_date) == ("2026-03-04", DATE)
    assert "it cannot look at DAG 'other'" in result.reasons["wait"]


def test_variables_and_connections(
    dag_maker: DagMaker, run_task: RunTask, airflow_variables: InEnvironment, airflow_connections: InEnvironment
) -> None:
    airflow_variables({"depth": {"a": 1}})
    airflow_connections["db"] = {"conn_type": "postgres", "host": "h"}
    with dag_maker():

        @task
        def read() -> list[Any]:
            return [Variable.get("depth", deserialize_json=True), Connection.get("db").host]

        found = read()

    assert run_task(found).result == [{"a": 1}, "h"]
    airflow_connections({"db": {"host": "h"}})  # of the type `generic`
    assert run_task(found).success
    assert dict(airflow_variables) == {"depth": '{"a": 1}'}
    del airflow_variables["depth"]
    assert not run_task(found).success


def test_variables_and_connections_in_the_body_of_a_test(
    airflow_variables: InEnvironment, airflow_connections: InEnvironment
) -> None:
    airflow_variables({"depth": "3"})
    airflow_connections["db"] = {"conn_type": "postgres", "host": "h"}

    Variable.set("other", "4")

    assert [Variable.get("depth"), Variable.get("other"), BaseHook.get_connection("db").host] == ["3", "4", "h"]
    with pytest.raises(NotFoundError, match="no connection 'none'"):
        BaseHook.get_connection("none")


def test_without_the_fixtures_a_test_has_no_variables() -> None:
    with pytest.raises(PacelineError, match="works only while a task runs"):
        Variable.get("depth")


class Note(BaseNotifier):
    """A notifier that remembers its calls."""

    template_fields = ("text",)
    sent: ClassVar[list[str]] = []

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


def test_callbacks_and_notifiers_are_called_as_by_the_engine(dag_maker: DagMaker, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []

    def called(context: Any) -> None:
        ti = context["ti"]
        calls.append((ti.task_id, ti.state, ti.try_number, repr(context["exception"])))

    def broken(context: Any) -> None:
        raise ValueError("not sent")

    def quits(context: Any) -> None:
        sys.exit(3)

    Note.sent.clear()
    ended = {"on_success_callback": [broken, quits, called], "on_failure_callback": called, "on_skipped_callback": called}
    with dag_maker("d", on_failure_callback=Note("{{ dag.dag_id }} {{ run_id }}"), on_success_callback=called):

        @task(retries=1, on_execute_callback=called, on_retry_callback=called, **ended)
        def flaky(ti: Any = None) -> None:
            calls.append("runs")
            if ti.try_number == 1:
                raise RuntimeError("no luck")

        @task(**ended)
        def skips() -> None:
            raise SkipTask

        @task(**ended)
        def fails() -> None:
            raise FailTask("broken")

        [flaky(), skips()] >> fails.override(trigger_rule="all_done")() >> EmptyOperator(task_id="below", **ended)

    result = dag_maker.run(run_id="r", retries=True)

    assert result.failed and Note.sent == ["d r"]
    assert calls == [
        ("flaky", "running", 1, "None"), "runs", ("flaky", "up_for_retry", 1, "RuntimeError('no luck')"),
        ("skips", "skipped", 1, "None"),
        ("flaky", "running", 2, "None"), "runs", ("flaky", "success", 2, "None"), ("fails", "failed", 1, "PacelineError('broken')"),
    ]  # fmt: skip
    assert "callback" in (printed := capsys.readouterr().err) and "ValueError: not sent" in printed and "SystemExit: 3" in printed


def test_13_tasks_take_less_than_half_a_second(dag_maker: DagMaker, run_dag: Run) -> None:
    with dag_maker():

        @task
        def one(*numbers: int) -> int:
            return sum(numbers) + 1

        first = one()
        last = one(*[one(first) for _ in range(11)])
    started = time.perf_counter()

    assert run_dag(last.operator.dag).xcoms["one__12"] == 23
    # A generous limit: other work shares the machine. 0.01 s were measured.
    assert time.perf_counter() - started < 5


def test_a_dag_tests_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    with DAG("d", schedule=None) as dag:
        EmptyOperator(task_id="t")

    assert dag.test(DATE).success
    assert capsys.readouterr().out == "t: success\n"


def test_a_dag_without_the_entry_point_of_its_installation_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authoring_dag, "DAG_TEST", "paceline.missing")

    with pytest.raises(
        NotFoundError, match=r"has an entry point 'paceline.missing', which dag.test\(\) calls: install Paceline again"
    ):
        DAG("d", schedule=None).test()


def test_the_run_of_a_result_without_an_exception_has_its_reasons() -> None:
    result = RunResult(
        dag_id="d", run_id="r", state="failed", order=["a"], states={"a": "failed"}, xcoms={}, all_xcoms={},
        reasons={"a": "why"}, durations={},
    )  # fmt: skip

    with pytest.raises(PacelineError, match=r"The run r of DAG 'd' is failed\. a: failed \(why\)"):
        result.raise_for_failure()
    assert runs.end_spark() is None
