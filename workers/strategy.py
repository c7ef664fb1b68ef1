"""The Celery strategy of this task, which passes messages to pool processes and receives their results.

It lacks features that no message uses (ETAs, rate limits, callbacks, results) and `revoke` (see remote_control), which are most of
the work of Celery's strategy. See docs/adr/0012.

Requests are those of Celery, so that Flower and `inspect` show them. Only the two IDs are sent to the pool process, and only the
result is sent back, not the whole message.
"""

import json
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception
from celery.worker import state as celery_state
from celery.worker.request import Request as CeleryRequest
from kombu.utils.encoding import safe_repr

from workers.outcome import TryFailed

#: Called in the parent when a pool process could not report: with the two IDs of the dispatch, and Celery's message.
ChildDied = Callable[[int, str, str], None]

_execute: Callable[[int, str], object] | None = None


def executes_with(execute: Callable[[int, str], object]) -> None:
    """Set the function that runs a dispatch in a pool process, before its first message. It raises TryFailed if the try failed."""
    global _execute  # noqa: PLW0603 - a pool child runs one dispatch at a time
    _execute = execute


def run(ti_id: int, dispatch_id: str) -> tuple[int, object, float]:
    """Run a dispatch in a pool process. Returns what a Celery request expects: 1 on failure, the result or error, and seconds."""
    assert _execute is not None, "the child is prepared before its first message"
    started = time.monotonic()
    try:
        result = repr(_execute(ti_id, dispatch_id))
    except Exception:
        raised = ExceptionInfo()
        raised.exception = get_pickleable_exception(sys.exc_info()[1])
        raised.type = get_pickleable_etype(raised.type)
        return 1, raised, time.monotonic() - started
    return 0, result, time.monotonic() - started


def request_class(child_died: ChildDied) -> type[CeleryRequest]:
    """Return the class of requests, which represent dispatches in the parent."""

    class Request(CeleryRequest):  # type: ignore[misc]
        def execute_using_pool(self, pool: Any, **_: Any) -> None:
            """Send the dispatch to a free pool process."""
            result = pool.apply_async(
                run,
                args=tuple(self.args),
                accept_callback=self.on_accepted,
                timeout_callback=self.on_timeout,
                callback=self.on_success,
                error_callback=self.on_failure,
                correlation_id=self.id,
            )
            self._apply_result = None if result is None else weakref.ref(result)

        def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
            """Handle a failed try. If its process died or could not report, `child_died` reports it."""
            error = getattr(exc_info.exception, "exc", exc_info.exception)
            celery_state.task_ready(self)
            self.send_event("task-failed", exception=safe_repr(error), traceback=str(exc_info.traceback))
            if not isinstance(error, TryFailed):
                ti_id, dispatch_id = self.args
                child_died(ti_id, dispatch_id, str(error))

    return Request


def strategy(task: Any, _app: Any, consumer: Any) -> Callable[..., None]:
    """Return the handler that Celery calls with each message that the message filter accepts."""
    eventer = consumer.event_dispatcher

    def handle(message: Any, _body: Any, ack: Any, reject: Any, callbacks: Any) -> None:
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
        if eventer is not None and eventer.enabled:
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
