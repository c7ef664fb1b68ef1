"""Mutants: copies of the product with one defect each, created at run time. A chaos run must detect every one."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import paceline
from chaos.fault_context import Fault
from chaos.servers import delivered_twice, redis_flush
from chaos.user_actions import scope_ended

PACKAGES = ("paceline", "scheduler", "workers")
ROOT = Path(paceline.__file__).parent.parent


@dataclass(frozen=True)
class Change:
    """In this file, `old`, which must be there exactly once, becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A defect, the counter that must detect it, and the faults that expose it."""

    name: str
    counter: str
    changes: Sequence[Change]
    faults: Sequence[Fault] = ()


class StaleMutantError(Exception):
    """The product has changed: the text that a mutant replaces is gone, or is there twice."""


def write(mutant: Mutant, folder: Path) -> Path:
    """A copy of the packages with the defect; the folder to put before the installed ones."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for change in mutant.changes:
        place = folder / change.file
        place.write_text(changed(mutant, change, place.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


def changed(mutant: Mutant, change: Change, source: str) -> str:
    """The source of a file with the defect. StaleMutantError."""
    found = source.count(change.old)
    if found != 1:
        raise StaleMutantError(f"{mutant.name}: {change.old!r} is {found} times in {change.file}, not once; adapt the mutant.")
    return source.replace(change.old, change.new)


EXECUTE, RULES, HOT = "workers/task/execute.py", "scheduler/deciding/rules.py", "scheduler/store/moves/claim.sql"
QUEUE, PROCESSES = "scheduler/services/queue.py", "scheduler/store/upkeep/processes.py"
#: One dispatch in twenty.
SOMETIMES = "int(claim.dispatch_id[:8], 16) % 20 == 0"
RETURNED = "                self.log.error(error)\n        return result"
TRY, CODE, POPPED = (
    "self.attempt(claim, dag, task, runtime, path, running=running)",
    "        operator = files.task(",
    "texts.pop(RETURN_KEY)",
)
ALL_SUCCESS, RUNS = (
    "def _all_success(u: Upstream) -> Verdict:\n",
    "    return _run() if u.all_done else _wait(u)\n\n\ndef _all_failed",
)
CLAIM = "coalesce(t.state, '') = 'queued' or (:is_repeated"
PULL = "where t.dag_run_id = %s and t.task_id = %s and t.map_index"
HOLD_POOLS = "    found = prepared.execute(connection, LOCK_WAITING, "
#: Takes its time from one to the next.
LOCK_ALL = (
    "select pg_sleep(0.2) from"
    " (select id from process where kind = 'scheduler' and stopped_at is null order by random() for update) p"
)
#: Now and then a worker that is well counts as silent.
HASTY = Change(PROCESSES, "lost(TIMEOUT_OF_KIND)", 'lost(TIMEOUT_OF_KIND.replace("%(worker)s", "%(worker)s * random()"))')


def _mutant(name: str, counter: str, file: str, old: str, new: str, *faults: Fault) -> Mutant:
    return Mutant(name, counter, [Change(file, old, new)], faults)


def _reports(name: str, outcome: str) -> Mutant:
    """The code runs, and something else is reported."""
    return _mutant(name, "lost_success", EXECUTE, RETURNED, f"{RETURNED} if not {SOMETIMES} else {outcome}")


MUTANTS = (
    _reports("retries_a_success", 'Retry("a mutant", 0.1)'),
    _reports("fails_a_success", 'Fail("a mutant")'),
    _reports("skips_a_success", 'Skip("a mutant")'),
    _mutant("succeeds_without_running", "lost", EXECUTE, f"result = {TRY}", f"result = Success() if {SOMETIMES} else {TRY}"),
    _mutant("fails_before_the_code", "failed_without_cause", EXECUTE, CODE, f"        assert not {SOMETIMES}\n{CODE}"),
    _mutant(
        "gives_up_with_retries_left",
        "failed_without_cause",
        "workers/task/outcome.py",
        "return max_tries != 0 and try_number <= max_tries",
        "return False",
    ),
    Mutant("expires_healthy_workers", "failed_without_cause", [HASTY]),
    _mutant(
        "skips_before_the_code",
        "skipped_without_cause",
        EXECUTE,
        CODE,
        f'        if {SOMETIMES}:\n            raise outcome.SkipTask("a mutant")\n{CODE}',
    ),
    _mutant(
        "skips_joins", "skipped_without_cause", RULES, RUNS, f'    if u.all_done and u.total > 1:\n        return _skip("")\n{RUNS}'
    ),
    _mutant(
        "drops_return_values",
        "wrong_xcoms",
        EXECUTE,
        f"result = {POPPED}",
        f"result = {POPPED} if not {SOMETIMES} else texts.clear()",
    ),
    _mutant(
        "reads_the_values_of_another_run",
        "wrong_xcoms",
        "scheduler/store/worker/xcoms.py",
        PULL,
        PULL.replace("run_id =", "run_id <="),
    ),
    _mutant(
        "swaps_map_indexes", "wrong_xcoms", EXECUTE, "unmap(values, claim.map_index)", "unmap(values, min(claim.map_index, 0))"
    ),
    _mutant("runs_joins_early", "out_of_order", RULES, RUNS, RUNS.replace("u.all_done", "u.success")),
    _mutant("runs_below_failures", "out_of_order", RULES, f"{ALL_SUCCESS}    if u.bad:", f"{ALL_SUCCESS}    if u.bad > 99:"),
    _mutant(
        "ignores_the_run_before",
        "out_of_order",
        "scheduler/deciding/rules.py",
        "if before is None:",
        "if before is None or dag.dag_id:",
    ),
    _mutant(
        "leaves_out_scheduled_runs",
        "wrong_runs",
        "scheduler/services/plan.py",
        "created = runs.create(",
        "created = None if upcoming.logical_date.minute % 2 else runs.create(",
    ),
    _mutant(
        "forgets_teardowns",
        "teardowns_missed",
        RULES,
        "if setups.total == setups.removed or setups.success:",
        "if setups.success and not (scope.bad or upstream.bad):",
        scope_ended,
    ),
    _mutant(
        "ignores_parallelism",
        "parallelism_overruns",
        QUEUE,
        "settings.core.parallelism - sum(use.instances for use in counts.used)",
        "999",
    ),
    _mutant("ignores_pools", "pool_overruns", QUEUE, "slots[use.pool] -= use.slots", "slots[use.pool] -= 0"),
    _mutant(
        "ignores_max_active_runs",
        "pool_overruns",
        "scheduler/store/runs/runs.py",
        "limit greatest(0, v.max_active_runs - {RUNNING_RUNS}",
        "limit greatest(0, 99 - {RUNNING_RUNS}",
    ),
    _mutant(
        "claims_what_runs", "double_running", HOT, CLAIM, CLAIM.replace("= 'queued'", "in ('queued', 'running')"), delivered_twice
    ),
    _mutant(
        "runs_a_success_again",
        "double_success",
        HOT,
        CLAIM,
        CLAIM.replace("= 'queued'", "in ('queued', 'success')"),
        delivered_twice,
    ),
    _mutant(
        "never_sends_again", "stuck", "scheduler/services/rescue.py", "Rescued(self._send_lost(), ", "Rescued([], ", redis_flush
    ),
    Mutant(
        "never_stops_a_lost_try",
        "overlaps_without_fault",
        [HASTY, Change("workers/supervision/heartbeat.py", "self._stopper.stop(dispatch_id, NO_LONGER_CURRENT)", "pass")],
    ),
    _mutant(
        "locks_in_any_order",
        "deadlocks",
        "scheduler/store/queueing/capacity.py",
        HOLD_POOLS,
        f'    connection.exec_driver_sql("{LOCK_ALL}")\n{HOLD_POOLS}',
    ),
)
