"""The engine of one test: a real database and broker, with scheduler turns that the test calls."""

from collections.abc import Callable, Iterator

import pytest
from support.scenario import Scenario

from scheduler.settings import Settings


@pytest.fixture
def make_scenario(settings: Settings) -> Iterator[Callable[..., Scenario]]:
    """Make scenarios with any number of schedulers, follow on or off, and settings of their own."""
    made: list[Scenario] = []

    def make(*, schedulers: int = 1, follow: bool = True, **sections: dict[str, object]) -> Scenario:
        changed = {name: getattr(settings, name).model_copy(update=values) for name, values in sections.items()}
        made.append(Scenario(settings.model_copy(update=changed), schedulers=schedulers, follow=follow))
        return made[-1]

    yield make
    for scenario in made:
        scenario.close()


@pytest.fixture
def scenario(make_scenario: Callable[..., Scenario]) -> Scenario:
    """One scheduler, follow on."""
    return make_scenario()
