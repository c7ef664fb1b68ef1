"""The sentences of a history: each kind of wait with its cause, if it had one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.deciding.waits import Contention, Holder, LimitFacts, PoolFacts, QueueFacts, Step, of_run, sentence, span

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def step(to: str | None, seconds: float = 0, *, before: str | None = None, **options: Any) -> Step:
    given: dict[str, Any] = {"actor": "s1#1", "reason": None} | options
    return Step(at=NOON + timedelta(seconds=seconds), from_state=before, to_state=to, **given)


def contention(**options: Any) -> Contention:
    queue: dict[str, Any] = {"name": "q", "workers": 1, "places": 4, "prefetch_window": 2, "queued": 0, "running": 0}
    queue |= {name: options.pop(name) for name in queue.keys() & options.keys()}
    facts: dict[str, Any] = {"pool_name": "x", "pool": PoolFacts(name="x", slots=10, used=0), "queue": QueueFacts(**queue)}
    return Contention(**(facts | options))


def runs(limit: int, active: int) -> LimitFacts:
    return LimitFacts(name="max_active_runs", limit=limit, active=active)


FULL = PoolFacts(name="x", slots=2, used=2, holders=(Holder(name="etl.load", run_id="r1", slots=2),), holder_count=1)
REACHED = (LimitFacts(name="max_active_tasks", limit=2, active=2),)
MANY = PoolFacts(
    name="x",
    slots=9,
    used=9,
    holders=tuple(Holder(name=f"d.t{number}", run_id="r", slots=1) for number in range(9)),
    holder_count=9,
)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            contention(pool=FULL),
            "Waited 40 s for pool 'x' with 2 of 2 slots in use by etl.load of run 'r1' (2 slots), then queued by s1#1.",
        ),
        (contention(pool=PoolFacts(name="x", slots=3, used=2), pool_slots=2), "Waited 40 s for pool 'x' with 2 of 3 slots in use"),
        (contention(pool=MANY), "and 1 more, then queued"),
        (contention(pool=None), "Waited 40 s for pool 'x', which does not exist, then queued by s1#1."),
        (contention(pool=PoolFacts(name="x", slots=-1, used=99), limits=REACHED), "for max_active_tasks: 2 of 2 were active,"),
        (contention(limits=REACHED), "Waited 40 s for max_active_tasks: 2 of 2 were active, then queued by s1#1."),
        (contention(pool=FULL, limits=REACHED), "for pool 'x'"),
        (contention(workers=0, places=0), "Waited 40 s for queue 'q', which no worker listened to, then queued by s1#1."),
        (
            contention(running=4, queued=2),
            "Waited 40 s for queue 'q' with 4 running and 2 queued for 4 places, then queued by s1#1.",
        ),
        (contention(running=4, queued=1), "Waited 40 s in line, then queued by s1#1."),
        (contention(limits=(LimitFacts(name="max_active_tasks", limit=2, active=1),)), "Waited 40 s in line, then queued by s1#1."),
        (None, "Waited 40 s in line, then queued by s1#1."),
    ],
)
def test_what_a_scheduled_task_instance_waited_for(facts: Contention | None, text: str) -> None:
    assert text in sentence(step("queued", 40), step("scheduled"), facts)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (contention(workers=0, places=0), "Waited 12 s in queue 'q', which no worker listened to, then started by w1#1, try 2."),
        (contention(running=4), "Waited 12 s in queue 'q', whose 4 places were taken, then started by w1#1, try 2."),
        (contention(running=3), "Waited 12 s in queue 'q', then started by w1#1, try 2."),
        (None, "Waited 12 s in its queue, then started by w1#1, try 2."),
    ],
)
def test_what_a_queued_task_instance_waited_for(facts: Contention | None, text: str) -> None:
    assert sentence(step("running", 12, actor="w1#1", try_number=2), step("queued"), facts) == text


def test_short_waits_have_no_cause() -> None:
    assert sentence(step("queued", 0.4), step("scheduled"), contention(pool=FULL)) == "Queued by s1#1."
    assert sentence(step("running", 0.1, actor="w1#1", try_number=1), step("queued")) == "Started by w1#1, try 1."


@pytest.mark.parametrize(
    ("now", "before", "text"),
    [
        (step("scheduled", reason="all_success is met"), None, "Scheduled by s1#1: all_success is met."),
        (step("success", 35, actor="w1#1"), step("running", actor="w1#1"), "Succeeded after 35 s."),
        (step("failed", 2, actor="s1#1", reason="w1#1 sent no heartbeat for 10 s."), step("running", actor="w1#1"),
         "Failed after 2.0 s by s1#1: w1#1 sent no heartbeat for 10 s."),
        (step("up_for_retry", 3, actor="w1#1", reason="boom"), step("running", actor="w1#1"), "Failed after 3.0 s: boom."),
        (step("upstream_failed", reason="upstream failed: a"), None,
         "Not run, because an upstream task failed: upstream failed: a."),
        (step("skipped", actor="w1#1", reason="b decided to skip it"), None, "Skipped by w1#1: b decided to skip it."),
        (step(None, actor="api:ada", reason="cleared"), step("failed"), "Cleared by api:ada."),
        (step(None, actor="s1#1", reason="its task came back"), step("removed"), "Undecided again by s1#1: its task came back."),
        (step("shutdown", 5, actor="api:ada", reason="marked failed"), step("running", actor="w1#1"),
         "Stop requested after 5.0 s by api:ada: marked failed."),
        (step("deferred", 1, actor="w1#1"), step("running", actor="w1#1"), "Deferred to its trigger after 1.0 s."),
    ],
)  # fmt: skip
def test_other_steps(now: Step, before: Step | None, text: str) -> None:
    assert sentence(now, before) == text


def test_the_upstream_task_that_ended_last_is_a_cause() -> None:
    assert sentence(step("scheduled"), None, None, "extract") == "Scheduled by s1#1, because extract ended."


@pytest.mark.parametrize(
    ("now", "before", "facts", "text"),
    [
        (step("queued", reason="api:ada"), None, None, "Created as queued by s1#1: api:ada."),
        (step("running", 0.2), step("queued"), None, "Started by s1#1."),
        (step("running", 90), step("queued"), runs(1, 1),
         "Waited 90 s for max_active_runs: 1 of 1 run was running, then started by s1#1."),
        (step("running", 90), step("queued"), runs(2, 1),
         "Waited 90 s to start, then started by s1#1."),
        (step("success", 200), step("running"), None, "Ended as success after 3 min by s1#1."),
        (step("failed", 2, reason="timed_out"), step("running"), None, "Ended as failed after 2.0 s by s1#1: timed_out."),
        (step("queued", 2, actor="cli:ada"), step("success"), None, "Queued again by cli:ada."),
    ],
)  # fmt: skip
def test_the_steps_of_a_run(now: Step, before: Step | None, facts: LimitFacts | None, text: str) -> None:
    assert of_run(now, before, facts) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (10, "10 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (200_000, "2 d"),
        (-1, "0.0 s"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text
