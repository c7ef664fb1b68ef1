"""Tests of stored connections by workers, since this process may be in another network, and lacks the drivers of tasks."""

from typing import Any

from paceline.exceptions import ConflictError, NotFoundError
from scheduler.api.access import ADMIN
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import records as models
from scheduler.messaging import connection_tests
from scheduler.messaging.connection_tests import ANSWER_S, ConnectionTest
from scheduler.store.read import overview

router = new_router(prefix="/connectionTests", tags=["Paceline"])


@router.post("", ADMIN, response_model=models.ConnectionTest, status_code=202, name="ask_connection_test")
def ask(api: Api, body: models.ConnectionTestBody) -> dict[str, Any]:
    """Ask a worker of a queue to test a stored connection: it logs in if it knows the type, else opens host and port."""
    queue = _queue(api, body.queue)
    test = api.service.broker.call(lambda client: connection_tests.ask(client, body.connection_id, queue))
    return _shown(test, is_late=False)


@router.get("/{token}", ADMIN, response_model=models.ConnectionTest, name="get_connection_test_result")
def show(api: Api, token: str) -> dict[str, Any]:
    """Show a test of the last minute, with the answer of its worker."""
    found = api.service.broker.call(lambda client: connection_tests.find(client, token))
    if found is None:
        raise NotFoundError("There is no such test of a connection: it is forgotten after a minute, so start another one.")
    return _shown(found[0], is_late=found[1])


def _queue(api: Call, wanted: str | None) -> str:
    """The queue whose workers are asked: the wanted one, or that of most tasks. ConflictError if no live worker takes from it."""
    queues = api.read(overview.queues, silent_after_s=api.settings.worker.heartbeat_timeout)
    live = [row["queue"] for row in queues if row["workers"]]
    default = api.settings.core.default_queue
    queue = wanted or (default if default in live else next(iter(live), None))
    if queue is None:
        raise ConflictError("No worker is alive that could test the connection.", fix="Start one with `paceline worker`.")
    if queue not in live:
        raise ConflictError(f"No live worker takes tasks of the queue {queue!r}.", fix="Start one, or choose another queue.")
    return str(queue)


def _shown(test: ConnectionTest, *, is_late: bool) -> dict[str, Any]:
    answer = test.answer
    late = f"No worker of the queue {test.queue} answered within {ANSWER_S} s: see whether one is alive on the page Queues."
    return {
        "token": test.token,
        "connection_id": test.conn_id,
        "queue": test.queue,
        "state": ("success" if answer.ok else "failed") if answer else "failed" if is_late else "pending",
        "message": answer.message if answer else late if is_late else None,
        "worker": answer.worker if answer else None,
    }
