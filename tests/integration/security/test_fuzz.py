"""A short part of `make fuzz`: some cases of every area."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz import broker, strategies
from fuzz.areas import AREAS, Area, Ground
from fuzz.run import Result, feed
from fuzz.stack import GOOD, samples
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import Settings

CASES = {
    "ids": 100, "conf": 40, "messages": 300, "wake-ups": 200, "answers": 400, "callbacks": 8, "remote control": 300,
    "environments": 200, "toml": 150, "arguments": 150, "files": 80,
}  # fmt: skip


@pytest.fixture
def ground(settings: Settings, tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(settings, tmp_path)
    yield ground
    ground.close()


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_nothing_but_a_sentence_comes_of(area: Area, ground: Ground) -> None:
    result = Result()

    feed(area, ground, CASES[area.name], seed=4, deadline=float("inf"), result=result)

    assert result.failures == {}
    assert result.cases[area.name] >= CASES[area.name] / 2


def test_processes_survive_and_work_with_any_garbage_in_redis(stack_factory: StackFactory) -> None:
    stack = stack_factory(dags={"good.py": GOOD}, schedulers=1, workers=[("default", 2)], waiters=1)
    eventually(lambda: stack.json("dags", "list"), timeout=120, message=stack.logs)

    count = broker.rounds(
        stack,
        seed=4,
        garbage=[member for members in samples(strategies.wakeups, 40) for member in members],
        commands=samples(strategies.commands, 100),
        kinds=[None, None],
    )

    assert count > 150
