"""One chaos run: start the stage, load it, let faults happen until the time is up, let it settle, judge, report."""

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
from support.ledger import Verdict, ask

from chaos.faults import BAG, MEASURED, Act, Fault, Happened, perform
from chaos.load import Load
from chaos.recovery import LIMIT_S, Meter, figures
from chaos.shapes import dags
from chaos.stage import Stage, stage
from chaos.watch import Watch

#: At least 5,000 in 10 minutes, with some to spare.
TIS_PER_SECOND = 10.0
#: Seconds without a task instance that ends, once nothing goes wrong any more, after which what is open is stuck. What waits behind
#: max_active_runs has its turn; together it may take the longest.
SETTLE_S, LONGEST_S = 60.0, 900.0
OVERLAP = 0.3
#: What lasts longer goes on beside other faults, whose recovery then does not count.
LASTING_S = 15.0
#: Seconds after a crash of PostgreSQL in which recoveries do not count either: worker.heartbeat_timeout and two looks of rescue.
CRASHES, AFTERMATH_S = ("postgres_immediate", "postgres_backend"), 14.0
#: Seconds in which a process that was killed is up again, if it is not in the way of others.
WHOLE_S = 12.0
OPEN = (
    "select (select count(*) from dag_run where state in ('queued', 'running')),"
    " (select count(*) from task_instance where ended_at is not null)"
)


@dataclass
class Report:
    """What a chaos run found; `line` is the JSON line."""

    seed: int
    verdict: Verdict
    faults: list[Happened]
    overruns: list[str]
    deadlocks: list[str]
    log_folder: Path
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.verdict.ok and not self.overruns and not self.deadlocks

    @property
    def line(self) -> str:
        counted: dict[str, Any] = {
            "seed": self.seed,
            "tis": self.verdict.tis,
            "faults": dict(sorted(Counter(one.name for one in self.faults if one.error is None).items())) | {"other_time_zone": 1},
            "lost": len(self.verdict.lost),
            "stuck": len(self.verdict.stuck),
            "double_running": len(self.verdict.double_running),
            "double_success": len(self.verdict.double_success),
            "pool_overruns": len(self.overruns),
            "deadlocks": len(self.deadlocks),
            "recovery_s": figures(one.recovery for one in self.faults if one.alone and one.recovery is not None),
        }
        return json.dumps(counted)

    def text(self) -> str:
        """For people: each fault, then what went wrong, by name."""
        lines = [_line(one) for one in self.faults]
        verdict = self.verdict
        for name in ("lost", "stuck", "double_running", "double_success"):
            lines += [f"{name}: {one}" for one in getattr(verdict, name)]
        lines += [f"over a limit: {one}" for one in self.overruns] + [f"deadlock: {one}" for one in self.deadlocks]
        lines.append(
            f"{verdict.executions} executions; overtaken by their next try, as a lost worker's may be: {len(verdict.overtaken)}"
        )
        return "\n".join([*lines, *self.notes])


def chaos(
    folder: Path,
    *,
    seed: int,
    seconds: float,
    quick: bool,
    longest_s: float = 60.0,
    faults: Sequence[Fault] = BAG,
    say: Any = print,
) -> Report:
    """Run it in `folder`, which must be empty and have a short name (it holds Unix sockets)."""
    with stage(folder, seed, quick=quick) as found:
        say(f"seed {seed}: {len(found.lines)} processes, logs in {folder / 'logs'}")
        watch = Watch(found.settings.database_url)
        load = Load(found.settings, sorted(dags(seed)), seed, seconds=seconds, tis_per_second=TIS_PER_SECOND)
        watch.start()
        load.start()
        happened = _make_trouble(found, seed, seconds, longest_s, faults, say)
        load.end()
        settled = _settle(found, say)
        watch.end()
        verdict = found.ledger.judge(found.settings.database_url)
        logged = [
            line for line in found.servers.log("postgres").read_text(errors="replace").splitlines() if "deadlock detected" in line
        ]
        report = Report(
            seed, verdict, happened, watch.overruns, logged or ["counted by pg_stat_database"] * watch.deadlocks, folder / "logs"
        )
        report.notes.append(f"{load.triggered} runs triggered, {watch.looks} looks, settled after {settled:.1f} s")
        if not report.ok:
            report.notes.append(f"last words of the processes:\n{found.log_tail()}")
        return report


class Bag:
    """Draws every fault before any comes more often than it is in the bag."""

    def __init__(self, faults: Sequence[Fault], dice: random.Random) -> None:
        self._faults = faults
        self._dice = dice
        self._left: list[Fault] = []

    def draw(self) -> Fault:
        if not self._left:
            self._left = self._dice.sample(self._faults, len(self._faults))
        return self._left.pop()


def _make_trouble(found: Stage, seed: int, seconds: float, longest_s: float, faults: Sequence[Fault], say: Any) -> list[Happened]:
    """One fault after the other, sometimes two at a time; what lasts long goes on beside the next ones."""
    dice, bag = random.Random(f"{seed} times"), Bag(faults, random.Random(f"{seed} faults"))
    meter = Meter(found.settings.database_url)
    happened: list[Happened] = []
    lasting: list[tuple[threading.Thread, Happened]] = []
    deadline = time.monotonic() + seconds
    time.sleep(min(3.0, seconds / 10))
    while time.monotonic() < deadline:
        count = 2 if dice.random() < OVERLAP else 1
        gap_s, rest_s = dice.uniform(0, 1.5), dice.uniform(0.2, 2.5)
        lasting = [(thread, one) for thread, one in lasting if thread.is_alive()]
        begun = []
        for _ in range(count):
            fault, number = bag.draw(), len(happened)
            # What else is wrong would be measured as well.
            alone = count == 1 and not lasting and not _aftermath(happened)
            alone = alone and (found.whole() or (fault in MEASURED and _becomes_whole(found, min(WHOLE_S, longest_s))))
            one = Happened(number, fault.__name__, time.strftime("%H:%M:%S"), alone=alone)
            happened.append(one)
            act = Act(found, meter, random.Random(f"{seed} fault {number}"), min(longest_s, max(1.0, deadline - time.monotonic())))
            begun.append((perform(fault, act, one), one))
            time.sleep(gap_s if count == 2 else 0)
        _wait(begun, LASTING_S)
        for thread, one in begun:
            one.alone = one.alone and not thread.is_alive()
            if thread.is_alive():
                lasting.append((thread, one))
            say(_line(one))
        time.sleep(min(rest_s, max(0.0, deadline - time.monotonic())))
    _wait(lasting, LIMIT_S + longest_s)
    return happened


def _becomes_whole(found: Stage, seconds: float) -> bool:
    """Wait a little for what was killed to be up again."""
    deadline = time.monotonic() + seconds
    while not (whole := found.whole()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return whole


def _aftermath(happened: list[Happened]) -> bool:
    """After a crash of PostgreSQL what was queued before it waits until workers have asserted their claims (ADR 4)."""
    return any(one.name in CRASHES and time.monotonic() - one.ended < AFTERMATH_S for one in happened)


def _wait(begun: list[tuple[threading.Thread, Happened]], seconds: float) -> None:
    until = time.monotonic() + seconds
    for thread, _ in begun:
        thread.join(max(0.0, until - time.monotonic()))


def _settle(found: Stage, say: Any) -> float:
    """Wait until every run has ended, or until nothing moves any more; how long it took."""
    started = moved = time.monotonic()
    last = (-1, -1)
    while time.monotonic() < min(moved + SETTLE_S, started + LONGEST_S):
        with contextlib.suppress(psycopg2.Error):
            left, ended = ask(found.settings.database_url, OPEN)[0]
            if left == 0:
                break
            if left != last[0]:
                say(f"{left} runs to end")
            if (left, ended) != last:
                last, moved = (left, ended), time.monotonic()
        time.sleep(0.5)
    return time.monotonic() - started


def _line(one: Happened) -> str:
    recovery = "" if one.recovery is None else f", {one.recovery.kind} back after {[round(s, 2) for s in one.recovery.seconds]}"
    together = "" if one.alone else ", with another"
    error = "" if one.error is None else f", in the way of itself: {one.error}"
    return f"{one.at} {one.number:3} {one.name} ({one.seconds:.1f} s){recovery}{together}{error}"
