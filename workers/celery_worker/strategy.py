"""The Celery strategy of this task, which passes messages to pool processes and receives their results.

It lacks features that no message uses (ETAs, rate limits, callbacks, results) and `revoke` (see remote_control), which are most of
the work of Celery's strategy. See docs/adr/0012.

Requests are those of Celery, so that Flower and `inspect` show them. Only the two IDs are sent to the pool process, and only the
result is sent back, not the whole message.
"""

import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from celery.exceptions import InvalidTaskError
from celery.worker import state as celery_state
from celery.worker.request import Request as CeleryRequest
from kombu.utils.encoding import safe_repr

from workers.supervision.slots import Step
from workers.task import execute
from workers.task.outcome import TryFailed

#: Called in the parent when a pool process could not report: with the two IDs of the dispatch, and Celery's message.
ChildDied = Callable[[int, str, str], None]

#: Returns the events of tasks in place that pool processes have written since the last call.
Events = Callable[[], list[Step]]

#: Returns the task instance with which the pool process continued that received the message of this dispatch.
LastStep = Callable[[str], Step | None]


@dataclass(frozen=True, slots=True)
class WorkerCalls:
    """What a request calls in the worker process."""

    child_died: ChildDied
    events: Events
    last_step: LastStep


class DispatchRequest(CeleryRequest):  # type: ignore[misc]
    """A dispatch in the parent.

    For Flower and remote control, it represents the task instance that its pool process runs now: that of its message, or the last
    one in place.
    """

    worker: ClassVar[WorkerCalls]
    in_place_id: str | None = None
    #: The time of the tasks before the current one.
    seconds = 0.0

    def execute_using_pool(self, pool: Any, **_: Any) -> None:
        """Send the dispatch to a free pool process."""
        result = pool.apply_async(
            execute.run,
            args=tuple(self.args),
            accept_callback=self.on_accepted,
            timeout_callback=self.on_timeout,
            callback=self.on_success,
            error_callback=self.on_failure,
            correlation_id=self.id,
        )
        self._apply_result = None if result is None else weakref.ref(result)

    def send_event(self, kind: str, **fields: Any) -> None:
        if sends_task_events(self._eventer):
            self._eventer.send(kind, uuid=self.in_place_id or self.id, **fields)

    def catch_up(self) -> None:
        """Send the events that pool processes have written before the end of this dispatch."""
        if sends_task_events(self._eventer):
            send_in_place(self.worker.events())

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Describe the running task, for the command `active` of remote control."""
        described: dict[str, Any] = super().info(safe=safe)
        step = self.worker.last_step(self.id)
        if step is None:
            return described
        arguments = step.arguments if safe else [step.ti_id, step.dispatch_id]
        now = {"id": step.dispatch_id, "name": step.name, "args": arguments, "time_start": step.started_at}
        return described | now

    def continue_with(self, step: Step) -> None:
        """Send the events for a pool process that continues with another task instance in place."""
        self.send_event("task-succeeded", result="None", runtime=step.seconds)
        self.in_place_id, self.seconds = step.dispatch_id, self.seconds + step.seconds
        celery_state.total_count.update({step.name: 1})
        celery_state.all_total_count[0] += 1
        described = {"name": step.name, "args": step.arguments, "root_id": step.dispatch_id}
        self.send_event("task-received", **(_described(self) | described))
        self.send_event("task-started")

    def on_success(self, failed__retval__runtime: Any, **options: Any) -> None:
        self.catch_up()
        failed, result, seconds = failed__retval__runtime
        super().on_success((failed, result, max(0.0, seconds - self.seconds)), **options)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Handle a failed try. If its process died or could not report, `child_died` reports it."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, execute.ReplaceProcessError):
            return self.on_success(error.args[0])
        self.catch_up()
        celery_state.task_ready(self)
        self.send_event("task-failed", exception=safe_repr(error), traceback=str(exc_info.traceback))
        if not isinstance(error, TryFailed):
            ti_id, dispatch_id = self.args
            self.worker.child_died(ti_id, dispatch_id, str(error))


def request_class(child_died: ChildDied, events: Events, last_step: LastStep) -> type[CeleryRequest]:
    """Return the class of the requests of a worker."""

    class Request(DispatchRequest):
        worker = WorkerCalls(child_died, events, last_step)

    return Request


def sends_task_events(eventer: Any) -> bool:
    """Whether the events of tasks are on. Those of the group "worker" always are: without them, Flower could not turn these on."""
    return eventer is not None and eventer.enabled and (not eventer.groups or "task" in eventer.groups)


def send_in_place(steps: list[Step]) -> None:
    """Send the events of tasks that pool processes run in place."""
    for step in steps:
        request = celery_state.requests.get(step.message)
        if request is not None:
            request.continue_with(step)


def strategy(task: Any, _app: Any, consumer: Any) -> Callable[..., None]:
    """Return the handler that Celery calls with each message that the message filter accepts."""
    eventer = consumer.event_dispatcher

    def handle(message: Any, _body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        try:
            request = task.Request(
                message,
                on_ack=ack,
                on_reject=reject,
                app=consumer.app,
                hostname=consumer.hostname,
                eventer=eventer,
                task=task,
                connection_errors=consumer.connection_errors,
                body=json.loads(message.body),
                headers=message.headers,
                decoded=True,
            )
        except Exception as error:
            # Celery rejects and logs the message. Any other error, of a header of an odd type, would end the worker.
            raise InvalidTaskError(f"{type(error).__name__}: {error}") from error
        if sends_task_events(eventer):
            request.send_event("task-received", **_described(request))
        celery_state.task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        consumer.on_task_request(request)

    return handle


def _described(request: CeleryRequest) -> dict[str, Any]:
    return {
        "name": request.name,
        "args": request.argsrepr,
        "kwargs": request.kwargsrepr,
        "root_id": request.root_id,
        "parent_id": request.parent_id,
        "retries": 0,
        "eta": None,
        "expires": None,
    }
