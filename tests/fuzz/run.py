"""Runs areas with a number of cases each, from one seed. The first failure of an area is shrunk and kept; other areas continue."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given
from support.servers import running_postgres, running_redis

from fuzz.areas import AREAS, Area, Ground
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database


@dataclass
class Result:
    """The number of cases of an area, and its failures."""

    cases: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    """Servers and settings of its own."""
    home, dags = folder / "home", folder / "dags"
    home.mkdir()
    dags.mkdir()
    with running_postgres(folder / "postgres") as postgres, running_redis(folder / "redis") as redis:
        with postgres.new_database() as url:
            settings = Settings(
                paths=Paths(home=home, dags_folder=dags), database=Database(url=url), broker=Broker(url=redis.new_database())
            )
            ground = Ground(settings, folder)
            try:
                yield ground
            finally:
                ground.close()


def feed(area: Area, on: Ground, cases: int, *, seed: int, deadline: float, result: Result) -> None:
    """Feed about `cases` cases to an area; files count one by one, since many are read at once."""
    result.cases[area.name] = 0
    batch = 20 if area.name == "files" else 1

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max(1, cases // batch),
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(area.strategy)
    def each(case: Any) -> None:
        if time.monotonic() > deadline:
            return
        result.cases[area.name] += len(case) if isinstance(case, dict) and area.name == "files" else 1
        area.check(on, case)

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        each()
    except (Exception, SystemExit) as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        result.failures[area.name] = f"{type(error).__name__}: {error}\n{notes}"
    finally:
        logging.disable(before)


def feed_all(on: Ground, cases: int, *, seed: int, seconds: float, say: Callable[[str], None]) -> Result:
    """Every area its share of `cases`, within about `seconds`."""
    result = Result()
    deadline = time.monotonic() + seconds
    for area in AREAS:
        started = time.monotonic()
        feed(area, on, round(cases * area.share), seed=seed, deadline=deadline, result=result)
        failed = f"; FAILED: {result.failures[area.name]}" if area.name in result.failures else ""
        say(f"{area.name}: {result.cases[area.name]} cases in {time.monotonic() - started:.0f} s{failed}")
    return result
