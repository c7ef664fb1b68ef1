"""Actions of users on the runs of a scenario (clear, mark), and the steps of its worker: claim, report, end as requested."""

import threading
from collections.abc import Callable
from typing import Any

from paceline.states import TaskState
from scheduler.actions.actor import Actor
from scheduler.messaging.wakeups import Wakeups
from scheduler.store.actions import clear, mark
from scheduler.store.db.database import rehearse, transact
from scheduler.store.runs.selection import Change, Runs, Tasks
from scheduler.store.worker.claims import Claim, Ending
from support.scenario import Scenario

ALL = Tasks()


def actor_of(scenario: Scenario) -> Actor:
    """A person who acts on a scenario, and whose wakeups arrive."""
    announce = Wakeups(scenario.settings).announce
    return Actor(settings=scenario.settings, engine=scenario.engine, announce=announce, name="cli:ada", made_by="cli")


def clear_(scenario: Scenario, tasks: Tasks = ALL, *, dag_id: str = "d", run_id: str | None = "r", **options: Any) -> list[Change]:
    runs = options.pop("runs", Runs(dag_id=dag_id, run_id=run_id))
    return (rehearse if options.get("dry_run") else transact)(
        scenario.engine, clear.clear, runs, tasks, core=scenario.settings.core, **options
    )


def mark_(scenario: Scenario, state: TaskState, *names: str, run_id: str | None = "r", **options: Any) -> list[Change]:
    runs = options.pop("runs", Runs(dag_id="d", run_id=run_id))
    tasks = options.pop("tasks", Tasks(task_ids=names))
    return (rehearse if options.get("dry_run") else transact)(scenario.engine, mark.mark, runs, tasks, state, **options)


def brief(changes: list[Change]) -> list[tuple[str, int, str | None, str]]:
    return [(change.task_id, change.map_index, change.state, change.becomes) for change in changes]


def failing(*names: str) -> Callable[[Claim], TaskState]:
    """The outcome of each task: these fail, the others succeed."""
    return lambda claim: TaskState.FAILED if claim.task_id in names else TaskState.SUCCESS


def running(scenario: Scenario) -> Claim:
    """Take scheduler turns until a task instance can be claimed, and claim it."""
    for _ in range(20):
        scenario.turn()
        for message in scenario.messages():
            claim = scenario.claim(message)
            if claim is not None:
                return claim
    raise AssertionError(f"nothing was queued: {scenario.states()}")


def push(scenario: Scenario, claim: Claim, value: str = "1") -> None:
    """Report a success with this JSON as the return value."""
    assert scenario.follower.report(claim, Ending(state=TaskState.SUCCESS, result=value)).is_stored


def end(scenario: Scenario, claim: Claim, state: TaskState = TaskState.SUCCESS, result: str | None = None) -> bool:
    """Report as a worker does when user code ends. Returns False if the task was stopped; then its requested end is stored."""
    reported = scenario.follower.report(claim, Ending(state=state, delay_s=0.0, result=result)).is_stored
    if not reported:
        scenario.follower.end_as_requested(claim)
    return reported


def schedule_and_work(scenario: Scenario, over: threading.Event, accepted: list[Claim]) -> None:
    """Take scheduler turns and run the queued tasks until the event is set. Adds each claim whose report was accepted."""
    while not over.is_set():
        scenario.sql("update process set heartbeat_at = clock_timestamp()")
        scenario.turn()
        claims = [claim for claim in map(scenario.claim, scenario.messages()) if claim is not None]
        accepted.extend(claim for claim in claims if end(scenario, claim))
