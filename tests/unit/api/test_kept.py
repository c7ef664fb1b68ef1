"""Many requests for the same answer compute it once."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler.api import call
from scheduler.api.call import Kept


def test_requests_at_the_same_time_share_one_computation() -> None:
    answers = Kept()
    begun, go = threading.Event(), threading.Event()
    computed: list[int] = []

    def compute() -> int:
        begun.set()
        assert go.wait(20)
        computed.append(1)
        return 7

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(answers.get, "trend", compute)
        assert begun.wait(20)
        others = [pool.submit(answers.get, "trend", compute) for _ in range(7)]
        go.set()
        assert [one.result(20) for one in (first, *others)] == [7] * 8
    assert computed == [1]


def test_an_answer_is_computed_again_after_its_time_and_for_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Kept(shared_s=5)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    numbers = iter(range(10))

    assert [answers.get("a", lambda: next(numbers)) for _ in range(2)] == [0, 0]
    assert answers.get(("a", "tag"), lambda: next(numbers)) == 1
    now[0] += 5
    assert answers.get("a", lambda: next(numbers)) == 2


def test_an_error_is_not_kept() -> None:
    answers = Kept()
    with pytest.raises(ZeroDivisionError):
        answers.get("a", lambda: 1 // 0)
    assert answers.get("a", lambda: 3) == 3


def test_the_oldest_of_too_many_answers_is_dropped() -> None:
    answers = Kept(shared_s=1000)
    for number in range(call.MOST_ANSWERS + 1):
        answers.get(number, lambda number=number: number)  # type: ignore[misc]
    assert answers.get(0, lambda: -1) == -1
    assert answers.get(call.MOST_ANSWERS, lambda: -1) == call.MOST_ANSWERS
