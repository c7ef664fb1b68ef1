"""Messages that Paceline never sends, but that a user who can write to Redis might."""

import base64
import copy
import json
import pickle
import uuid
from typing import Any

from scheduler.messaging.publisher import TASK_NAME

DISPATCH = "00000000-0000-4000-8000-000000000001"


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def body(*args: Any, kwargs: Any = None, **embedded: Any) -> str:
    """The body of Celery's message for these arguments."""
    nothing = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return base64.b64encode(json.dumps([args, kwargs or {}, nothing | embedded]).encode()).decode()


def message(ti_id: Any = 1, dispatch_id: Any = DISPATCH, **parts: Any) -> dict[str, Any]:
    """A message as Publisher sends it; `parts` replace parts of it, `headers` and `properties` single entries."""
    headers = {
        "lang": "py", "task": TASK_NAME, "id": dispatch_id, "shadow": "d.t", "eta": None, "expires": None, "group": None,
        "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": dispatch_id, "parent_id": None, "argsrepr": "r",
        "kwargsrepr": "{}", "origin": "gen@x", "ignore_result": True, "replaced_task_nesting": 0, "stamped_headers": None,
        "stamps": {},
    }  # fmt: skip
    properties = {
        "correlation_id": dispatch_id, "reply_to": str(uuid.uuid4()), "delivery_mode": 1,
        "delivery_info": {"exchange": "", "routing_key": "default"}, "priority": 6, "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }  # fmt: skip
    whole = {
        "body": body(ti_id, dispatch_id), "content-encoding": "utf-8", "content-type": "application/json",
        "headers": headers, "properties": properties,
    }  # fmt: skip
    changed = copy.deepcopy(parts)
    for name in ("headers", "properties"):
        if isinstance(changed.get(name), dict):
            whole[name] = {**whole[name], **changed.pop(name)}  # type: ignore[dict-item]
    return whole | {name.replace("_", "-"): value for name, value in changed.items()}


def raw(what: Any) -> bytes:
    """The message as it is stored in the list of its queue."""
    return what if isinstance(what, bytes) else json.dumps(what).encode()


def without(*names: str) -> dict[str, Any]:
    """A valid message without one of its parts."""
    hostile = message()
    for name in names:
        del hostile[name]
    return hostile


def items(bomb: str) -> dict[str, bytes]:
    """Hostile items of a Redis list, each with its description."""
    pickled = base64.b64encode(pickle.dumps([[1, Bomb(bomb)], {}, {}])).decode()
    return {name: raw(one) for name, one in (_envelopes(pickled) | _documents(bomb)).items()}


def _envelopes(pickled: str) -> dict[str, Any]:
    """Messages with one invalid part."""
    return {
        "a pickle": message(body=pickled, content_type="application/x-python-serialize", content_encoding="binary"),
        "a pickle that says it is JSON": message(body=pickled),
        "yaml": message(body=base64.b64encode(b"!!python/object/apply:os.system ['true']").decode(),
                        content_type="application/x-yaml"),
        "an unknown content type": message(content_type="application/x-nothing"),
        "no content type": message(content_type=None),
        "text": message(content_type="text/plain"),
        "gzipped": message(headers={"compression": "application/x-gzip"}),
        "another task": message(headers={"task": "os.system"}),
        "a task of Celery": message(headers={"task": "celery.backend_cleanup"}, body=body()),
        "celery.map of ours": message(headers={"task": "celery.map"}, body=body({"task": TASK_NAME, "args": []}, [[1, DISPATCH]])),
        "no task": message(headers={"task": None}),
        "a task that is a list": message(headers={"task": ["x"]}),
        "no arguments": message(body=body()),
        "too many arguments": message(body=body(1, DISPATCH, 3)),
        "keyword arguments": message(body=body(1, DISPATCH, kwargs={"x": 1})),
        "a chain": message(body=body(1, DISPATCH, chain=[{"task": "x"}])),
        "a callback": message(body=body(1, DISPATCH, callbacks=[{"task": "x"}])),
        "an id that is a text": message("1; drop table dag_run"),
        "an id that is a list": message([1]),
        "an id that is true": message(True),
        "a negative id": message(-1),
        "id 0": message(0),
        "a huge id": message(2**70),
        "a float id": message(1.5),
        "a dispatch id that is SQL": message(1, "'; drop table task_instance; --"),
        "a dispatch id with NUL": message(1, "a\0b"),
        "a dispatch id that is a number": message(1, 7),
        "two dispatch ids": message(1, DISPATCH, headers={"id": str(uuid.uuid4())}),
        "bad base64": message(body="%%%"),
        "no base64": message(properties={"body_encoding": None}),
        "an unknown body encoding": message(properties={"body_encoding": "rot13"}),
        "a body that is a number": message(body=5),
        "a body that is no JSON": message(body=base64.b64encode(b"\xff\xfe{").decode()),
        "a deep body": message(body=base64.b64encode(b"[" * 100_000).decode()),
        "an empty body": message(body=""),
        "for next year": message(headers={"eta": "2999-01-01T00:00:00+00:00"}),
        "expired": message(headers={"expires": "1999-01-01T00:00:00+00:00"}),
        "expires at an empty text": message(headers={"expires": ""}),
        "starts at zero": message(headers={"eta": 0}),
        "a time limit that is no list": message(headers={"timelimit": 5}),
        "with a time limit": message(headers={"timelimit": [0.001, 0.001]}),
        "retried": message(headers={"retries": 10**9}),
        "of a newer release": message(headers={"message_version": 2}),
        "of an endlessly newer release": message(headers={"message_version": 10**300}),
        "a version that is a text": message(headers={"message_version": "1"}),
        "version 0": message(headers={"message_version": 0}),
        "stamped": message(headers={"stamps": {"a": "b"}, "stamped_headers": ["a"]}),
        "of protocol 1": message(headers={}, body=base64.b64encode(json.dumps({"task": TASK_NAME, "id": "x", "args": []}).encode())
                                 .decode()) | {"headers": {}},
        "without headers": without("headers"),
        "without properties": without("properties"),
        "without anything": {},
        "headers that are a text": message(headers="x"),
        "properties that are a list": message(properties=[]),
        "no delivery tag": message(properties={"delivery_tag": None}),
        "no delivery info": message(properties={"delivery_info": None}),
    }  # fmt: skip


def _documents(bomb: str) -> dict[str, Any]:
    """Items that are not messages."""
    return {
        "a list": [],
        "a number": 1,
        "null": None,
        "nothing": b"",
        "no JSON": b"{",
        "binary": bytes(range(256)),
        "deep": b"[" * 200_000,
        "huge": message(body="A" * 20_000_000),
        "a bare pickle": pickle.dumps(Bomb(bomb)),
    }
