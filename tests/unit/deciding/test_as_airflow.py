"""What Apache Airflow 3.3.2 makes of small DAGs, recorded from its own scheduler: Paceline ends them the same way.

A line of airflow_states.jsonl is a DAG, how each of its tasks ends, which running task instance ends next (the `first` or the
`last` in the order of the file), and the states that Airflow came to. record_airflow_states.py recorded it.
"""

import json
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.memory import Run

from scheduler import DAG, task_group
from scheduler.authoring.operator import Operator
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Core, Scheduler
from scheduler.states import TaskState as S
from scheduler.store.worker.claims import Ending

Case = dict[str, Any]
CASES = [json.loads(line) for line in Path(__file__).with_name("airflow_states.jsonl").read_text().splitlines()]


class Step(Operator):
    """Never executed."""

    runtime = "python"
    template_fields = ("value",)

    def __init__(self, *, value: object = None, **options: Any) -> None:
        super().__init__(**options)
        self.value = value


def built(tasks: list[Case]) -> SerializedDag:
    made: dict[str, Operator] = {}

    def add(one: Case) -> None:
        options = {"task_id": one["id"], "trigger_rule": one.get("rule", "all_success")}
        if one.get("expand") is None or one.get("group"):
            made[one["id"]] = Step(**options)
        else:
            made[one["id"]] = Step.partial(**options).expand(value=values(one))
        if one.get("setup"):
            made[one["id"]].as_setup()
        if one.get("teardown"):
            made[one["id"]].as_teardown(on_failure_fail_dagrun=bool(one.get("fail_dagrun")))

    def values(one: Case) -> Any:
        expand = one["expand"]
        return list(range(expand)) if isinstance(expand, int) else made[expand].output

    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        groups: defaultdict[str, list[Case]] = defaultdict(list)
        for one in tasks:
            if not one.get("group"):
                add(one)
                continue
            groups[one["group"]].append(one)
            members = [other for other in tasks if other.get("group") == one["group"]]
            if len(groups[one["group"]]) == 1:

                @task_group(group_id=one["group"], prefix_group_id=False)
                def group(value: Any, members: list[Case] = members) -> None:
                    for member in members:
                        add(member)

                group.expand(value=values(one))
        for one in tasks:
            for above in set(one.get("up", ())) - made[one["id"]].upstream_task_ids:
                made[above] >> made[one["id"]]
    return from_dag(dag, file="d.py", core=Core(), scheduler=Scheduler())


def ended(case: Case) -> Run:
    dag = built(case["tasks"])
    run = Run(dag)
    place = {one["id"]: at if case["order"] == "first" else -at for at, one in enumerate(case["tasks"])}
    by_id = {one["id"]: one for one in case["tasks"]}
    while ready := run.ready():
        no, index = min(ready, key=lambda instance: (place[dag.tasks[instance[0]].task_id], instance[1]))
        one = by_id[dag.tasks[no].task_id]
        outcome = one.get("out", "success")
        if isinstance(outcome, dict):
            outcome = outcome.get(str(index), outcome["*"])
        returned = one.get("returns") if outcome == "success" else None
        run.end((no, index), Ending(S(outcome), result=None if returned is None else json.dumps(list(range(returned)))))
    return run


def by_task(states: dict[str, str]) -> dict[str, Any]:
    """The states of each task's instances; one state where all have the same, since a task that never ran need not be expanded."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, state in states.items():
        found[name.split("[")[0]][name] = state
    return {name: of if len(set(of.values())) > 1 else next(iter(of.values())) for name, of in found.items()}


@pytest.mark.parametrize("part", range(8))
def test_small_dags_end_as_in_airflow(part: int) -> None:
    for case in CASES[part::8]:
        run = ended(case)
        named = {name if index < 0 else f"{name}[{index}]": state for (name, index), state in run.named().items()}

        assert (by_task(named), str(run.state)) == (by_task(case["states"]), case["run"]), case["tasks"]


def test_the_recording_has_every_rule() -> None:
    rules = {one.get("rule", "all_success") for case in CASES for one in case["tasks"]}

    assert len(CASES) > 300
    assert len(rules) == 12
