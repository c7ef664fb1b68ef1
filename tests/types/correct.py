"""Correct DAGs: no type checker reports anything here."""

from datetime import UTC, datetime, timedelta
from typing import Any

from paceline import (
    DAG,
    Asset,
    BaseOperator,
    BaseSensorOperator,
    Context,
    ExceptionRetryPolicy,
    RetryAction,
    RetryRule,
    TaskGroup,
    Variable,
    asset,
    chain,
    cross_downstream,
    dag,
    setup,
    task,
    task_group,
    teardown,
)
from paceline.operators import BashOperator, BranchPythonOperator, EmptyOperator, PythonOperator, ShortCircuitOperator
from paceline.sensors import ExternalTaskSensor, FileSensor, TimeDeltaSensor

START = datetime(2026, 1, 1, tzinfo=UTC)


class Load(BaseOperator):
    """An operator of a team."""

    template_fields = ("path",)

    def __init__(self, *, path: str, task_id: str, retries: int = 0) -> None:
        super().__init__(task_id=task_id, retries=retries, pool="loads")
        self.path = path

    def execute(self, context: Context) -> str:
        self.log.info("%s %s", context["ds"], context["logical_date"].add(days=1).to_date_string())
        context["ti"].xcom_push("tries", context["ti"].try_number)
        return f"{self.path}/{context['params']['table']}"

    def on_kill(self) -> None:
        self.log.info("%s ends", [one.task_id for one in self.upstream_list])


class Wait(BaseSensorOperator):
    """A sensor of a team."""

    def poke(self, context: Context) -> bool:
        return context["map_index"] < 0


with DAG(
    "classic",
    schedule="@daily",
    start_date=START,
    catchup=False,
    tags=["example"],
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    params={"table": "flights"},
) as classic:
    found = FileSensor(task_id="found", filepath="/data/{{ ds }}", poke_interval=3, timeout=timedelta(hours=1), mode="reschedule")
    copied = BashOperator(task_id="copied", bash_command="cp {{ ds }} /tmp", env={"A": "b"}, append_env=True)
    chosen = BranchPythonOperator(task_id="chosen", python_callable=lambda: "loaded", op_args=[1])
    loaded = Load(task_id="loaded", path="/data")
    on = ShortCircuitOperator(task_id="on", python_callable=lambda: True, ignore_downstream_trigger_rules=False)
    printed = PythonOperator(task_id="printed", python_callable=print, op_kwargs={"sep": loaded.output})
    other = ExternalTaskSensor(task_id="other", external_dag_id="taskflow", deferrable=True)
    found >> copied >> chosen >> [loaded, EmptyOperator(task_id="nothing", trigger_rule="none_failed")]
    chain(loaded, on, printed)
    cross_downstream([found, other], [TimeDeltaSensor(task_id="later", delta=timedelta(seconds=1)), Wait(task_id="wait")])
    EmptyOperator.partial(task_id="mapped_too").expand(doc=["a"])
    BashOperator.partial(task_id="mapped").expand(bash_command=["ls", "pwd"])


@dag(schedule="0 6 * * *", start_date=START, max_active_runs=1)
def taskflow(limit: int = 3) -> None:
    """A DAG of functions."""
    policy = ExceptionRetryPolicy([RetryRule(KeyError, RetryAction.FAIL), RetryRule(OSError, retry_delay=timedelta(seconds=5))])

    @task(retries=2, execution_timeout=timedelta(minutes=5), retry_policy=policy)
    def extract(limit: int, ds: str) -> list[int]:
        return [len(ds)] * limit

    @task
    async def double(number: int, factor: int = 2) -> int:
        return factor * number

    @task.bash(append_env=True, cwd="/tmp")
    def show(numbers: list[int]) -> str:
        return f"echo {sum(numbers)}"

    @task.branch
    def choose() -> str:
        return "show"

    @task.sensor(poke_interval=10, mode="reschedule")
    def ready(ti: Any) -> bool:
        return bool(Variable.get("ready", default="") == ti.run_id)

    @task.pyspark(heavy=True)
    def count(spark: Any, path: str) -> int:
        return int(spark.read.parquet(path).count())

    @setup
    def prepare() -> None: ...

    @teardown(on_failure_fail_dagrun=True)
    def clean() -> None: ...

    @task_group
    def part(number: int) -> None:
        double(number) >> double.override(task_id="again")(number)

    numbers = extract(limit)
    prepare() >> numbers >> clean()
    ready() >> choose() >> show(double.expand(number=numbers))
    double.partial(factor=3).expand(number=[1, 2])
    count(path="/data")
    part(1)
    part(number=double(3))
    part.override(group_id="other")(2)
    part.partial(number=1)()
    part.expand(number=[1, 2])
    part.expand(number=numbers)
    count.override(retries=1, heavy=False)(path="/data")
    BashOperator.partial(task_id="all", retries=3, env=show([2])).expand(bash_command=["a", "b"], cwd=["/tmp"])
    PythonOperator.partial(task_id="calls", python_callable=print).expand(op_args=[[1], [2]])
    Load.partial(task_id="parts").expand(path=["a"])
    Wait.partial(task_id="waits", mode="reschedule").expand(poke_interval=[1, 2])
    with TaskGroup("rest", tooltip="the rest") as rest:
        show([1])
    numbers >> rest


taskflow()


@asset(schedule=[Asset("raw")])
def clean_data(self: Asset) -> None:
    """An asset."""
    print(self.uri)
