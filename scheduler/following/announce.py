"""After the commit of a report: sends the message of the task instance that it queued, and wakes schedulers for the rest."""

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
    """Send the messages of queued task instances, then wake the services that have something to do."""
    fault_points.point("report.after")
    queued = [moved for moved in (*reported.moved, reported.handed_on) if moved is not None and moved.dispatch_id]
    # The rescue service finds queued task instances without a message, so nothing is lost while the broker is down.
    with suppress(*PUBLISH_ERRORS):
        publisher.publish([_message(claim, moved) for moved in queued])
    fault_points.point("follow.published")
    if tokens := wakeup_tokens(claim, dag, reported, needs_scheduler=needs_scheduler):
        wakeups.wake(*tokens)
    fault_points.point("follow.woken")


def wakeup_tokens(claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool) -> list[str]:
    """The wakeups to send: for queue, if there may be slots for a waiting task instance; for the run, if it may end or the
    scheduler must decide something; for the next run, if its tasks wait for this one; and for the services of notices.
    """
    tokens = []
    if _may_find_capacity(claim, reported):
        tokens.append("queue")
    # A moved task that is finished has downstream tasks that only the scheduler decides.
    decided = not any(moved.state in FINISHED and dag.downstream[dag.number[moved.task_id]] for moved in reported.moved)
    if needs_scheduler or not (decided and reported.others_wait and reported.all_moved):
        tokens.append(f"run:{claim.dag_run_id}")
    if dag.depends_on_past:
        tokens.append(f"next:{claim.dag_run_id}")
    if claim.task_no < len(dag.tasks) and dag.tasks[claim.task_no].notify:
        tokens += ["notify", *(("plan",) if dag.tasks[claim.task_no].outlets else ())]
    return tokens


def _may_find_capacity(claim: Claim, reported: Reported) -> bool:
    """Whether there may be slots for a waiting task instance that the queue service does not know about."""
    ready = [moved for moved in reported.moved if moved.state is TaskState.SCHEDULED]
    successor = next((moved for moved in reported.moved if moved.state is TaskState.QUEUED), None)
    first = reported.handed_on
    if (new := successor or first) is not None and new.pool_slots < claim.pool_slots and (ready or reported.pool_has_waiting):
        return True
    if first is not None:
        # The ready tasks have a lower rank. `first` waited for slots of its pool and a place in its queue, so there is no
        # capacity for others that need both. Or a pass of the queue service had chosen `first`; then it misses it and another
        # pass follows (see `lost` in services/queue).
        return any((moved.pool, moved.queue) != (first.pool, first.queue) for moved in ready)
    return bool(ready) or (reported.pool_has_waiting and successor is None)


def _message(claim: Claim, moved: Moved) -> Message:
    assert moved.dispatch_id is not None
    return Message(
        ti_id=moved.id,
        dispatch_id=moved.dispatch_id,
        queue=moved.queue,
        dag_id=claim.dag_id,
        run_id=claim.run_id,
        task_id=moved.task_id,
        map_index=moved.map_index,
        priority_weight=moved.priority_weight,
    )
