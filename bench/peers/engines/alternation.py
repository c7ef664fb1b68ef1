"""Runs shapes on Paceline and on an engine in turns, on the same servers. Only one of the two runs at a time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench import measure, shapes
from bench.measure import in_turns
from bench.peers.engines import session
from bench.peers.engines.catalog import Engine
from bench.peers.engines.session import Trial
from bench.shapes import Shape
from bench.stack import Stack, StackError

#: Runs of a shape that count in each turn, after one that does not.
RUNS = 3
#: Seconds after which no further turn with an engine begins.
LIMIT_S = 2400.0
#: Without those that only `--shape` chooses.
USUAL = ("chain", "wide", "many")


@dataclass(frozen=True, slots=True)
class Task:
    """A shape for both: Paceline's DAG files, and the name and the sizes of the shape in the program of an engine."""

    paceline: Shape
    name: str
    sizes: tuple[int, ...]


@dataclass(slots=True)
class Pairs:
    """The trials of a shape on an engine, each with that on Paceline in the same turn. A trial is the median of a turn."""

    engine: Engine
    shape: Shape
    trials: list[tuple[Trial, Trial]] = field(default_factory=list)


def tasks(*, small: bool = False) -> dict[str, Task]:
    """All shapes, by name."""
    count, long, width, runs, length = (5, 8, 10, 3, 3) if small else (100, 1000, 2000, 100, 10)
    found = (
        Task(shapes.chain(count), "chain", (count,)),
        Task(shapes.wide(width), "wide", (width,)),
        Task(shapes.many(runs, length), "many", (runs, length)),
        Task(shapes.chain(long, "chain1000"), "chain", (long,)),
    )
    return {task.paceline.name: task for task in found}


def alternate(
    engine: Engine, chosen: Mapping[str, Task], *, iterations: int, runs: int = RUNS, say: Callable[[str], None]
) -> list[Pairs]:
    """Run the shapes that the engine can run. StackError if either system fails, or if that takes too long."""
    end_at = time.monotonic() + LIMIT_S
    able = [task for name, task in chosen.items() if name not in engine.without]
    pairs = [Pairs(engine, task.paceline) for task in able]
    files = shapes.files_of(task.paceline for task in able)
    with Stack(files, schedulers=0, workers=0) as stack:
        for iteration in range(iterations):
            if time.monotonic() > end_at:
                raise StackError(f"{LIMIT_S:.0f} s were too short for {iterations} turns with {engine.name}")
            turn = in_turns(iteration, lambda: _on_engine(stack, engine, able, runs), lambda: _on_paceline(stack, able, runs))
            for pair, theirs, ours in zip(pairs, *turn, strict=True):
                pair.trials.append((theirs, ours))
                say(f"{engine.name} {pair.shape.name}: {_line(theirs)}; Paceline {_line(ours)}")
    return pairs


def _on_engine(stack: Stack, engine: Engine, able: Sequence[Task], runs: int) -> list[Trial]:
    with session.running(stack, engine) as peer:
        return [_median([peer.run(task.name, task.sizes, task.paceline.tasks) for _ in range(runs + 1)][1:]) for task in able]


def _on_paceline(stack: Stack, able: Sequence[Task], runs: int) -> list[Trial]:
    stack.start(schedulers=1, workers=1)
    try:
        return [_paceline(stack, task.paceline, runs) for task in able]
    finally:
        stack.stop_processes()


def _paceline(stack: Stack, shape: Shape, runs: int) -> Trial:
    measure.warm_up(stack, shape)
    return _median([_trial(stack, shape) for _ in range(runs)])


def _trial(stack: Stack, shape: Shape) -> Trial:
    measured = measure.run(stack, shape)
    return Trial(
        steps=measured.succeeded,
        seconds=measured.makespan_s,
        cpu_s=measured.cpu_s_per_task["total"] * measured.tasks,
        calibration_ms=measured.calibration_ms,
    )


def _median(trials: Sequence[Trial]) -> Trial:
    return Trial(
        steps=trials[0].steps,
        seconds=median(trial.seconds for trial in trials),
        cpu_s=median(trial.cpu_s for trial in trials),
        calibration_ms=median(trial.calibration_ms for trial in trials),
    )


def _line(trial: Trial) -> str:
    time_ms, cpu_ms = (seconds * 1000 / trial.steps for seconds in (trial.seconds, trial.cpu_s))
    return f"{time_ms:.2f} ms a task, CPU {cpu_ms:.2f} ms ({trial.calibration_ms:.1f})"
