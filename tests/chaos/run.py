"""One chaos run: start the cluster and its load, inject faults until the time is up, wait for the runs to end, check, report."""

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg2
from support.ledger import Verdict, ask

from chaos import read_records
from chaos.checker import COUNTERS, Findings, Tolerance, check
from chaos.cluster import Cluster, running_cluster
from chaos.corners import RETAINED, TRIGGERED, Corners, without_deleted
from chaos.fault_context import Fault, FaultContext
from chaos.faults import MEASURED, UNMEASURED, InjectedFault, inject
from chaos.load import LoadGenerator
from chaos.monitor import Monitor
from chaos.plan import PlannedDag
from chaos.recovery import LIMIT_S, Meter, figures
from chaos.shapes import MEASURES, plan

#: At least 5,000 in 10 minutes, with some to spare.
TIS_PER_SECOND = 10.0
#: Seconds without a task instance that ends, once nothing goes wrong any more, after which what is open is stuck. What waits behind
#: max_active_runs has its turn; together it may take the longest.
SETTLE_S, LONGEST_S = 60.0, 900.0
OVERLAP = 0.3
#: A longer fault continues beside other faults, whose recovery then does not count.
LASTING_S = 15.0
#: Seconds after a crash of PostgreSQL in which recoveries do not count either: worker.heartbeat_timeout and two looks of rescue.
CRASHES, AFTERMATH_S = ("postgres_immediate", "postgres_backend", "standby_promoted"), 14.0
#: Seconds after a fault in which a worker may still be declared lost for it: its timeout, two looks of rescue, and some to act.
NOTICED_S, NOTICED_QUICK_S = 25.0, 12.0
#: Seconds that a fault whose recovery is measured waits for others to be over.
QUIET_S = 15.0
#: Dates before the start of the run that the corner DAGs leave out.
FEWER = 6
OPEN = (
    "select (select count(*) from dag_run where state in ('queued', 'running')),"
    # Of the last DAG, runs are deleted.
    f" (select count(*) from dag_run where run_type = 'scheduled' and dag_id <> '{RETAINED}'),"
    " (select count(*) from task_instance where ended_at is not null)"
)


#: Counters of the ledger, of the checker, and of the monitor: all must be 0.
OF_LEDGER = ("lost", "stuck", "double_running", "double_success")
OF_JUDGE = tuple(name for name in COUNTERS if name != "slot_overruns")


@dataclass
class Report:
    """The result of a chaos run; `line` is the JSON line."""

    seed: int
    verdict: Verdict
    findings: Findings
    faults: list[InjectedFault]
    overruns: list[str]
    deadlocks: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """The violations, by counter; each list must be empty."""
        counted = {name: len(getattr(self.verdict, name)) for name in OF_LEDGER}
        counted |= {name: len(getattr(self.findings, name)) for name in OF_JUDGE}
        counted |= {"pool_overruns": len(self.overruns) + len(self.findings.slot_overruns), "deadlocks": len(self.deadlocks)}
        return counted | {"overlaps_without_fault": sum(not overlap.excused for overlap in self.findings.overlaps)}

    @property
    def line(self) -> str:
        injected = Counter(fault.name for fault in self.faults if fault.error is None)
        counted: dict[str, Any] = {
            "seed": self.seed,
            "tis": self.verdict.tis,
            "faults": dict(sorted(injected.items())) | {"other_time_zone": 1},
            **self.counts,
            "overlaps": self.findings.overlap_figures(),
            "recovery_s": figures(fault.recovery for fault in self.faults if fault.alone and fault.recovery is not None),
        }
        return json.dumps(counted)

    def text(self) -> str:
        """As text: each fault, then all findings by counter."""
        lines = [_line(fault) for fault in self.faults]
        lines += [f"{name}: {one}" for name in OF_LEDGER for one in getattr(self.verdict, name)]
        lines += [f"{name}: {one}" for name in COUNTERS for one in getattr(self.findings, name)]
        lines += [f"over a limit: {overrun}" for overrun in self.overruns] + [
            f"deadlock: {deadlock}" for deadlock in self.deadlocks
        ]
        lines += [f"overlap without a fault: {overlap.label}" for overlap in self.findings.overlaps if not overlap.excused]
        excused = sum(overlap.excused for overlap in self.findings.overlaps)
        lines.append(f"{self.verdict.executions} executions; beside the next try, as a lost worker's may be: {excused}")
        return "\n".join([*lines, *self.notes])


def counters() -> tuple[str, ...]:
    """The counters that must be 0."""
    return (*OF_LEDGER, *OF_JUDGE, "pool_overruns", "deadlocks", "overlaps_without_fault")


def chaos(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    quick: bool,
    at_least: int = 0,
    longest_s: float = 60.0,
    faults: Sequence[Fault] = UNMEASURED,
    measured: Sequence[Fault] = MEASURED,
    settle_s: float = SETTLE_S,
    tis_per_second: float = TIS_PER_SECOND,
    packages: Path | None = None,
    say: Any = print,
) -> Report:
    """Run it in `folder`, which must be empty and have a short name (it holds Unix sockets).

    `at_least` so many faults happen, however long that takes on a slow machine.
    """
    planned = plan(seed, start=datetime.now(UTC), seconds=seconds)
    dates = planned.dags["c21_catchup"].schedule
    assert dates is not None
    corners = Corners(dates.start + FEWER * dates.interval, dates.end, dates.interval)
    with running_cluster(folder, planned, quick=quick, packages=packages, corners=corners) as cluster:
        say(f"seed {seed}: {len(cluster.links)} processes, logs in {folder / 'logs'}")
        monitor = Monitor(cluster.settings.database_url, cluster.history)
        triggered = [one for _, one in sorted(planned.dags.items()) if one.schedule is None and one not in MEASURES]
        triggered += [PlannedDag(dag_id=dag_id, tasks=()) for dag_id in TRIGGERED]
        load = LoadGenerator(cluster.settings, cluster.history, triggered, seed, seconds=seconds, tis_per_second=tis_per_second)
        monitor.start()
        load.start()
        injected = _inject_faults(cluster, seed, seconds, at_least, longest_s, FaultSchedule(faults, measured, seed), say)
        load.end()
        settled = _settle(cluster, settle_s, corners.dates, say)
        monitor.end()
        report = _checked(cluster, seed, injected, monitor, corners, quick=quick)
        report.notes.append(f"{load.triggered} runs triggered, {monitor.looks} looks, settled after {settled:.1f} s")
        if not report.ok:
            report.notes.append(f"last log lines of the processes:\n{cluster.log_tail()}")
        return report


def _checked(
    cluster: Cluster, seed: int, injected: list[InjectedFault], monitor: Monitor, corners: Corners, *, quick: bool
) -> Report:
    url, history = cluster.settings.database_url, cluster.history
    cleared = Counter(
        (action.dag_id, action.run_id, task) for action in history.actions if action.kind == "clear" for task in action.tasks
    )
    marked = {(action.dag_id, action.run_id, task) for action in history.actions if action.kind == "mark" for task in action.tasks}
    verdict = cluster.ledger.check(url, cleared=cleared, marked=marked)
    verdict.lost[:] = without_deleted(verdict.lost)
    findings = check(
        cluster.plan, read_records.read(url, cluster.ledger), history, Tolerance(NOTICED_QUICK_S if quick else NOTICED_S)
    )
    for counter, texts in corners.judge(url, cluster.ledger).items():
        getattr(findings, counter).extend(texts)
    logs = [log.read_text(errors="replace") for log in sorted((cluster.folder / "logs").glob("postgres*.log"))]
    logged = [line for log in logs for line in log.splitlines() if "deadlock detected" in line]
    return Report(
        seed, verdict, findings, injected, monitor.overruns, logged or ["counted by pg_stat_database"] * monitor.deadlocks
    )


class ShuffledFaults:
    """Draws all faults in random order, then all again in another one."""

    def __init__(self, faults: Sequence[Fault], rng: random.Random) -> None:
        self._faults = faults
        self._rng = rng
        self._left: list[Fault] = []

    def draw(self) -> Fault:
        if not self._left:
            self._left = self._rng.sample(self._faults, len(self._faults))
        return self._left.pop()


class FaultSchedule:
    """Every second draw is a fault whose recovery is measured, one at a time; the others come in ones and twos."""

    def __init__(self, faults: Sequence[Fault], measured: Sequence[Fault], seed: int) -> None:
        self._others, self._measured = (
            ShuffledFaults(faults, random.Random(f"{seed} faults")),
            ShuffledFaults(measured, random.Random(f"{seed} measured")),
        )
        self._rng = random.Random(f"{seed} times")
        self._has_others, self._has_measured = bool(faults), bool(measured)
        self._turn = 0

    def draw(self) -> list[Fault]:
        self._turn += 1
        if self._has_measured and (self._turn % 2 == 0 or not self._has_others):
            return [self._measured.draw()]
        return [self._others.draw() for _ in range(2 if self._rng.random() < OVERLAP else 1)] if self._has_others else []


def _inject_faults(
    cluster: Cluster, seed: int, seconds: float, at_least: int, longest_s: float, schedule: FaultSchedule, say: Any
) -> list[InjectedFault]:
    """One fault after the other, sometimes two at a time; long faults continue beside the next ones."""
    rng = random.Random(f"{seed} gaps")
    meter = Meter(cluster.settings.database_url)
    injected: list[InjectedFault] = []
    lasting: list[tuple[threading.Thread, InjectedFault]] = []
    deadline = time.monotonic() + seconds
    time.sleep(min(3.0, seconds / 10))
    while time.monotonic() < deadline or len(injected) < at_least:
        drawn = schedule.draw()
        gap_s, rest_s = rng.uniform(0, 1.5), rng.uniform(0.2, 2.0)
        lasting = [(thread, one) for thread, one in lasting if thread.is_alive()]
        begun = []
        for fault in drawn:
            number = len(injected)
            # Other faults would be measured as well.
            alone = len(drawn) == 1 and _quiet(
                cluster, lasting, injected, QUIET_S if fault in MEASURED and longest_s > QUIET_S else 0.0
            )
            one = InjectedFault(number, fault.__name__, time.strftime("%H:%M:%S"), alone=alone)
            injected.append(one)
            context = FaultContext(
                cluster, meter, random.Random(f"{seed} fault {number}"), min(longest_s, max(1.0, deadline - time.monotonic()))
            )
            begun.append((inject(fault, context, one), one))
            time.sleep(gap_s if len(drawn) == 2 else 0)
        _wait(begun, LASTING_S)
        for thread, one in begun:
            one.alone = one.alone and not thread.is_alive()
            if thread.is_alive():
                lasting.append((thread, one))
            say(_line(one))
        time.sleep(max(0.0, min(rest_s, deadline - time.monotonic())))
    _wait(lasting, 2 * LIMIT_S + longest_s)
    return injected


def _quiet(
    cluster: Cluster, lasting: list[tuple[threading.Thread, InjectedFault]], injected: list[InjectedFault], seconds: float
) -> bool:
    """Whether no other fault is active; waits so long until faults are over, and killed processes are up again."""
    deadline = time.monotonic() + seconds
    while any(thread.is_alive() for thread, _ in lasting) or _aftermath(injected) or not cluster.whole():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True


def _aftermath(injected: list[InjectedFault]) -> bool:
    """After a crash of PostgreSQL, tasks queued before it wait until workers have confirmed their claims (ADR 4)."""
    return any(one.name in CRASHES and time.monotonic() - one.ended < AFTERMATH_S for one in injected)


def _wait(begun: list[tuple[threading.Thread, InjectedFault]], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread, _ in begun:
        thread.join(max(0.0, until - time.monotonic()))


def _settle(cluster: Cluster, settle_s: float, more_dates: int, say: Any) -> float:
    """Wait until every run has ended, or until nothing moves any more; how long it took. `more_dates` are not in the plan."""
    started = moved = time.monotonic()
    last = (-1, -1)
    to_come = more_dates + sum(len(dag.schedule.dates) for dag in cluster.plan.dags.values() if dag.schedule is not None)
    while time.monotonic() < min(moved + settle_s, started + LONGEST_S):
        with contextlib.suppress(psycopg2.Error):
            left, scheduled, ended = ask(cluster.settings.database_url, OPEN)[0]
            left += max(0, to_come - scheduled)
            if left == 0:
                break
            if left != last[0]:
                say(f"{left} runs to end")
            if (left, ended) != last:
                last, moved = (left, ended), time.monotonic()
        time.sleep(0.5)
    return time.monotonic() - started


def _line(one: InjectedFault) -> str:
    recovery = "" if one.recovery is None else f", {one.recovery.kind} back after {[round(s, 2) for s in one.recovery.seconds]}"
    together = "" if one.alone else ", with another"
    error = "" if one.error is None else f", not injected: {one.error}"
    return f"{one.at} {one.number:3} {one.name} ({one.seconds:.1f} s){recovery}{together}{error}"
