"""Answers that many open pages ask for at the same time: one request computes each, and the others of the next seconds share it."""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
#: Seconds for which an answer is shared, and the answers that are kept.
SHARED_S, MOST = 5.0, 200


@dataclass(slots=True)
class Kept:
    """The answers of one web process by key. What an account may see belongs into the key."""

    shared_s: float = SHARED_S
    _answers: dict[Hashable, tuple[float, Future[Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The answer of `compute`, which another thread may be computing, or has computed within `shared_s`."""
        now = time.monotonic()
        with self._lock:
            since, answer = self._answers.get(key, (now, None))
            is_mine = answer is None or now - since >= self.shared_s
            if answer is None or is_mine:
                answer = Future()
                self._answers.pop(key, None)
                self._answers[key] = (now, answer)
                if len(self._answers) > MOST:
                    del self._answers[next(iter(self._answers))]
        if is_mine:
            try:
                answer.set_result(compute())
            except BaseException as error:
                with self._lock:
                    if self._answers.get(key, (now, None))[1] is answer:
                        del self._answers[key]
                answer.set_exception(error)
                raise
        result: T = answer.result()
        return result
