"""Mistakes in a DAG file: each is one sentence with the author's file and line."""

import inspect
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from paceline import DAG, AssetWatcher, BaseOperator, MinimumCount, chain, dag, task
from paceline.exceptions import DagCycleError, DagError, DuplicateTaskError
from paceline.operators import BashOperator, EmptyOperator, PythonOperator

START = datetime(2026, 1, 1, tzinfo=UTC)


def refused(write: Callable[[], Any], words: str, *, kind: type[DagError] = DagError, line: int | None = None) -> None:
    """`write` raises `kind` with `words`, and names a line of its own body (or the given one, counted from its start)."""
    source, first = inspect.getsourcelines(write.func if isinstance(write, partial) else write)
    with pytest.raises(kind, match=words) as caught:
        write()
    assert caught.value.file == __file__
    assert caught.value.line is not None
    if line is None:
        assert first <= caught.value.line < first + len(source)
    else:
        assert caught.value.line == first + line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shedule": "@daily"}, "DAG 'd': unknown argument 'shedule'; did you mean 'schedule'"),
        ({"start_date": date(2026, 1, 1)}, "not a date; write datetime"),
        ({"start_date": "2026-01-01"}, "must be a datetime"),
        ({"start_date": datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))}, "does not exist"),
        ({"end_date": datetime.max.replace(tzinfo=ZoneInfo("America/New_York"))}, "outside the years"),
        ({"start_date": START, "end_date": START - timedelta(days=1)}, "is before start_date"),
        ({"catchup": "no"}, "catchup must be True or False"),
        ({"max_active_runs": 0}, "max_active_runs must be an int of at least 1"),
        ({"max_active_tasks": True}, "max_active_tasks must be an int"),
        ({"dagrun_timeout": "1h"}, "dagrun_timeout"),
        ({"tags": "spark"}, "tags must be a list of str"),
        ({"tags": ["x" * 101]}, "1 to 100 characters"),
        ({"default_args": [1]}, "default_args must be a dict"),
        ({"access_control": {"team": {}}}, "'access_control' is not supported: the roles of"),
        ({"default_args": {"run_as_user": "etl"}}, "'run_as_user' is not supported: a task runs as the user of its worker"),
    ],
)
def test_a_bad_dag_argument_is_refused(arguments: dict[str, Any], words: str) -> None:
    refused(lambda: DAG("d", **arguments), words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"retrys": 2}, "Task 't' of DAG 'd': unknown argument 'retrys'; did you mean 'retries'"),
        ({"retries": -1}, "retries must be an int of at least 0, not -1"),
        ({"retries": "3"}, "retries must be an int"),
        ({"retry_delay": timedelta(-1)}, "retry_delay must be zero or more"),
        ({"retry_delay": "5m"}, "retry_delay must be a timedelta"),
        ({"retry_delay": float("nan")}, "retry_delay cannot be nan"),
        ({"retry_exponential_backoff": 0.5}, "a factor of at least 1"),
        ({"execution_timeout": 30}, r"timedelta\(seconds=30\)"),
        ({"execution_timeout": timedelta(0)}, "longer than zero"),
        ({"pool_slots": 0}, "pool_slots must be an int of at least 1"),
        ({"pool": ""}, "pool must be a non-empty str"),
        ({"queue": 3}, "queue must be a non-empty str"),
        ({"pool": "x" * 251}, "pool has 251 characters; 250 are allowed"),
        ({"queue": "paceline:wakeups"}, "is a key that Paceline or Celery keeps in Redis"),
        ({"queue": "_kombu.binding.celery.pidbox"}, "is a key that Paceline or Celery keeps in Redis"),
        ({"queue": "w@h.celery.pidbox"}, "is a key that Paceline or Celery keeps in Redis"),
        ({"queue": "default:6"}, "is a key that Paceline or Celery keeps in Redis"),
        ({"priority_weight": 1.5}, "priority_weight must be an int"),
        ({"priority_weight": 2**31}, "into 32 bits"),
        ({"weight_rule": "downstreem"}, "did you mean 'downstream'"),
        ({"trigger_rule": "all_sucess"}, "did you mean 'all_success'"),
        ({"do_xcom_push": None}, "do_xcom_push must be True or False"),
        ({"run_as_user": "etl"}, "'run_as_user' is not supported: a task runs as the user of its worker"),
        ({"task_id": "a b"}, "letters, digits, dashes, dots and underscores"),
        ({"task_id": ".."}, "letters, digits"),
        ({"task_id": "x" * 251}, "has 251 characters; 250 are allowed"),
        ({"task_id": 3}, "task_id must be a str"),
        ({"task_id": None}, "needs the argument 'task_id'"),
    ],
)
def test_a_bad_task_argument_is_refused(arguments: dict[str, Any], words: str) -> None:
    with DAG("d"):
        refused(lambda: EmptyOperator(**{"task_id": "t", **arguments}), words)


def test_arguments_that_ask_for_nothing_unsupported_are_fine() -> None:
    defaults = {"owner": "me", "depends_on_past": False, "email_on_failure": False, "sla": None, "email": []}
    with DAG("d", default_args=defaults, params={}, on_success_callback=None):
        task = EmptyOperator(task_id="t", on_failure_callback=None, wait_for_downstream=False, retry_delay=30)

    assert task.retry_delay == timedelta(seconds=30)
    assert task.owner == "me"


def test_a_cycle_is_named_by_its_path() -> None:
    def write() -> None:
        with DAG("d"):
            a, b, c = (EmptyOperator(task_id=name) for name in "abc")
            chain(a, b, c, a)

    refused(write, "DAG 'd' has a cycle: a -> b -> c -> a", kind=DagCycleError, line=2)


def test_a_task_cannot_follow_itself() -> None:
    with DAG("d"):
        a = EmptyOperator(task_id="a")
        refused(lambda: a >> a, "Task 'a' cannot come after itself", kind=DagCycleError)


def test_a_long_chain_is_no_problem_for_the_search_of_cycles() -> None:
    with DAG("d") as dag:
        tasks = [EmptyOperator(task_id=f"t{n}") for n in range(3000)]
        chain(*tasks)

    tasks[-1] >> tasks[0]
    with pytest.raises(DagCycleError, match="t2999 -> t0"):
        dag.validate()


def test_two_tasks_of_one_id_are_named_with_both_lines() -> None:
    def write() -> None:
        with DAG("d"):
            EmptyOperator(task_id="load")
            EmptyOperator(task_id="load")

    first = write.__code__.co_firstlineno
    refused(write, f"two tasks 'load', defined in lines {first + 2} and {first + 3}", kind=DuplicateTaskError, line=3)


def test_a_mistake_in_an_operator_of_ones_own_names_the_line_that_makes_it() -> None:
    class Load(BaseOperator):
        def __init__(self, *, table: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.table = table

    with DAG("d"):
        refused(lambda: Load(task_id="t", tabel="x"), "unknown argument 'tabel'; did you mean 'table'")
        refused(lambda: Load(task_id="t"), "Load needs the argument 'table'")
        refused(lambda: Load("t"), "keyword arguments only; write task_id='t'")


def test_a_mistake_in_the_arguments_of_a_dataclass_names_the_line_of_the_author() -> None:
    for write in (lambda: MinimumCount(0), lambda: AssetWatcher("", trigger=None)):
        with pytest.raises(DagError) as error:
            write()

        assert (error.value.file, error.value.line) == (__file__, write.__code__.co_firstlineno)


def test_a_result_outside_of_template_fields_is_refused() -> None:
    class Load(BaseOperator):
        def __init__(self, *, table: object, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.table = table

    def write() -> None:
        with DAG("d"):
            Load(task_id="t", table=EmptyOperator(task_id="a").output)

    refused(write, "table cannot take the result of a task", line=2)


def test_a_misspelt_default_argument_is_found_when_the_dag_is_complete() -> None:
    def write() -> None:
        with DAG("d", default_args={"retires": 2}):
            EmptyOperator(task_id="t")

    refused(write, "unknown argument 'retires' in default_args; did you mean 'retries'", line=1)


def test_an_error_of_a_dag_function_names_its_decorator() -> None:
    @dag(schedule="@dayly")
    def flights() -> None: ...

    def with_arguments(day: str) -> None: ...

    with pytest.raises(DagError, match="@daily") as caught:
        flights()
    assert caught.value.line == flights.__wrapped__.__code__.co_firstlineno  # type: ignore[attr-defined]
    with pytest.raises(DagError, match=r"missing a required argument: .day.; give it a default"):
        dag(with_arguments)()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda load: load(), "missing a required (keyword-only )?argument: 'rows'"),
        (lambda load: load(1, 2, 3), "too many positional arguments"),
        (lambda load: load(rows=1, row=2), "unexpected keyword argument 'row'"),
        (lambda load: load.expand(row=[1]), "has no argument 'row'; did you mean 'rows'"),
        (lambda load: load.expand(rows=3), "takes a list, a dict or the result of a task, not 3"),
    ],
)
def test_a_call_that_does_not_fit_the_function_is_refused(call: Callable[[Any], Any], words: str) -> None:
    @task
    def load(rows: int, run_id: str) -> None: ...

    with DAG("d"):
        refused(partial(call, load), words)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda: task.bash_("x"), "no @task.bash_; did you mean 'bash'"),
        (lambda: task.docker(lambda: None), "@task.docker is not supported yet"),
        (lambda: PythonOperator(task_id="t", python_callable=3), "python_callable must be a function"),
        (lambda: PythonOperator(task_id="t"), "needs the argument 'python_callable'"),
        (lambda: PythonOperator(task_id="t", python_callable=print, op_kwargs=[1]), "op_kwargs must be a dict"),
        (lambda: BashOperator(task_id="t", bash_command=" "), "bash_command must be a non-empty str"),
        (lambda: BashOperator(task_id="t", bash_command="x", env=[]), "env must be a dict"),
        (lambda: EmptyOperator(task_id="t") >> 3, "An edge joins tasks"),
        (lambda: EmptyOperator(task_id="t", dag=DAG("a")) >> EmptyOperator(task_id="u", dag=DAG("b")), "within one DAG"),
        (lambda: list(EmptyOperator(task_id="t").output), "cannot loop over it"),
        (lambda: EmptyOperator(task_id="t").output[1.5], "str or int subscript, or a list of columns"),
    ],
)
def test_other_mistakes(write: Callable[[], Any], words: str) -> None:
    refused(write, words)


def test_an_async_generator_is_refused() -> None:
    async def fetch() -> AsyncIterator[int]:
        yield 1

    with DAG("d"):
        refused(lambda: task(fetch)(), "an async function cannot yield; return a list")
