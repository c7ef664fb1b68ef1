"""depends_on_past and wait_for_downstream: finds the tasks that still wait for the previous run. Pure."""

from collections.abc import Collection

from scheduler.serialized.dag import SerializedDag
from scheduler.states import PASSED, Before
from scheduler.states import TaskState as S


def relevant(dag: SerializedDag) -> set[str]:
    """Return the tasks of the previous run whose states matter."""
    task_ids: set[str] = set()
    for no, task in enumerate(dag.tasks):
        if task.depends_on_past:
            task_ids.add(task.task_id)
        if task.wait_for_downstream:
            task_ids |= {dag.tasks[below].task_id for below in dag.downstream[no]}
    return task_ids


def waits(dag: SerializedDag, before: Before | None) -> dict[int, str]:
    """Return why tasks must wait for the previous run, by task number. Nothing waits without a previous run."""
    if before is None:
        return {}
    reasons = {}
    for no, task in enumerate(dag.tasks):
        if not task.depends_on_past:
            continue
        states = before.states.get(task.task_id)
        if states is None and (task.task_id in before.ran_earlier or not task.ignore_first_depends_on_past):
            reasons[no] = f"depends_on_past: the previous run, {before.run_id}, has no {task.task_id}"
        elif states is not None and not PASSED.issuperset(states):
            reasons[no] = f"depends_on_past: {task.task_id} of the previous run, {before.run_id}, is {_shown(states)}"
        elif task.wait_for_downstream:
            names = (dag.tasks[below].task_id for below in dag.downstream[no])
            late = [name for name in names if not PASSED.issuperset(before.states.get(name, ()))]
            if late:
                reasons[no] = (
                    f"wait_for_downstream: {late[0]} of the previous run, {before.run_id}, is {_shown(before.states[late[0]])}"
                )
    return reasons


def _shown(states: Collection[S]) -> str:
    bad = sorted({state.value for state in states if state not in PASSED})
    return ", ".join("not started" if name == "none" else name for name in bad)
