"""The names of runtimes are the same for schedulers and for workers."""

from scheduler.serialized.runtimes import TRAITS
from workers.task.runtimes import RUNTIMES


def test_each_runtime_has_its_traits_and_its_code() -> None:
    assert TRAITS.keys() == RUNTIMES.keys()
