"""Celery's remote control of a worker: it answers queries, sends events and shuts down cleanly.

All other commands are refused with an error message. They would change a decision of PostgreSQL (which task runs, and where) or the
registration of the worker (its concurrency and queues), so that Celery and PostgreSQL contradict each other.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from celery.worker import control
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from workers.process.logs import worker_log

MAX_BODY_CHARACTERS = 64 << 10
#: Maximum of Celery's logical clock. A larger value from outside would be part of every later event.
LARGEST_CLOCK = 2**53
UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"

_STOP_TASK = (
    "PostgreSQL decides what runs: `paceline tasks mark DAG RUN TASK failed` (or success, skipped) ends a task that waits or runs,"
    " `paceline tasks clear DAG RUN TASK` runs it again"
)
_PLACES = "a worker keeps its registered concurrency: start it with another --concurrency, or start another worker"
_QUEUES = "a worker keeps its registered queues: start it with other --queues, or start another worker"
#: Refused commands and their counterparts in Paceline.
REFUSED: Mapping[str, str] = {
    "revoke": _STOP_TASK,
    "terminate": _STOP_TASK,
    "revoke_by_stamped_headers": _STOP_TASK,
    "pool_grow": _PLACES,
    "pool_shrink": _PLACES,
    "autoscale": _PLACES,
    "pool_restart": "stop the worker (SIGTERM, or Shut down in Flower) and let its supervisor start it again",
    "add_consumer": _QUEUES,
    "cancel_consumer": _QUEUES,
    "rate_limit": "limit how many run at once by a pool, max_active_tis_per_dag or max_active_tasks",
    "time_limit": "set execution_timeout of the task",
}
NOT_SUPPORTED = "Paceline does not support it"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Safe(_Strict):
    safe: bool | None = None


class _Registered(_Strict):
    taskinfoitems: Annotated[list[str], Field(max_length=0)] | None = None
    builtins: Literal[False] = False


class _Conf(_Strict):
    with_defaults: bool = False


class _Ids(_Strict):
    ids: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=1000)]


class _Shutdown(_Strict):
    msg: Annotated[str, Field(max_length=1000)] = ""


#: Supported commands, under all their names, with their arguments.
FOLLOWED: Mapping[str, type[_Strict]] = {
    **dict.fromkeys(("ping", "stats", "clock", "active_queues"), _Strict),
    **dict.fromkeys(("scheduled", "dump_schedule", "reserved", "dump_reserved", "revoked", "dump_revoked"), _Strict),
    **dict.fromkeys(("active", "dump_active"), _Safe),
    **dict.fromkeys(("registered", "dump_tasks"), _Registered),
    **dict.fromkeys(("conf", "dump_conf"), _Conf),
    "query_task": _Ids,
    **dict.fromkeys(("enable_events", "disable_events", "heartbeat"), _Strict),
    "shutdown": _Shutdown,
}


class _ReplyTo(_Strict):
    exchange: Literal["reply.celery.pidbox"]
    routing_key: Annotated[str, Field(pattern=UUID)]


class _Request(_Strict):
    method: Annotated[str, Field(pattern="^[a-z_]{1,50}$")]
    arguments: dict[str, Any] | None = None
    destination: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=1000)] | None = None
    #: Must be empty: Celery would match its name with a regular expression of the sender.
    pattern: None = None
    matcher: None = None
    ticket: Annotated[str, Field(pattern=UUID)] | None = None
    reply_to: _ReplyTo | None = None


class _Headers(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    clock: Annotated[int, Field(ge=0, le=LARGEST_CLOCK)] | None = None
    expires: Annotated[float, Field(ge=0, le=LARGEST_CLOCK)] | None = None
    compression: None = None


def fault(message: Mapping[str, Any]) -> str | None:
    """Return the fault of a message of remote control; None if it is a valid request.

    The method is checked in `commands`, because a refusal is an answer too.
    """
    body = message.get("body")
    if not isinstance(body, str) or len(body) > MAX_BODY_CHARACTERS:
        return "its body is not a command"
    try:
        _Headers.model_validate(message["headers"])
        request = _Request.model_validate_json(base64.b64decode(body, validate=True))
    except (ValidationError, ValueError, RecursionError):
        return "it is not a command of remote control"
    followed = FOLLOWED.get(request.method)
    if followed is not None:
        try:
            followed.model_validate_json(json.dumps(request.arguments or {}))
        except (ValidationError, ValueError, RecursionError):
            return f"it has invalid arguments for the command {request.method}"
    return None


def commands(drain: Callable[[], None]) -> dict[str, Callable[..., Any]]:
    """Return the handlers of all commands for Celery's panel. `drain` shuts the worker down cleanly."""

    def shutdown(_state: Any, **_: Any) -> dict[str, str]:
        worker_log.warning("stopping: remote control sent the command shutdown")
        drain()
        return {"ok": "it takes no more tasks, and ends when its running tasks have ended or after worker.grace_sec"}

    known = {name: handler for name, handler in control.Panel.data.items() if name in FOLLOWED}
    return _Commands(known | {"shutdown": shutdown})


class _Commands(dict[str, Callable[..., Any]]):
    """Handlers of commands. Any other command is refused with a reason."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        def refuse(_state: Any, **_: Any) -> dict[str, str]:
            worker_log.warning("refused the command %s of remote control", name)
            return {"error": refusal(name)}

        return refuse


def refusal(name: str) -> str:
    """Return the reason to refuse a command, with an alternative."""
    return f"A worker of Paceline does not follow {name}: {REFUSED.get(name, NOT_SUPPORTED)}."
