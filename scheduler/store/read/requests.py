"""Requests of task instances to people, with their answers: both are values in the state store of the task instance."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from paceline.authoring import json_schema, params
from scheduler.store.read.instances import INSTANCES, OPERATOR
from scheduler.store.read.listing import Filters, Listing

#: The keys of paceline/operators/hitl.py.
REQUEST, RESPONSE, EARLIER = "hitl_request", "hitl_response", "hitl_try_{}"
#: Keys that begin with this are written by tasks, and by the answer of a person, whose account decides who answered.
RESERVED = "hitl_"
#: The oldest task instance first.
REQUESTS = Listing(
    columns=f"{INSTANCES.columns}, q.value as request, q.updated_at as created_at, a.value as answer",
    tables=f"""
        {INSTANCES.source}
        join task_state q on q.task_instance_id = t.id and q.key = '{REQUEST}'
        left join task_state a on a.task_instance_id = t.id and a.key = '{RESPONSE}'
              and (a.expires_at is null or a.expires_at > clock_timestamp())
    """,
    orders={
        "ti_id": "t.id", "subject": "q.value->>'subject'", "created_at": "q.updated_at", "responded_at": "a.updated_at",
        "responded_by_user_id": "a.value->'responded_by_user'->>'id'",
        "responded_by_user_name": "a.value->'responded_by_user'->>'name'", "dag_id": "r.dag_id", "run_id": "r.run_id",
        "task_display_name": "t.task_id", "run_after": "r.run_after",
        "rendered_map_index": INSTANCES.orders["rendered_map_index"], "task_instance_operator": OPERATOR,
        "task_instance_state": "t.state",
    },
    filtered={**INSTANCES.filtered, **INSTANCES.orders, "body": "q.value->>'body'"},
    default_order=("ti_id",),
    key="t.id",
)  # fmt: skip


def is_answered(chosen: Filters, answered: bool | None) -> Filters:
    """Only requests that have an answer, or only those that have none; None is all."""
    return chosen if answered is None else chosen.where(f"a.key is {'not ' if answered else ''}null")


def in_order(request: Mapping[str, Any]) -> dict[str, Any]:
    """A stored request with its params in the order of their author."""
    found, order = request.get("params"), request.get("params_order")
    if not isinstance(found, dict) or not isinstance(order, list):
        return dict(request)
    return {**request, "params": {name: found[name] for name in order if isinstance(name, str) and name in found} | found}


def is_open(connection: Connection, ti_id: int, request: Mapping[str, Any]) -> bool:
    """Whether the try that stored this request is still current: it runs, or continues after a wait. The next try asks again."""
    row = connection.exec_driver_sql(
        "select try_number from task_instance where id = %s and (state = 'running' or resume is not null)", (ti_id,)
    ).first()
    return row is not None and request.get("try_number", row.try_number) == row.try_number


def asked_at(request: Any) -> datetime | None:
    """When a task stored a request; None if the request does not contain it."""
    try:
        return datetime.fromisoformat(request["asked_at"])
    except (TypeError, KeyError, ValueError):
        return None


def is_readable(request: Any) -> bool:
    """Whether HITLOperator stored this: tasks can store other values under its key."""
    if not isinstance(request, dict) or not isinstance(request.get("options"), list):
        return False
    form = request.get("params") or {}
    return isinstance(form, dict) and all(isinstance(one, dict) for one in form.values())


def schema_fault(request: Mapping[str, Any]) -> str | None:
    """The fault in the schemas of a readable request, as a sentence that names the param; None if all are valid."""
    for name, one in (request.get("params") or {}).items():
        if complaint := json_schema.schema_complaint(one.get("schema")):
            return f"The schema of param {name!r} is not valid: {complaint}."
    return None


def fault(request: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The fault in the values of an answer, as a sentence that names the param; None if they fit."""
    return params.fault(request.get("params") or {}, given)
