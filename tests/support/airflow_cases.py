"""Small DAGs as data, with the end of each task: built, and run to the end in memory."""

import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

from paceline import DAG, task_group
from paceline.authoring.operator import Operator
from paceline.states import TaskState as S
from scheduler.serialized.authored import from_dag
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Core, Scheduler
from scheduler.store.worker.claims import Ending

from .memory import Run

Case = dict[str, Any]


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
    by_id = {task["id"]: task for task in case["tasks"]}
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


def named(run: Run) -> dict[str, str]:
    """The states by task ID, and by `task[2]` for the instances of mapped tasks."""
    return {name if index < 0 else f"{name}[{index}]": state for (name, index), state in run.named().items()}
