"""Samples the database five times a second for slots and runs over a limit, and for deadlocks. Every finding names rows."""

import contextlib
import threading
import time

import psycopg2
from psycopg2.extensions import connection as Connection

from chaos.history import History

INTERVAL_S = 0.2
#: Seconds that a pool which was made smaller may hold more than its slots.
DRAINED_S = 30.0

OVER = """
select p.name, 'pool ' || p.name || ' of ' || p.slots || ' slots holds ' || sum(t.pool_slots) || ': '
       || string_agg(r.dag_id || '.' || t.task_id || '[' || t.map_index || '] of run ' || r.run_id || ' try ' || t.try_number || ' '
                     || t.state || ' (' || t.pool_slots || ')', ', ')
  from task_instance t join pool p on p.name = t.pool join dag_run r on r.id = t.dag_run_id
 where p.slots >= 0 and t.state in ('queued', 'running', 'shutdown')
 group by p.name having sum(t.pool_slots) > p.slots
union all
select null, 'DAG ' || r.dag_id || ' has ' || count(*) || ' running runs, more than max_active_runs ' || min(v.max_active_runs)
  from dag_run r join dag_version v on v.id = r.version_id where r.state = 'running'
 group by r.dag_id having count(*) > min(v.max_active_runs)
union all
select null, 'run ' || r.dag_id || ' ' || r.run_id || ' has ' || count(*) || ' active tasks, more than max_active_tasks '
       || min(v.max_active_tasks)
  from task_instance t join dag_run r on r.id = t.dag_run_id join dag_version v on v.id = r.version_id
 where t.state in ('queued', 'running', 'shutdown')
 group by r.id having count(*) > min(v.max_active_tasks)
union all
select null, r.dag_id || '.' || t.task_id || ' of run ' || r.run_id || ' has ' || count(*)
       || ' active instances, more than max_active_tis_per_dagrun ' || min(t.max_active_tis_per_dagrun)
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.state in ('queued', 'running', 'shutdown', 'deferred') and t.max_active_tis_per_dagrun is not null
 group by r.id, t.task_id having count(*) > min(t.max_active_tis_per_dagrun)
union all
select null, r.dag_id || '.' || t.task_id || ' has ' || count(*) || ' active instances, more than max_active_tis_per_dag '
       || min(t.max_active_tis_per_dag)
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where t.state in ('queued', 'running', 'shutdown', 'deferred') and t.max_active_tis_per_dag is not null
 group by r.dag_id, t.task_id having count(*) > min(t.max_active_tis_per_dag)
"""
DEADLOCKS = "select deadlocks, stats_reset from pg_stat_database where datname = current_database()"


class Monitor(threading.Thread):
    """`overruns` and `deadlocks` are what it has seen; it looks again as soon as PostgreSQL does."""

    def __init__(self, url: str, history: History) -> None:
        super().__init__(name="watch", daemon=True)
        self._url = url
        self._history = history
        self._done = threading.Event()
        self.looks = 0
        self.overruns: list[str] = []
        self.deadlocks = 0
        self._last = 0

    def run(self) -> None:
        connection: Connection | None = None
        while not self._done.wait(INTERVAL_S):
            try:
                if connection is None:
                    connection = psycopg2.connect(self._url, connect_timeout=2, application_name="chaos watch")
                    connection.autocommit = True
                self._look(connection)
            except psycopg2.Error:
                if connection is not None:
                    with contextlib.suppress(psycopg2.Error):
                        connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def end(self) -> None:
        self._done.set()
        self.join(30)

    def _look(self, connection: Connection) -> None:
        with connection.cursor() as cursor:
            cursor.execute(OVER)
            over = cursor.fetchall()
            cursor.execute(DEADLOCKS)
            counted = cursor.fetchone()[0]
        self.looks += 1
        stamp = time.strftime("%H:%M:%S")
        # Task instances in the slots of a pool that became smaller are left to end.
        drains = {pool for pool, at in self._history.shrunk.items() if time.monotonic() - at < DRAINED_S}
        self.overruns += [f"{stamp} {text}" for pool, text in over if pool not in drains]
        # A crash of the server sets the counter back.
        self.deadlocks += counted - self._last if counted >= self._last else counted
        self._last = counted
