"""The audit log: each requested change."""

from typing import Annotated, Any

from fastapi import Depends, Query

from scheduler.api import other_dags, params
from scheduler.api.access import VIEWER_OF_ANY
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import installation as models
from scheduler.api.models.base import Moment
from scheduler.api.params import Number, Page, Strings, patterns
from scheduler.store.read import records
from scheduler.store.read.listing import Filters

router = new_router(prefix="/eventLogs", tags=["Event Log"])


@router.get("", VIEWER_OF_ANY, response_model=models.EventLogPage)
def get_event_logs(
    api: Api,
    page: Page,
    patterns_: Annotated[
        params.Patterns, Depends(patterns(dag_id="dag_id", task_id="task_id", run_id="run_id", owner="owner", event="event"))
    ],
    dag_id: str | None = None,
    task_id: str | None = None,
    run_id: str | None = None,
    map_index: int | None = None,
    try_number: int | None = None,
    owner: str | None = None,
    event: str | None = None,
    excluded_events: Strings = None,
    included_events: Strings = None,
    before: Annotated[Moment | None, Query()] = None,
    after: Annotated[Moment | None, Query()] = None,
) -> dict[str, Any]:
    """List entries of the audit log. Without the role admin, only those about DAGs."""
    filters = _visible(api).like_each(patterns_).equals("dag_id", dag_id).equals("task_id", task_id).equals("run_id", run_id)
    filters.equals("map_index", map_index).equals("owner", owner).equals("event", event)
    filters.one_of("event", included_events).none_of("event", excluded_events).between("at", {"lt": before, "gt": after})
    if try_number is not None:
        filters.nothing()
    entries = api.page("event_logs", records.AUDIT, filters, page)
    return entries | {"event_logs": other_dags.in_audit(api, entries["event_logs"])}


@router.get("/{event_log_id}", VIEWER_OF_ANY, response_model=models.EventLog)
def get_event_log(api: Api, event_log_id: Number) -> dict[str, Any]:
    """Show an entry of the audit log."""
    chosen = _visible(api).equals("id", event_log_id)
    row = api.read(records.AUDIT.one, chosen, f"There is no event log {event_log_id}.")
    return other_dags.in_audit(api, [row])[0]


def _visible(api: Call) -> Filters:
    """Entries about accounts, variables and connections are for administrators."""
    filters = records.AUDIT.filters()
    return filters if api.account.role == "admin" else filters.is_set("dag_id").visible(api.tags())
