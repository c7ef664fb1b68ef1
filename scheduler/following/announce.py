"""What a report makes known after its commit: the message of the task instance that was queued, and wakeups for the rest."""

from contextlib import suppress

from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points
from scheduler.serialized.dag import SerializedDag
from scheduler.states import FINISHED, TaskState
from scheduler.store.worker.claims import Claim, Moved, Reported


def announce(
    publisher: Publisher, wakeups: Wakeups, claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool
) -> None:
    """Send what was queued, then wake the services that have something to do."""
    fault_points.point("report.after")
    queued = [one for one in (*reported.moved, reported.handed_on) if one is not None and one.dispatch_id]
    # A state of queued without a message is what the rescue service looks for, so nothing is lost while the broker is away.
    with suppress(*PUBLISH_ERRORS):
        publisher.publish([_message(claim, one) for one in queued])
    fault_points.point("follow.published")
    if tokens := wakeup_tokens(claim, dag, reported, needs_scheduler=needs_scheduler):
        wakeups.wake(*tokens)
    fault_points.point("follow.rung")


def wakeup_tokens(claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool) -> list[str]:
    """The services to wake: queue, if there may be slots for a waiting task instance; promote, if the run may end or the scheduler
    has to decide something; for the next run, if its tasks wait for those of this one; and those that take the notices of this end.
    """
    tokens = []
    if _may_find_capacity(claim, reported):
        tokens.append("queue")
    # What did not move was decided by others, or is for the scheduler; so is everything further down.
    decided = not any(one.state in FINISHED and dag.downstream[dag.number[one.task_id]] for one in reported.moved)
    if needs_scheduler or not (decided and reported.others_wait and reported.all_moved):
        tokens.append(f"run:{claim.dag_run_id}")
    if dag.depends_on_past:
        tokens.append(f"next:{claim.dag_run_id}")
    if claim.task_no < len(dag.tasks) and dag.tasks[claim.task_no].notify:
        tokens += ["notify", *(("plan",) if dag.tasks[claim.task_no].outlets else ())]
    return tokens


def _may_find_capacity(claim: Claim, reported: Reported) -> bool:
    """Whether there may be slots for a waiting task instance that the queue service does not know about."""
    ready = [one for one in reported.moved if one.state is TaskState.SCHEDULED]
    successor = next((one for one in reported.moved if one.state is TaskState.QUEUED), None)
    first = reported.handed_on
    if (new := successor or first) is not None and new.pool_slots < claim.pool_slots and (ready or reported.pool_has_waiting):
        return True
    if first is not None:
        # What became ready has a lower rank. `first` waited for slots and a place in its queue: for what needs the same there is
        # no capacity, or the queue service was about to come, finds `first` gone and looks again (services/queue).
        return any((one.pool, one.queue) != (first.pool, first.queue) for one in ready)
    return bool(ready) or (reported.pool_has_waiting and successor is None)


def _message(claim: Claim, one: Moved) -> Message:
    assert one.dispatch_id is not None
    return Message(
        ti_id=one.id,
        dispatch_id=one.dispatch_id,
        queue=one.queue,
        dag_id=claim.dag_id,
        run_id=claim.run_id,
        task_id=one.task_id,
        map_index=one.map_index,
        priority_weight=one.priority_weight,
    )
