"""depends_on_past and wait_for_downstream: which tasks still wait for the run before. Pure."""

from collections.abc import Collection

from scheduler.serialized.dag import SerializedDag
from scheduler.states import Before
from scheduler.states import TaskState as S

GOOD = frozenset({S.SUCCESS, S.SKIPPED})


def relevant(dag: SerializedDag) -> set[str]:
    """The tasks of the run before whose states matter."""
    found: set[str] = set()
    for no, task in enumerate(dag.tasks):
        if task.depends_on_past:
            found.add(task.task_id)
        if task.wait_for_downstream:
            found |= {dag.tasks[below].task_id for below in dag.downstream[no]}
    return found


def waits(dag: SerializedDag, before: Before | None) -> dict[int, str]:
    """By task number: why it may not run yet. Nothing waits if there is no run before."""
    if before is None:
        return {}
    found = {}
    for no, task in enumerate(dag.tasks):
        if not task.depends_on_past:
            continue
        states = before.states.get(task.task_id)
        if states is None and (task.task_id in before.ran_earlier or not task.ignore_first_depends_on_past):
            found[no] = f"depends_on_past: the run before, {before.run_id}, has no {task.task_id}"
        elif states is not None and not GOOD.issuperset(states):
            found[no] = f"depends_on_past: {task.task_id} of the run before, {before.run_id}, is {_shown(states)}"
        elif task.wait_for_downstream:
            names = (dag.tasks[below].task_id for below in dag.downstream[no])
            late = [name for name in names if not GOOD.issuperset(before.states.get(name, ()))]
            if late:
                found[no] = (
                    f"wait_for_downstream: {late[0]} of the run before, {before.run_id}, is {_shown(before.states[late[0]])}"
                )
    return found


def _shown(states: Collection[S]) -> str:
    bad = sorted({state.value for state in states if state not in GOOD})
    return ", ".join("not started" if name == "none" else name for name in bad)
