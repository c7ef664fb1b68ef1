"""The list of services: a duty is one file in scheduler/services and one line of the list."""

import importlib
import pkgutil
from collections import Counter

import pytest

from scheduler import services as package
from scheduler.services.heartbeat import Heartbeat
from scheduler.services.loop import services
from scheduler.services.promote import STARTERS
from scheduler.services.service import BaseService, Service, TimedService
from scheduler.settings import Settings
from scheduler.settings.sections import Broker, Database
from scheduler.store.db import database


@pytest.fixture
def listed() -> tuple[BaseService, ...]:
    """They connect when they are first used."""
    settings = Settings(database=Database(url="postgresql://nowhere/paceline"), broker=Broker(url="redis://nowhere"))
    return services(database.create(settings), settings, lambda: "s#1")


def test_every_service_is_listed_once_and_named_after_its_file(listed: tuple[BaseService, ...]) -> None:
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    declared = {*Service.__subclasses__(), *TimedService.__subclasses__()} - {Heartbeat}

    assert Counter(map(type, listed)) == Counter(declared)
    assert {one.name for one in listed} == {one.__module__.rpartition(".")[2] for one in declared}


def test_the_end_of_a_run_wakes_services_that_exist(listed: tuple[BaseService, ...]) -> None:
    assert {*STARTERS, "notify", "queue", "promote"} <= {one.name for one in listed}
