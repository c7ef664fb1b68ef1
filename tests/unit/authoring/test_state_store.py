"""The stores of state in the context: accepted values, and their owners. Errors and defaults are Airflow 3.3.2's."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from paceline import NEVER_EXPIRE, Asset
from paceline.authoring.state_store import AssetStateStores, NoStates, TaskStateStore
from paceline.exceptions import PacelineError

A, B = Asset("a", "s3://a"), Asset("b")


class Recorded:
    """Records its calls."""

    def __init__(self, retention: timedelta | None = timedelta(days=30)) -> None:
        self.retention = retention
        self.calls: list[Any] = []

    def get(self, uri: str | None, key: str, default: Any) -> Any:
        return uri, key, default

    def set(self, *given: Any) -> None:
        self.calls.append(given)

    def delete(self, *given: Any) -> None:
        self.calls.append(given)


def test_the_values_of_a_task_expire_after_their_own_or_the_default_time() -> None:
    backend = Recorded()
    store = TaskStateStore(backend)
    store.set("a", 1)
    store.set("b", [2], retention=timedelta(hours=6))
    store.set("c", 3, retention=NEVER_EXPIRE)
    store.delete("a")
    store.clear()
    TaskStateStore(forever := Recorded(None)).set("d", 4)

    assert store.get("x", 5) == (None, "x", 5)
    assert backend.calls == [
        (None, "a", 1, 2592000.0), (None, "b", [2], 21600.0), (None, "c", 3, None), (None, "a"), (None, None)
    ]  # fmt: skip
    assert forever.calls == [(None, "d", 4, None)]


def test_the_values_of_an_asset_are_found_by_the_asset_or_alone() -> None:
    backend = Recorded()
    both, one = AssetStateStores(backend, [A, B]), AssetStateStores(backend, [A, A])
    both[B].set("x", 1)
    one.set("y", 2)
    one.delete("y")
    one.clear()

    assert (both[A].get("k"), one.get("k", 0)) == (("s3://a", "k", None), ("s3://a", "k", 0))
    assert backend.calls == [("b", "x", 1, None), ("s3://a", "y", 2, None), ("s3://a", "y"), ("s3://a", None)]
    assert list(both) == [A, B]
    with pytest.raises(ValueError, match="The task has 2 inlets and outlets; name one"):
        both.get("k")
    with pytest.raises(ValueError, match="The task has 0 inlets"):
        AssetStateStores(backend, []).clear()
    with pytest.raises(KeyError, match="not an inlet or outlet of this task"):
        one[B]
    with pytest.raises(TypeError, match="takes an Asset, not 's3://a'"):
        one["s3://a"]  # type: ignore[index]


def test_coroutines_use_the_stores_too() -> None:
    async def use(store: Any, **retention: Any) -> Any:
        await store.aset("a", 1, **retention)
        await store.adelete("a")
        await store.aclear()
        return await store.aget("x", default=5)

    of_task, of_asset = Recorded(), Recorded()

    assert asyncio.run(use(TaskStateStore(of_task), retention=NEVER_EXPIRE)) == (None, "x", 5)
    assert asyncio.run(use(AssetStateStores(of_asset, [A]))) == ("s3://a", "x", 5)
    assert of_task.calls == [(None, "a", 1, None), (None, "a"), (None, None)]
    assert of_asset.calls == [("s3://a", "a", 1, None), ("s3://a", "a"), ("s3://a", None)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("k", None), "None cannot be stored"),
        (("", 1), "A key must be a str of 1 to 512 characters, not ''"),
        (("x" * 513, 1), "1 to 512"),
        ((3, 1), "not 3"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused(given: tuple[Any, Any], words: str) -> None:
    for store in (TaskStateStore(Recorded()), AssetStateStores(Recorded(), [A])):
        with pytest.raises(ValueError, match=words):
            store.set(*given)
    with pytest.raises(ValueError, match="longer than zero"):
        TaskStateStore(Recorded()).set("k", 1, retention=timedelta(0))


def test_without_a_database_every_access_is_an_error() -> None:
    store = TaskStateStore(NoStates())
    for call in (lambda: store.get("k"), lambda: store.set("k", 1), lambda: store.delete("k"), store.clear):
        with pytest.raises(PacelineError, match="cannot be"):
            call()
