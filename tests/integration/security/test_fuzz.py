"""A short part of `make fuzz`: some cases of every area."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.areas import AREAS, Area, Ground
from fuzz.run import Result, feed

from scheduler.settings import Settings

CASES = {"ids": 100, "conf": 40, "messages": 300, "environments": 200, "toml": 150, "arguments": 150, "files": 80}


@pytest.fixture
def ground(settings: Settings, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(settings, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.name)
def test_nothing_but_a_sentence_comes_of(area: Area, ground: Ground) -> None:
    result = Result()

    feed(area, ground, CASES[area.name], seed=4, deadline=float("inf"), result=result)

    assert result.failures == {}
    assert result.cases[area.name] >= CASES[area.name] / 2
