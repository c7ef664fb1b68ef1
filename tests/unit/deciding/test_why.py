"""`tasks why`: every possible reason has its sentence, and a reason that does not hold is not given."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline.states import RunState
from paceline.states import TaskState as S
from scheduler.deciding.waits import Holder, LimitFacts, PoolFacts, QueueFacts
from scheduler.deciding.why import BackfillFacts, Counted, DeferralFacts, RunFacts, Situation, explain

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
SOON = "at 2025-03-01T12:04:00+00:00 (in 4 min)"
NOTHING = "Nothing blocks it: a scheduler moves it in its next pass, within about a second."
RUNS = "Its run is queued and starts in a scheduler's next pass, within about a second."
NOT_TAKEN = "No worker has taken its message from queue 'default' yet: it was queued 30 s ago"


def run(**values: Any) -> RunFacts:
    defaults = {"dag_id": "etl", "run_id": "r2", "state": RunState.RUNNING, "run_after": NOW - timedelta(hours=1)}
    return RunFacts(**(defaults | values))


def facts(state: S, **values: Any) -> Situation:
    """A task instance in its first try of three, with a free pool and queue."""
    times = {
        "queued_at": NOW - timedelta(seconds=30),
        "started_at": NOW - timedelta(seconds=20),
        "due_at": NOW + timedelta(minutes=4),
    }
    defaults = {
        "now": NOW, "run": run(), "task_id": "load", "map_index": -1, "state": state, "try_number": 1, "max_tries": 2,
        "worker": "w1", "pool": pool(), "queue": queue(), "ended_at": NOW if state in (S.SUCCESS, S.FAILED, S.REMOVED) else None,
    }  # fmt: skip
    return Situation(**(defaults | times | values))


def pool(**values: Any) -> PoolFacts:
    return PoolFacts(**({"name": "db", "slots": 8, "used": 0} | values))


def queue(**values: Any) -> QueueFacts:
    return QueueFacts(**({"name": "default", "workers": 1, "places": 4, "running": 0, "queued": 0, "prefetch_window": 32} | values))


def task(name: str, state: S = S.RUNNING) -> Counted:
    return Counted(task_id=name, states={state: 1})


def mapped(name: str, **states: int) -> Counted:
    return Counted(task_id=name, states={S(state): count for state, count in states.items()}, mapped=True)


def holder(name: str, slots: int = 1) -> Holder:
    return Holder(name=name, run_id="r1", slots=slots)


def limit(name: str, limit: int, active: int) -> LimitFacts:
    return LimitFacts(name=name, limit=limit, active=active)


def trigger(classpath: str = "a.B", **values: Any) -> DeferralFacts:
    return DeferralFacts(classpath=classpath, **values)


def queued(**values: Any) -> dict[str, Any]:
    """An undecided task instance of a run that has not started."""
    return {"run": run(state=RunState.QUEUED, **values), "upstream": (task("a"),)}


def backfill(active: int, *, is_paused: bool = False) -> BackfillFacts:
    return BackfillFacts(id=7, is_paused=is_paused, limit=limit("max_active_runs", 2, active))


MANY = tuple(task(f"t{number}") for number in range(10))
BEFORE = (task("before", S.SUCCESS),)
TWO_HOLDERS = pool(used=8, holders=(holder("etl.a", 5), holder("etl.b")), holder_count=4)
#: The state of the task instance, what else is known about it, and the sentences.
SITUATIONS: list[tuple[S, dict[str, Any], str | list[str]]] = [
    # Undecided.
    (S.NONE, {}, NOTHING),
    (S.NONE, {"upstream": (task("extract"), task("seed", S.SUCCESS), task("other", S.NONE))},
     "It waits for upstream tasks extract (running), other (none); its trigger rule is all_success."),
    (S.NONE, {"upstream": (mapped("part", success=2, failed=1, running=3, none=4),), "trigger_rule": "all_done"},
     "It waits for upstream task part (3 of 10 instances ended: 4 none, 3 running, 2 success, 1 failed); "
     "its trigger rule is all_done."),
    (S.NONE, {"upstream": MANY},
     f"It waits for upstream tasks {', '.join(f't{n} (running)' for n in range(8))} and 2 more; its trigger rule is all_success."),
    (S.NONE, {"upstream": (task("a", S.SUCCESS), task("b")), "trigger_rule": "one_success"}, NOTHING),
    (S.NONE, {"setups": (task("cluster"), task("done", S.SUCCESS))}, "It waits for its setup task cluster (running)."),
    (S.NONE, {"scope": (task("work"),), "trigger_rule": "all_done_setup_success"},
     "It is a teardown and waits for work (running) between its setup and itself."),
    (S.NONE, {"map_index": 2, "loop_gate": mapped("body.enough", running=1), "upstream": BEFORE},
     "It is in iteration 3 of its loop and waits for body.enough[1] (running), which ends iteration 2."),
    (S.NONE, {"map_index": 2, "loop_gate": mapped("body.enough", success=1), "upstream": BEFORE}, NOTHING),
    (S.NONE, {"expands_over": (task("list_files"), task("days", S.SUCCESS))},
     "It is not expanded yet: it waits for the result of list_files (running)."),
    (S.NONE, {"past": "depends_on_past: load of the previous run, r1, is failed"},
     "It waits for the previous run: depends_on_past: load of the previous run, r1, is failed."),
    # Of a run that has not started, or is over.
    (S.NONE, queued(), RUNS),
    (S.NONE, queued(run_after=NOW + timedelta(minutes=4)), f"Its run may start {SOON}."),
    (S.NONE, queued(running_runs=limit("max_active_runs", 2, 2), runs_ahead=1),
     "Its run has not started: the DAG has 2 running runs and max_active_runs is 2. 1 queued run comes before it."),
    (S.NONE, queued(backfill=backfill(2), running_runs=limit("max_active_runs", 2, 9)),
     "Its run has not started: backfill 7 has 2 running runs and max_active_runs is 2."),
    (S.NONE, queued(backfill=backfill(0, is_paused=True)),
     "Backfill 7 is paused: `paceline backfills resume 7` lets its runs start."),
    (S.NONE, queued(is_paused=True), "DAG 'etl' is paused: `paceline dags unpause etl` resumes it."),
    (S.NONE, {"run": run(state=RunState.FAILED)},
     "Its run has ended as failed, so nothing moves it any more; clear it to run it."),
    # Scheduled.
    (S.SCHEDULED, {}, NOTHING),
    (S.SCHEDULED, {"pool": None, "pool_name": "gone"}, "There is no pool 'gone': create it with `paceline pools set gone SLOTS`."),
    (S.SCHEDULED, {"pool_slots": 9}, "It needs 9 slots and pool 'db' has 8 in all, so it can never run: enlarge the pool."),
    (S.SCHEDULED, {"pool": TWO_HOLDERS},
     "Pool 'db' is full: 8 of 8 slots are in use, held by etl.a of run 'r1' (5 slots), etl.b of run 'r1' and 2 more."),
    (S.SCHEDULED, {"pool": pool(used=6, holders=(holder("etl.a", 6),), holder_count=1), "pool_slots": 3},
     "Pool 'db' has 2 free, and it needs 3: 6 of 8 slots are in use, held by etl.a of run 'r1' (6 slots)."),
    (S.SCHEDULED, {"pool": pool(slots=2, used=8, holders=(holder("etl.a", 8),), holder_count=1)},
     "Pool 'db' is full: 8 of 2 slots are in use, held by etl.a of run 'r1' (8 slots)."),
    (S.SCHEDULED, {"pool": pool(slots=-1, used=800)}, NOTHING),
    (S.SCHEDULED, {"pool": pool(used=6, reserved_for=holder("big.job", 4))},
     "big.job of run 'r1' ranks higher, needs 4 slots of pool 'db' and holds its place in line while 2 are free "
     "(scheduler.pool_reservation)."),
    (S.SCHEDULED, {"pool": pool(ahead=3)}, "3 task instances of higher rank wait in pool 'db' before it."),
    (S.SCHEDULED, {"limits": (limit("max_active_tasks", 16, 16), limit("parallelism", 256, 20))},
     "The limit max_active_tasks is reached: 16 of 16."),
    (S.SCHEDULED, {"queue": queue(workers=0, places=0, queued=0, name="spark")},
     "No live worker listens to queue 'spark': start one with `paceline worker -q spark`."),
    (S.SCHEDULED, {"queue": queue(places=1, running=1, queued=32)},
     "Queue 'default' is full: 32 queued and 1 running for 1 worker slot."),
    # Waiting for its time.
    (S.UP_FOR_RETRY, {"reason": "exit code 1"}, f"Try 1 of 3 failed (exit code 1); the next one is due {SOON}."),
    (S.UP_FOR_RETRY, {"due_at": NOW - timedelta(seconds=1)},
     "Try 1 of 3 failed; the next one is due since 2025-03-01T11:59:59+00:00."),
    (S.UP_FOR_RESCHEDULE, {}, f"It checks its condition again and again; the next check is due {SOON}."),
    (S.DEFERRED, {"deferral": trigger("paceline.triggers.MomentTrigger", waiter="x1", waiters=1)},
     f"It waits for its trigger paceline.triggers.MomentTrigger; it times out {SOON}."),
    (S.DEFERRED, {"deferral": trigger(waiters=1), "due_at": None},
     ["It waits for its trigger a.B.", "No waiter has taken up its trigger yet."]),
    (S.DEFERRED, {"deferral": trigger(waiters=0), "due_at": None},
     ["It waits for its trigger a.B.", "No waiter is alive to await triggers: start one with `paceline waiter`."]),
    # At a worker.
    (S.QUEUED, {},
     "It was queued 30 s ago and no worker has taken it: if its message was lost, a scheduler sends it again."),
    (S.QUEUED, {"dispatched_at": NOW, "queue": queue(running=4, ahead=2)},
     [f"{NOT_TAKEN}, and 2 messages were queued before it.", "All 4 worker slots of queue 'default' are busy."]),
    (S.QUEUED, {"dispatched_at": NOW, "queue": queue(workers=0)},
     [f"{NOT_TAKEN}, and 0 messages were queued before it.",
      "No live worker listens to queue 'default': start one with `paceline worker -q default`."]),
    (S.RUNNING, {}, "It has been running since 2025-03-01T11:59:40+00:00, try 1 of 3, on worker w1."),
    (S.RUNNING, {"worker_alive": False},
     "It has been running since 2025-03-01T11:59:40+00:00, try 1 of 3; its worker w1 sends no heartbeats, "
     "so a scheduler will recover it."),
    (S.SHUTDOWN, {"requested_state": "none"}, "A stop was requested, and its state will be none; it is with worker w1."),
    # Ended.
    (S.SUCCESS, {}, "It has ended as success on try 1 of 3 at 2025-03-01T12:00:00+00:00."),
    (S.FAILED, {"reason": "exit code 1."}, "It has ended as failed on try 1 of 3 at 2025-03-01T12:00:00+00:00: exit code 1."),
    (S.UPSTREAM_FAILED, {"reason": "1 upstream task failed: load", "try_number": 0},
     "It has ended as upstream_failed: 1 upstream task failed: load."),
    (S.SKIPPED, {"reason": "left out by branch choose", "try_number": 0}, "It has ended as skipped: left out by branch choose."),
    (S.REMOVED, {}, "It is removed: the run's version of the DAG has no such task."),
    (S.REMOVED, {"reason": "the loop ended with iteration 3", "try_number": 0, "ended_at": None},
     "It is removed: the loop ended with iteration 3."),
]  # fmt: skip


@pytest.mark.parametrize(("state", "values", "sentences"), SITUATIONS)
def test_each_situation_has_its_sentences(state: S, values: dict[str, Any], sentences: str | list[str]) -> None:
    assert explain(facts(state, **values)) == ([sentences] if isinstance(sentences, str) else sentences)


@pytest.mark.parametrize("state", [S.NONE, S.SCHEDULED, S.UP_FOR_RETRY])
def test_conditions_that_hold_back_a_whole_dag(state: S) -> None:
    whole = run(is_paused=True, file="etl.py", import_error="NameError: x", import_error_line=3)

    assert explain(facts(state, run=whole, schedulers=0))[-3:] == [
        "DAG 'etl' is paused: `paceline dags unpause etl` resumes it.",
        "The DAG's file etl.py, line 3 has an import error, so the last version that loaded is used: NameError: x.",
        "No scheduler is alive: start one with `paceline scheduler`.",
    ]


def test_a_mapped_task_as_a_whole() -> None:
    held = facts(S.RUNNING, map_index=3, instances={S.SUCCESS: 3, S.RUNNING: 2})

    assert explain(held)[0] == "It has 5 instances (2 running, 3 success); this is about index 3."


@pytest.mark.parametrize("state", sorted(S))
@pytest.mark.parametrize("run_state", sorted(RunState))
def test_every_state_has_a_sentence(state: S, run_state: RunState) -> None:
    sentences = explain(facts(state, run=run(state=run_state)))

    assert sentences
    assert all(sentence.endswith(".") and sentence[0].isupper() for sentence in sentences)
