"""Requests of task instances to people, with their answers: both are values in the state store of the task instance."""

from sqlalchemy import Connection

from scheduler.store.lists import instances
from scheduler.store.lists.listing import Entries, Filters, Page, entries

#: The keys of scheduler/operators/hitl.py.
REQUEST, RESPONSE = "hitl_request", "hitl_response"
COLUMNS = f"{instances.COLUMNS}, q.value as request, q.updated_at as created_at, a.value as answer"
SOURCE = f"""
    {instances.SOURCE}
    join task_state q on q.task_instance_id = t.id and q.key = '{REQUEST}'
    left join task_state a on a.task_instance_id = t.id and a.key = '{RESPONSE}'
          and (a.expires_at is null or a.expires_at > clock_timestamp())
"""
ORDERS = {
    "ti_id": "t.id", "subject": "q.value->>'subject'", "created_at": "q.updated_at", "responded_at": "a.updated_at",
    "responded_by_user_id": "a.value->'responded_by_user'->>'id'",
    "responded_by_user_name": "a.value->'responded_by_user'->>'name'", "dag_id": "r.dag_id", "run_id": "r.run_id",
    "task_display_name": "t.task_id", "run_after": "r.run_after",
    "rendered_map_index": instances.ORDERS["rendered_map_index"], "task_instance_operator": instances.OPERATOR,
    "task_instance_state": "t.state",
}  # fmt: skip


def filters() -> Filters:
    """No condition yet."""
    return Filters(instances.COLUMNS_BY_NAME | ORDERS | {"body": "q.value->>'body'"})


def is_answered(chosen: Filters, answered: bool | None) -> Filters:
    """Only requests that have an answer, or only those that have none; None is all."""
    return chosen if answered is None else chosen.where(f"a.key is {'not ' if answered else ''}null")


def requests(connection: Connection, chosen: Filters, page: Page) -> Entries:
    """One page of requests, the oldest task instance first."""
    return entries(connection, COLUMNS, SOURCE, chosen, page, orders=ORDERS, default=("ti_id",), key="t.id")
