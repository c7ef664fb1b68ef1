"""What stirs: one statement that says which services may find something to do, so that an idle scheduler asks nothing else.

INVARIANT: each answer is true whenever the first statement of its service would find a row, now or before the next look. A
service turns whatever stirs when it is rung, when it has named a time itself, and at least twice a minute.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from scheduler.settings import Settings
from scheduler.states import DUE, HOLDS_SLOTS

#: A service that turns may name the moment at which the next row is due, so what is due before the next look stirs already:
#: looks are one interval and a tenth apart.
LOOKS_AHEAD = 3
#: By service. All of them ask indexes of the little that is open, or tables that stay small.
QUESTIONS = {
    "plan": """
        exists (select from dag_schedule where not is_paused and next_run_after <= clock_timestamp() + make_interval(secs => $1))
        or exists (select from dag_schedule s join dag d on d.dag_id = s.dag_id
                    where not s.is_paused and d.is_active and s.planned_version_id is distinct from d.version_id)
    """,
    "assets": "exists (select from notice where kind = 'asset' and ended_at is null) or exists (select from asset_waiting)",
    "backfill": "exists (select from backfill where ended_at is null)",
    "timeouts": "exists (select from dag_run where state = 'running' and timeout_at < clock_timestamp())",
    "promote": f"""
        exists (select from dag_run where state = 'queued')
        or exists (select from task_instance where state in {DUE.sql}
                      and due_at <= clock_timestamp() + make_interval(secs => $1))
    """,
    "sweep": "exists (select from dag_run where state = 'running')",
    "queue": "exists (select from task_instance where state = 'scheduled')",
    "rescue": f"""
        exists (select from task_instance where state in {HOLDS_SLOTS.sql})
        or exists (select from process where stopped_at is null and heartbeat_at < clock_timestamp() - make_interval(secs => $2))
        or not exists (select from crash_free)
    """,
    "queue_report": f"""
        exists (select from task_instance where state in {HOLDS_SLOTS.sql})
        or exists (select from task_instance where state = 'scheduled')
        or exists (select from process where kind = 'worker' and stopped_at is null
                      and started_at > clock_timestamp() - make_interval(secs => $1))
    """,
    "deadlines": "exists (select from deadline where missed_at is null and due_at <= clock_timestamp())",
    "notify": "exists (select from notice where ended_at is null)",
}
PREPARE = f"prepare pending_work (float8, float8) as select clock_timestamp(), {', '.join(QUESTIONS.values())}"
EXECUTE = "execute pending_work (%s, %s)"


@dataclass(frozen=True, slots=True)
class PendingWork:
    """What a look found: the database's clock, and the services (keys of QUESTIONS) that may have something to do."""

    now: datetime
    services: frozenset[str]


def look(engine: Engine, settings: Settings) -> PendingWork:
    """Ask once."""
    soon_s = LOOKS_AHEAD * settings.scheduler.scheduler_idle_sleep_time
    silent_s = min(
        settings.worker.heartbeat_timeout, settings.waiter.heartbeat_timeout, settings.scheduler.scheduler_health_check_threshold
    )
    with engine.connect() as connection:
        # Planning it would cost more than running it.
        if not connection.info.get("pending_work"):
            connection.exec_driver_sql(PREPARE)
            connection.info["pending_work"] = True
        now, *answers = connection.exec_driver_sql(EXECUTE, (soon_s, silent_s)).one()
    return PendingWork(now, frozenset(name for name, stirs in zip(QUESTIONS, answers, strict=True) if stirs))
