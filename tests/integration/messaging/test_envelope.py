"""The message of Publisher, compared with Celery's own."""

import json
from typing import Any

from scheduler.messaging.brokers import client
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import TASK_NAME, Publisher, broker_lists, broker_priority, celery_app
from scheduler.settings import Settings

DISPATCH = "00000000-0000-4000-8000-00000000000{}"
#: Properties that are unique in each message, and properties without a reader (there is no result backend to reply to, and
#: argsrepr stands in the headers too).
ITS_OWN = ("delivery_tag", "reply_to", "argsrepr")


def message(number: int, **parts: Any) -> Message:
    given = {"queue": "q", "dag_id": "d", "run_id": "r1", "task_id": "t", **parts}
    return Message(ti_id=number, dispatch_id=DISPATCH.format(number), **given)


def sent_by_celery(settings: Settings, one: Message, argsrepr: str) -> dict[str, Any]:
    """The message of `send_task` in the broker."""
    app = celery_app(settings)
    with app.connection_for_write() as connection:
        app.send_task(
            TASK_NAME,
            args=(one.ti_id, one.dispatch_id),
            task_id=one.dispatch_id,
            producer=app.amqp.Producer(connection),
            queue=one.queue,
            exchange="",
            routing_key=one.queue,
            declare=[],
            priority=broker_priority(one.priority_weight),
            shadow=f"{one.dag_id}.{one.task_id}",
            argsrepr=argsrepr,
            ignore_result=True,
            retry=False,
        )
    return waiting(settings, one.queue)


def waiting(settings: Settings, queue: str) -> dict[str, Any]:
    """The one message in the broker, which is taken out, and the list in which it was."""
    broker = client(settings.broker_url)
    found = [(key, broker.rpop(key)) for key in broker_lists(queue) if broker.llen(key)]
    broker.close()
    ((key, text),) = found
    assert isinstance(text, bytes)
    return {"list": key, **json.loads(text)}


def comparable(envelope: dict[str, Any]) -> dict[str, Any]:
    """Without the parts that are unique in each message, and without the version, which Celery does not have."""
    headers = {name: value for name, value in envelope["headers"].items() if name != "message_version"}
    return envelope | {
        "headers": headers,
        "properties": {name: value for name, value in envelope["properties"].items() if name not in ITS_OWN},
    }


def test_the_envelope_equals_that_of_celery(settings: Settings) -> None:
    publisher = Publisher(settings)
    cases = [
        (message(1), "r1"),
        (message(2, priority_weight=100), "r1"),
        (message(3, priority_weight=1000, queue="other"), "r1"),
        (message(4, map_index=3), "r1 [3]"),
        (message(5, dag_id='dä"g\\', task_id="group.täsk", run_id="a b~1+00:00"), "a b~1+00:00"),
    ]
    for one, argsrepr in cases:
        publisher.publish([one])
        ours = waiting(settings, one.queue)

        assert ours["headers"]["message_version"] == 1
        assert comparable(ours) == comparable(sent_by_celery(settings, one, argsrepr))
        assert set(ours["properties"]) >= {"delivery_tag", "reply_to"}
    publisher.close()


def test_many_keep_their_order_in_each_list(settings: Settings) -> None:
    publisher, broker = Publisher(settings), client(settings.broker_url)

    publisher.publish([message(1), message(2, queue="other"), message(3), message(4, priority_weight=-5), message(5)])
    publisher.publish([])

    def taken(key: str) -> list[str]:
        texts = broker.lrange(key, 0, -1)
        assert isinstance(texts, list)
        return [json.loads(text)["headers"]["id"][-1] for text in reversed(texts)]

    assert taken("q:6") == ["1", "3", "5"]
    assert taken("other:6") == ["2"]
    assert taken("q:9") == ["4"]
    publisher.close()
    broker.close()
