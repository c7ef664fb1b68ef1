"""Runs the shapes on Paceline, on Airflow, and on Paceline again, so that a machine that changes its speed affects both equally."""

import contextlib
import fcntl
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import shapes
from bench.peers import airflow, profiles
from bench.peers.imports import for_airflow
from bench.peers.profiles import Profile
from bench.peers.run import Run, on_airflow, on_paceline
from bench.shapes import Shape
from bench.stack import Stack

#: Airflow needs minutes for `wide` with 2,000 tasks. Both systems run the same size.
WIDE = 200
#: Runs of each shape on Paceline, before Airflow and after it.
PACELINE_RUNS = 7
#: Run once after each start as a warm-up, so that every pool process of either system has run a task.
WARM_UP = "tree"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One start of Airflow: its settings, which shapes it runs, and how often each."""

    profile: Profile
    shapes: Mapping[str, int]


#: Each block takes about three minutes. Airflow's defaults need two for the chain.
BLOCKS = (
    Block(profile=profiles.DEFAULTS, shapes={"chain": 1}),
    Block(profile=profiles.DEFAULTS, shapes={"wide": 1, "fib": 1}),
    Block(profile=profiles.BEST_CHAIN, shapes={"chain": 2, "fib": 2}),
    Block(profile=profiles.BEST_WIDE, shapes={"wide": 2}),
)


@dataclass(slots=True)
class Pair:
    """The runs of one shape on Airflow with one profile, and those on Paceline just before and after."""

    profile: Profile
    shape: Shape
    #: Load average of the machine before the block: 0 if nothing else ran.
    load: float = 0.0
    airflow: list[Run] = field(default_factory=list)
    paceline: list[Run] = field(default_factory=list)


def compare(
    programs: Path, found: Mapping[str, Shape], blocks: Sequence[Block], *, lock: Path | None, say: Callable[[str], None]
) -> list[Pair]:
    """Run all blocks. `lock` is a file that is locked during each block, so that measurements on one machine do not overlap."""
    pairs = []
    files = shapes.files_of(found.values())
    for block in blocks:
        with locked(lock), Stack(files, schedulers=0, workers=0) as stack:
            wanted = [Pair(block.profile, found[name], os.getloadavg()[0]) for name in block.shapes]
            _paceline(stack, wanted, say)
            _airflow(stack, block, wanted, programs, say)
            _paceline(stack, wanted, say)
        pairs += wanted
    return pairs


def sizes(*, small: bool = False) -> dict[str, Shape]:
    """The shapes to compare, by name, with one for the warm-up."""
    chain, wide, fib = (5, 10, 3) if small else (100, WIDE, 40)
    found = {shape.name: shape for shape in (shapes.chain(chain), shapes.wide(wide), shapes.fib(count=fib))}
    return found | {WARM_UP: shapes.tree(7 if small else 63)}


def _paceline(stack: Stack, pairs: Sequence[Pair], say: Callable[[str], None]) -> None:
    stack.start(schedulers=1, workers=1)
    on_paceline(stack, WARM_UP)
    for _ in range(PACELINE_RUNS):
        for pair in pairs:
            pair.paceline.append(on_paceline(stack, pair.shape.name))
    stack.stop_processes()
    for pair in pairs:
        say(f"Paceline: {_times(pair.shape, pair.paceline[-PACELINE_RUNS:])}")


def _airflow(stack: Stack, block: Block, pairs: Sequence[Pair], programs: Path, say: Callable[[str], None]) -> None:
    files = {path.name: for_airflow(path.read_text(encoding="utf-8")) for path in stack.settings.dags_folder.glob("*.py")}
    with airflow.running(stack, block.profile, programs=programs, files=files) as peer:
        on_airflow(peer, WARM_UP)
        for pair in pairs:
            for _ in range(block.shapes[pair.shape.name]):
                pair.airflow.append(on_airflow(peer, pair.shape.name))
            say(f"Airflow, {block.profile.name}: {_times(pair.shape, pair.airflow)}")


def _times(shape: Shape, runs: Sequence[Run]) -> str:
    times = ", ".join(f"{run.makespan_s:.3f}" for run in runs)
    return f"{shape.name} {times} s (calibration {statistics.median(run.calibration_ms for run in runs):.1f} ms)"


@contextlib.contextmanager
def locked(lock: Path | None) -> Iterator[None]:
    """Hold a lock on the file, if there is one, during the block."""
    with contextlib.ExitStack() as undo:
        if lock is not None:
            fcntl.flock(undo.enter_context(lock.open("a")), fcntl.LOCK_EX)
        yield
