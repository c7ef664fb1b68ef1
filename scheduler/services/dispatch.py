"""The dispatch of queued task instances: their messages are published, and the time is stored."""

from sqlalchemy import Engine

from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.process import fault_points, measures
from scheduler.store.db.database import transact
from scheduler.store.moves.queue import stamp_dispatched


def send(engine: Engine, publisher: Publisher, messages: list[Message], *, step: str) -> bool:
    """Publish messages and set dispatched_at. Without the broker, the task instances stay queued, and rescue sends them later."""
    if not messages:
        return True
    fault_points.point(f"{step}.publish")
    try:
        publisher.publish(messages)
    except PUBLISH_ERRORS:
        measures.count("celery.task_timeout_error", len(messages))
        return False
    fault_points.point(f"{step}.published")
    transact(engine, stamp_dispatched, messages)
    return True
