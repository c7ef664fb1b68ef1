"""Triggers as the rows of deferred tasks name them."""

import importlib
from datetime import UTC, datetime

import pytest

from paceline.authoring import deferral
from paceline.triggers import (
    BaseTrigger,
    DateTimeTrigger,
    DirectoryFileDeleteTrigger,
    ExternalTrigger,
    FileDeleteTrigger,
    FileTrigger,
)


@pytest.mark.parametrize(
    "trigger",
    [
        DateTimeTrigger(datetime(2026, 3, 1, tzinfo=UTC)),
        DirectoryFileDeleteTrigger(directory="/tmp", filename="orders"),
        ExternalTrigger([], allowed_states=["success"]),
        FileDeleteTrigger("/tmp/orders"),
        FileTrigger("/tmp/orders"),
    ],
    ids=lambda trigger: type(trigger).__name__,
)
def test_a_class_path_is_that_of_every_release_and_leads_to_the_class(trigger: BaseTrigger) -> None:
    path, arguments = deferral.serialized(trigger)

    module, _, name = path.rpartition(".")
    assert module == "paceline.triggers"
    kind = getattr(importlib.import_module(module), name)
    assert kind is type(trigger)
    assert deferral.serialized(kind(**deferral.decode(arguments))) == (path, arguments)
