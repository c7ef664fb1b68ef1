"""What each trigger rule allows for the final states of the upstream tasks: the checker's own table, after Airflow's documentation.

A set, because some rules decide as soon as the first decisive upstream task ends: two answers are then possible.
"""

from collections import Counter
from collections.abc import Callable, Iterable

RUN, SKIP, FAIL = "run", "skipped", "upstream_failed"


def verdicts(rule: str, states: Iterable[str]) -> frozenset[str]:
    """RUN, SKIP or FAIL, whichever are possible; `states` are the final ones of all direct upstream task instances."""
    count = Counter(states)
    if not count:
        return frozenset({RUN})
    return frozenset(ALLOWED[rule](_Seen(count)))


class _Seen:
    def __init__(self, count: Counter[str]) -> None:
        self.good, self.skipped = count["success"], count["skipped"]
        self.failed = count["failed"]
        self.bad = self.failed + count["upstream_failed"]
        self.all = count.total()


def _all_success(u: _Seen) -> set[str]:
    found = ({FAIL} if u.bad else set()) | ({SKIP} if u.skipped else set())
    return found or {RUN}


def _one_success(u: _Seen) -> set[str]:
    if u.good:
        return {RUN}
    return {SKIP} if u.skipped == u.all else {FAIL}


def _none_failed_min_one_success(u: _Seen) -> set[str]:
    if u.bad:
        return {FAIL}
    return {RUN} if u.good else {SKIP}


def _all_done_min_one_success(u: _Seen) -> set[str]:
    if u.skipped:
        return {SKIP}
    return {RUN} if u.good else {FAIL}


ALLOWED: dict[str, Callable[[_Seen], set[str]]] = {
    "all_success": _all_success,
    "all_done": lambda u: {RUN},
    "one_success": _one_success,
    "one_failed": lambda u: {RUN} if u.bad else {SKIP},
    "one_done": lambda u: {RUN} if u.good or u.failed else {SKIP},
    "none_failed": lambda u: {FAIL} if u.bad else {RUN},
    "none_failed_min_one_success": _none_failed_min_one_success,
    "none_skipped": lambda u: {SKIP} if u.skipped else {RUN},
    "all_done_min_one_success": _all_done_min_one_success,
}
#: Rules that let a task run before all of its upstream tasks have ended.
AT_ONCE = frozenset({"one_success", "one_failed", "one_done"})
