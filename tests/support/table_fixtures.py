"""Fixtures of a catalog over the database of one test, for the folders of tests that use tables."""

from collections.abc import Callable, Iterator

import pytest

from scheduler.settings import Settings
from support import tables
from support.scenario import Scenario


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings with a warehouse."""
    return tables.with_tables(settings)


@pytest.fixture
def lake(make_scenario: Callable[..., Scenario]) -> Iterator[tables.Lake]:
    """The catalog, with a namespace `sales`."""
    with tables.lake(make_scenario()) as served:
        served.person().create_namespace("sales")
        yield served
