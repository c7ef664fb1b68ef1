"""Checks that tasks ran in the planned order, by the times in the ledger alone."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from chaos.plan import Plan, PlannedDag, PlannedTask
from chaos.records import Execution, Key, Records
from chaos.rules import AT_ONCE


class Order:
    """`touched` are the task instances of user actions: they may have run before and again."""

    def __init__(self, plan: Plan, records: Records, touched: Callable[[Key], bool]) -> None:
        self._plan = plan
        self._records = records
        self._touched = touched
        self._ran = records.of()
        #: When the try that stands, or any try, of a task instance ended first and last.
        self._number = {instance.key: instance.try_number for instance in records.instances}
        self._indexes: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
        for instance in records.instances:
            self._indexes[instance.key[:3]].append(instance.key[3])
        self._before = self._runs_before()

    def findings(self) -> Iterator[str]:
        for key, executions in self._ran.items():
            dag = self._plan.dags.get(key[0])
            task = None if dag is None else dag.task.get(key[2])
            if dag is None or task is None:
                continue
            for execution in executions:
                yield from self._within(dag, task, execution)
                if task.depends_on_past and (before := self._before.get(key[:2])) is not None:
                    past = (key[0], before, key[2], key[3])
                    if (text := self._too_early(execution, past)) is not None:
                        yield f"{text} in the run before, {before}"

    def _within(self, dag: PlannedDag, task: PlannedTask, execution: Execution) -> Iterator[str]:
        dag_id, run_id, _, index = execution.key
        early, above = [], 0
        for name in task.upstream:
            peer = task.group is not None and dag.task[name].group == task.group
            for at in [index] if peer else self._indexes[dag_id, run_id, name]:
                above += 1
                if (text := self._too_early(execution, (dag_id, run_id, name, at))) is not None:
                    early.append(text)
        if task.rule in AT_ONCE:
            # One upstream task is enough; those without an execution were skipped, or are unknown.
            early = early[:1] if len(early) == above else []
        yield from early

    def _too_early(self, execution: Execution, above: Key) -> str | None:
        """Why `execution` began before the task instance `above` had ended; None if it had, or never ran."""
        executions = self._ran.get(above, ())
        ends = [one.ended for one in executions if one.ended is not None]
        if not ends:
            return None
        if not (self._touched(above) or self._touched(execution.key)):
            standing = [one.ended for one in executions if one.try_number == self._number.get(above) and one.ended is not None]
            ends = standing or ends
        # The end is written before the code ends, so before anything may follow.
        if execution.start >= min(ends):
            return None
        return f"{execution.key[0]}.{execution.key[2]} (run {execution.key[1]}) began before the end of {above[2]}"

    def _runs_before(self) -> dict[tuple[str, str], str]:
        """The scheduled run before each one, by logical date."""
        found = {}
        for dag_id in {run.dag_id for run in self._records.runs if run.run_type == "scheduled"}:
            runs = sorted(
                (r for r in self._records.runs if r.dag_id == dag_id and r.run_type == "scheduled"), key=lambda r: r.logical_date
            )
            found |= {(dag_id, later.run_id): earlier.run_id for earlier, later in pairwise(runs)}
        return found
