"""Random DAGs with mixed trigger rules, branches, setups and teardowns, mapped tasks and groups, and how their tasks end."""

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from paceline.authoring.dag import DAG
from paceline.authoring.operator import Operator
from paceline.authoring.task_arguments import TriggerRule
from paceline.exceptions import FailTask, SkipTask
from paceline.states import TaskState as S
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.store.worker.claims import Ending

RULES = sorted({str(rule) for rule in TriggerRule} - {"all_done_setup_success"})
#: all_success is the default, so it is as frequent as all others together.
WEIGHTED_RULES = [*RULES, *["all_success"] * len(RULES)]
OUTCOMES = (S.SUCCESS, S.SUCCESS, S.SUCCESS, S.FAILED, S.SKIPPED)
LARGEST_MAP = 3
POOLS = {"default_pool": 128, "narrow": 3, "wide": 8}


@dataclass(frozen=True)
class Plan:
    """A DAG and how each of its task instances ends, in any order. The same seed gives the same plan."""

    dag: SerializedDag
    size: int
    seed: int

    def __repr__(self) -> str:
        return f"random_plan({self.dag.dag_id!r}, size={self.size}, seed={self.seed})"

    def rank(self, task_no: int, map_index: int) -> float:
        """The rank of a task instance. Of those that run, the one with the smallest rank ends first."""
        return random.Random(f"{self.seed} {task_no} {map_index} rank").random()

    def ending(self, task_no: int, map_index: int) -> Ending:
        """How a task instance ends: its state, the list that it returns, and the tasks that it skips as a branch."""
        dice = random.Random(f"{self.seed} {task_no} {map_index} ending")
        state = dice.choice(OUTCOMES)
        if state is not S.SUCCESS:
            return Ending(state, reason="so it was planned")
        skip = None
        if self.dag.tasks[task_no].branches:
            below = sorted(descendants(self.dag, task_no)) if dice.random() < 0.3 else list(self.dag.downstream[task_no])
            chosen = dice.sample(below, dice.randint(0, len(below)))
            skip = tuple(sorted(self.dag.tasks[no].task_id for no in chosen if not self.dag.tasks[no].is_teardown))
        return Ending(state, result=str(list(range(dice.randint(0, LARGEST_MAP)))), skip=skip)


def random_plan(dag_id: str, *, size: int, seed: int, limits: bool = False) -> Plan:
    """A DAG of `size` tasks. With `limits`, it also has pools, slots and limits that are reached."""
    dice = random.Random(seed)
    tasks = _edges(dice, size)
    if size >= 4 and dice.random() < 0.5:
        _map_group(dice, tasks)
    if dice.random() < 0.7:
        _map_some(dice, tasks)
    if dice.random() < 0.6:
        _branch_some(dice, tasks)
    for number in range(dice.choice((0, 0, 1, 2)) if size >= 5 else 0):
        tasks = _setup_and_teardown(dice, tasks, number)
    if limits:
        tasks = [_limited(dice, task) for task in tasks]
    options: dict[str, Any] = (
        {"max_active_tasks": dice.randint(1, 10), "max_active_runs": 1} if limits else {"max_active_tasks": 1000}
    )
    dag = SerializedDag(dag_id=dag_id, file=f"{dag_id}.py", schedule={"kind": "never"}, tasks=tuple(tasks), **options)
    return Plan(dag, size, seed)


def descendants(dag: SerializedDag, task_no: int) -> set[int]:
    """All direct and indirect downstream tasks of this one."""
    found: set[int] = set()
    for no in range(task_no, len(dag.tasks)):
        if no == task_no or no in found:
            found.update(dag.downstream[no])
    return found


def _edges(dice: random.Random, size: int) -> list[SerializedTask]:
    names = [f"t{number:02}" for number in range(size)]
    nearest = dice.choice((3, 10, size))
    return [
        SerializedTask(
            task_id=name,
            operator="EmptyOperator",
            runtime="empty",
            upstream=tuple(sorted(dice.sample(names[max(0, at - nearest) : at], dice.randint(0, min(at, nearest, 3))))),
            trigger_rule=dice.choice(WEIGHTED_RULES),
            priority_weight=dice.randint(1, 5),
        )
        for at, name in enumerate(names)
    ]


def _map_group(dice: random.Random, tasks: list[SerializedTask]) -> None:
    """Make a mapped task group of some neighbors, over a literal or over the result of an earlier task."""
    first = dice.randrange(1, len(tasks) - 2)
    members = range(first, min(len(tasks), first + dice.randint(2, 5)))
    expand, source = _expand(dice, tasks, first)
    for at in members:
        above = {*tasks[at].upstream, *([source] if source and at == first else [])}
        if at > first and dice.random() < 0.7:
            above.add(tasks[at - 1].task_id)
        tasks[at] = replace(tasks[at], upstream=tuple(sorted(above)), expand=expand, mapped_group="group")


def _map_some(dice: random.Random, tasks: list[SerializedTask]) -> None:
    for at, one in enumerate(tasks):
        if one.expand is None and dice.random() < 0.15:
            expand, source = _expand(dice, tasks, at)
            tasks[at] = replace(one, expand=expand, upstream=tuple(sorted({*one.upstream, *([source] if source else [])})))


def _expand(dice: random.Random, tasks: list[SerializedTask], at: int) -> tuple[dict[str, Any], str | None]:
    if at == 0 or dice.random() < 0.4:
        return {"kind": "product", "inputs": [{"literal": dice.randint(0, LARGEST_MAP)}]}, None
    source = tasks[dice.randrange(at)].task_id
    return {"kind": "product", "inputs": [{"task": source, "key": "return_value"}]}, source


def _branch_some(dice: random.Random, tasks: list[SerializedTask]) -> None:
    for at, one in enumerate(tasks):
        if dice.random() < 0.2 and (one.expand is None or one.mapped_group):
            tasks[at] = replace(one, branches=True)


def _setup_and_teardown(dice: random.Random, tasks: list[SerializedTask], number: int) -> list[SerializedTask]:
    """Add a setup upstream of some tasks, and a teardown downstream of them."""
    name = f"setup{number}"
    plain = [task.task_id for task in tasks if not task.is_setup and not task.is_teardown]
    work = set(dice.sample(plain, dice.randint(1, 3)))
    with_setup = [replace(task, upstream=tuple(sorted({*task.upstream, name}))) if task.task_id in work else task for task in tasks]
    below = {name}
    for one in with_setup:
        if below.intersection(one.upstream):
            below.add(one.task_id)
    inside = [
        replace(one, setups=(*one.setups, name)) if one.task_id in below and not one.is_teardown else one for one in with_setup
    ]
    ends = sorted({name, *dice.sample(sorted(below), dice.randint(1, min(len(below), 3)))})
    above = set(ends)
    for one in reversed(inside):
        if one.task_id in above:
            above.update(one.upstream)
    head = SerializedTask(task_id=name, operator="EmptyOperator", runtime="empty", is_setup=True)
    tail = SerializedTask(
        task_id=f"teardown{number}",
        operator="EmptyOperator",
        runtime="empty",
        is_teardown=True,
        on_failure_fail_dagrun=dice.random() < 0.3,
        trigger_rule="all_done_setup_success",
        upstream=tuple(ends),
        setups=(name,),
        scope=tuple(one.task_id for one in inside if one.task_id in below & above),
    )
    return [head, *inside, tail]


def _limited(dice: random.Random, one: SerializedTask) -> SerializedTask:
    pool = dice.choice(sorted(POOLS))
    return replace(
        one,
        pool=pool,
        pool_slots=dice.randint(1, POOLS["narrow"]),
        max_active_tis_per_dag=dice.choice((None, None, 1)),
        max_active_tis_per_dagrun=dice.choice((None, None, 1, 2)),
    )


def authored(plan: Plan) -> tuple[Plan, DAG]:
    """The plan with tasks that run user code, and the DAG of that code: each task ends as planned."""

    class Planned(Operator):
        def execute(self, context: Any) -> Any:
            ti = context["ti"]
            ending = plan.ending(plan.dag.number[ti.task_id], ti.map_index)
            if ending.state is not S.SUCCESS:
                raise (FailTask if ending.state is S.FAILED else SkipTask)(ending.reason)
            if self.branches:
                ti.skip(ending.skip or ())
            return json.loads(ending.result or "null")

    class Branching(Planned):
        branches = True

    with DAG(plan.dag.dag_id) as dag:
        for task in plan.dag.tasks:
            (Branching if task.branches else Planned)(task_id=task.task_id)
    tasks = tuple(replace(task, runtime="python") for task in plan.dag.tasks)
    return replace(plan, dag=replace(plan.dag, tasks=tasks)), dag
