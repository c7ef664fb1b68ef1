"""How facts are put into words: names, states, numbers, moments."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from scheduler.deciding.situation import Counted
from scheduler.states import FINISHED
from scheduler.states import TaskState as S

#: Names in one sentence; the rest is counted.
MOST_NAMES = 8


def all_ended(one: Counted) -> bool:
    return FINISHED.issuperset(one.states)


def tasks(some: Sequence[Counted]) -> str:
    return "task" if len(some) == 1 else "tasks"


def names(some: Sequence[Counted]) -> str:
    shown = ", ".join(f"{one.task_id} ({of_states(one.states, mapped=one.mapped)})" for one in some[:MOST_NAMES])
    return shown if len(some) <= MOST_NAMES else f"{shown} and {len(some) - MOST_NAMES} more"


def of_states(states: Mapping[S, int], *, mapped: bool) -> str:
    if not mapped:
        return next(iter(states)).value if states else S.NONE.value
    ended = sum(count for state, count in states.items() if state in FINISHED)
    return f"{ended} of {many(sum(states.values()), 'instance', 'instances')} ended: {mix(states)}"


def mix(states: Mapping[S, int]) -> str:
    return ", ".join(f"{states[state]} {state}" for state in S if states.get(state))


def many(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def slots(number: int) -> str:
    return many(number, "slot", "slots")


def because(reason: str | None) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def when(moment: datetime, now: datetime) -> str:
    text = moment.isoformat(timespec="seconds")
    return f"at {text} (in {span(moment - now)})" if moment > now else f"since {text}"


def span(length: timedelta) -> str:
    seconds = max(0, round(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
