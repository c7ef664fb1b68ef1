"""depends_on_past and wait_for_downstream: finds the tasks that still wait for the previous run. Pure."""

from collections.abc import Collection

from paceline.states import PASSED, Before
from paceline.states import TaskState as S
from scheduler.serialized.dag import SerializedDag


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
        # A task may be in some runs only: it was removed for a while, or a start_date or end_date excludes it.
        own = before if task.task_id in before.states else before.earlier.get(task.task_id)
        if own is None:
            if not task.ignore_first_depends_on_past:
                reasons[no] = f"depends_on_past: no earlier run has {task.task_id}, and ignore_first_depends_on_past is False"
            continue
        names = [dag.tasks[below].task_id for below in dag.downstream[no]] if task.wait_for_downstream else []
        late = next((name for name in (task.task_id, *names) if not PASSED.issuperset(own.states.get(name, ()))), None)
        if late is not None:
            rule = "depends_on_past" if late == task.task_id else "wait_for_downstream"
            which = "the previous run" if own is before else "the earlier run"
            reasons[no] = f"{rule}: {late} of {which}, {own.run_id}, is {_shown(own.states[late])}"
    return reasons


def _shown(states: Collection[S]) -> str:
    bad = sorted({state.value for state in states if state not in PASSED})
    return ", ".join("not started" if name == "none" else name for name in bad)
