"""Records how Airflow's own scheduler ends small DAGs: JSON lines in (`tasks`, `order`), the same with `states` and `run` out.

Run it with the Python of an environment that has Airflow and an empty database (`airflow db migrate`), AIRFLOW_HOME set:
`python record_airflow_states.py < plans.jsonl > states.jsonl`. Nothing is executed: a task instance that may run is held as
running, and ends as its task says (`out`, and `returns` for the length of the list it returns) once nothing else moves.
"""

import json
import sys
import time
from datetime import UTC, datetime
from typing import Any

from airflow.dag_processing.collection import SerializedDAG
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskmap import TaskMap
from airflow.models.xcom import XComModel
from airflow.sdk import DAG, BaseOperator, XComArg, task_group
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

START = datetime(2025, 1, 1, tzinfo=UTC)
ENDED = (DagRunState.SUCCESS, DagRunState.FAILED)
Plan = dict[str, Any]


class Step(BaseOperator):
    """Never executed."""

    def __init__(self, value: object = None, **options: Any) -> None:
        super().__init__(**options)
        self.value = value


def built(dag_id: str, tasks: list[Plan]) -> Any:
    """The DAG of a plan."""
    made: dict[str, Any] = {}

    def add(one: Plan) -> None:
        options = {"task_id": one["id"], "trigger_rule": one.get("rule", "all_success")}
        if one.get("expand") is None or one.get("group"):
            step = Step(**options)
        else:
            step = Step.partial(**options).expand(value=values(one))
        step.is_setup, step.is_teardown = bool(one.get("setup")), bool(one.get("teardown"))
        if step.is_teardown:
            step.trigger_rule, step.on_failure_fail_dagrun = "all_done_setup_success", bool(one.get("fail_dagrun"))
        made[one["id"]] = step

    def values(one: Plan) -> Any:
        return list(range(one["expand"])) if isinstance(one["expand"], int) else XComArg(made[one["expand"]])

    seen = set()
    with DAG(dag_id, schedule=None, start_date=START) as dag:
        for one in tasks:
            group_id = one.get("group")
            if not group_id:
                add(one)
            elif group_id not in seen:
                seen.add(group_id)

                @task_group(group_id=group_id, prefix_group_id=False)
                def group(value: Any, group_id: str = group_id) -> None:
                    for member in tasks:
                        if member.get("group") == group_id:
                            add(member)

                group.expand(value=values(one))
        for one in tasks:
            for above in set(one.get("up", ())) - made[one["id"]].upstream_task_ids:
                made[above].set_downstream(made[one["id"]])
    return dag


def ended(dag_id: str, plan: Plan) -> Plan:
    """Run it to its end."""
    dag = built(dag_id, plan["tasks"])
    with create_session() as session:
        if not session.get(DagBundleModel, "bundle"):
            session.add(DagBundleModel(name="bundle"))
            session.flush()
        SerializedDAG.bulk_write_to_db("bundle", None, [dag], session=session)
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="bundle", session=session)
        session.commit()
        stored = SerializedDagModel.get_dag(dag_id, session=session)
        run = stored.create_dagrun(
            run_id="r", run_type=DagRunType.MANUAL, run_after=START, logical_date=START, data_interval=(START, START),
            triggered_by=DagRunTriggeredByType.TEST, state=DagRunState.RUNNING, session=session,
        )  # fmt: skip
        session.commit()
        place = {one["id"]: at if plan["order"] == "first" else -at for at, one in enumerate(plan["tasks"])}
        while True:
            run = _settled(session, run, stored)
            running = [instance for instance in _instances(session, dag_id) if instance.state == TaskInstanceState.RUNNING]
            if run.state in ENDED or not running:
                break
            _end(session, min(running, key=lambda one: (place[one.task_id], one.map_index)), plan)
        names = {(instance.task_id, instance.map_index): instance.state or "none" for instance in _instances(session, dag_id)}
        states = {name if index < 0 else f"{name}[{index}]": str(state) for (name, index), state in sorted(names.items())}
        return plan | {"states": states, "run": str(run.state)}


def _settled(session: Any, run: Any, stored: Any) -> Any:
    """Decide until nothing changes; then all tasks that may run are running."""
    before = None
    while True:
        run = session.get(DagRun, run.id)
        run.dag = stored
        ready, _ = run.update_state(session=session, execute_callbacks=False)
        session.flush()
        for one in ready:
            one.state = TaskInstanceState.RUNNING
        session.commit()
        now = [(instance.task_id, instance.map_index, instance.state) for instance in _instances(session, run.dag_id)]
        if run.state in ENDED or now == before:
            return run
        before = now


def _end(session: Any, instance: Any, plan: Plan) -> None:
    one = next(task for task in plan["tasks"] if task["id"] == instance.task_id)
    outcome = one.get("out", "success")
    if isinstance(outcome, dict):
        outcome = outcome.get(str(instance.map_index), outcome["*"])
    instance.state = TaskInstanceState(outcome)
    if outcome == "success" and one.get("returns") is not None:
        value = list(range(one["returns"]))
        if instance.map_index < 0:
            session.add(TaskMap.from_task_instance_xcom(instance, value))
        XComModel.set(
            key="return_value", value=value, dag_id=instance.dag_id, task_id=instance.task_id, run_id="r",
            map_index=instance.map_index, session=session,
        )  # fmt: skip
    session.commit()


def _instances(session: Any, dag_id: str) -> Any:
    return session.query(TaskInstance).filter(TaskInstance.dag_id == dag_id).all()


if __name__ == "__main__":
    began = int(time.time() * 1000)
    for number, line in enumerate(sys.stdin):
        sys.stdout.write(json.dumps(ended(f"d{began}_{number}", json.loads(line)), separators=(",", ":")) + "\n")
