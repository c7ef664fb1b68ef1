"""How a worker hands a message to a pool child and hears of its end: Celery's strategy for this task, without what no message
of ours asks for (ETAs, rate limits, callbacks, results), and without `revoke` (see remote_control), which is most of its work. See
docs/adr/0012.

Requests stay Celery's own, so that Flower and `inspect` see what they know; what crosses to the child and back is the
two ids and how it ended, not the whole message.
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

#: Called in the parent with the ids of a dispatch, and what is known of its death, when its child could not report.
ChildDied = Callable[[int, str, str], None]

_execute: Callable[[int, str], object] | None = None


def executes_with(execute: Callable[[int, str], object]) -> None:
    """In a pool child, before its first message: what runs a dispatch; TryFailed means that its try failed."""
    global _execute  # noqa: PLW0603 - a pool child runs one dispatch at a time
    _execute = execute


def run(ti_id: int, dispatch_id: str) -> tuple[int, object, float]:
    """In a pool child: whether it failed, the result as text or what was raised, and seconds, as a Request wants to hear it."""
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
    """A dispatch, seen from the parent."""

    class Request(CeleryRequest):  # type: ignore[misc]
        def execute_using_pool(self, pool: Any, **_: Any) -> None:
            """Send it to a free child."""
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
            """The try failed; or its process died, or could not report, and then nobody else knows."""
            error = getattr(exc_info.exception, "exc", exc_info.exception)
            celery_state.task_ready(self)
            self.send_event("task-failed", exception=safe_repr(error), traceback=str(exc_info.traceback))
            if not isinstance(error, TryFailed):
                ti_id, dispatch_id = self.args
                child_died(ti_id, dispatch_id, str(error))

    return Request


def strategy(task: Any, _app: Any, consumer: Any) -> Callable[..., None]:
    """What Celery calls with each message of this task, which the inbox has let pass."""
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
