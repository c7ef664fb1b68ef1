"""The part `waits`: where PostgreSQL spends the time of a shape, which rows are locked, and the bytes that it writes."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bench import shapes
from bench.measure import run, warm_up
from bench.options import Options, Piece
from bench.stack import Stack

SHAPES = ("wide", "tree", "grid", "many", "many_runs")
PAUSE_S = 0.005
ACTIVE = """
    select case when wait_event_type = 'Lock' then 'lock'
                when wait_event_type = 'LWLock' and wait_event like 'WAL%%' or wait_event like 'WAL%%' then 'log'
                when wait_event_type is null then 'cpu' else 'other' end, count(*)
      from pg_stat_activity
     where state = 'active' and backend_type = 'client backend' and datname = current_database()
       and application_name <> 'paceline bench' group by 1
"""
#: A row is locked, or being changed, while the transaction in its xmax goes on.
LOCKED = "case when xmax::text <> '0' then pg_xact_status(xmax::text::xid8) = 'in progress' end"
POOL = f"select coalesce(bool_or({LOCKED}), false) from pool"
RUN = f"select avg(coalesce({LOCKED}, false)::int)::float8 from dag_run where state = 'running'"
#: Bytes of the log, its full pages and flushes; bytes of tables and indexes, by all processes. The columns depend on the
#: version of PostgreSQL.
WRITTEN = """
    select (w.wal->>'wal_bytes')::float8, (w.wal->>'wal_fpi')::float8,
           coalesce((w.wal->>'wal_sync')::float8, io.wal_syncs), io.table_bytes
      from (select to_jsonb(s) as wal from pg_stat_wal s) w
     cross join (select sum((io->>'fsyncs')::float8) filter (where io->>'object' = 'wal') as wal_syncs,
                        sum(coalesce((io->>'write_bytes')::float8, (io->>'writes')::float8 * (io->>'op_bytes')::float8))
                            filter (where io->>'object' = 'relation') as table_bytes
                   from (select to_jsonb(s) as io from pg_stat_io s) of_io) io
"""
NAMES = ("wal_bytes_per_task", "full_pages_per_task", "flushes_per_task", "table_bytes_per_task")


class Sampler:
    """Looks at all connections and at the rows of pools and running runs, again and again."""

    def __init__(self, stack: Stack) -> None:
        self._connection = stack.connect()
        self._stop = threading.Event()
        self.samples = 0
        self.active: Counter[str] = Counter()
        self.pool_locked = 0
        self.run_locked: list[float] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look during the block."""
        thread = threading.Thread(target=self._look, name="sampler")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            self._connection.close()

    def _look(self) -> None:
        with self._connection.cursor() as cursor:
            while not self._stop.wait(PAUSE_S):
                cursor.execute(ACTIVE)
                self.active.update(dict(cursor.fetchall()))
                cursor.execute(POOL)
                self.pool_locked += bool(cursor.fetchall()[0][0])
                cursor.execute(RUN)
                if (locked := cursor.fetchall()[0][0]) is not None:
                    self.run_locked.append(locked)
                self.samples += 1

    def shares(self) -> dict[str, float]:
        """The active connections on average, the shares of their time, and the shares of time for which rows are locked."""
        active, samples = sum(self.active.values()), max(1, self.samples)
        return {
            "samples": self.samples,
            "active": round(active / samples, 3),
            **{name: round(self.active[name] / max(1, active), 3) for name in ("cpu", "lock", "log", "other")},
            "pool_locked": round(self.pool_locked / samples, 3),
            "run_locked": round(sum(self.run_locked) / max(1, len(self.run_locked)), 4),
        }


def measure(options: Options) -> Piece:
    """`waits`: by shape, the shares of time of active connections, and those in which a pool and a run are locked. `written` has
    what a task writes on average over all shapes; tables are written at a checkpoint.
    """
    known = shapes.small() if options.small else shapes.full()
    wanted = [known[name] for name in SHAPES]
    found: dict[str, Any] = {}
    tasks = 0
    with Stack(shapes.files_of(wanted)) as stack:
        for shape in wanted:
            warm_up(stack, shape)
        before = _written(stack)
        stack.start(schedulers=1, workers=1)
        for shape in wanted:
            sampler, started = Sampler(stack), time.perf_counter()
            with sampler.running():
                tasks += run(stack, shape).tasks
            found[shape.name] = sampler.shares()
            options.say(f"{shape.name} in {time.perf_counter() - started:.1f} s: {found[shape.name]}")
        after = _written(stack)
    written = {name: round((late - early) / tasks, 3) for name, early, late in zip(NAMES, before, after, strict=True)}
    return {"waits": found | {"written": written}}


def _written(stack: Stack) -> tuple[float, ...]:
    """The counters after a checkpoint. Processes count at their end at the latest, so all end before."""
    stack.stop_processes()
    with stack.connection.cursor() as cursor:
        cursor.execute("checkpoint")
        cursor.execute("select pg_stat_force_next_flush()")
    return stack.rows(WRITTEN)[0]
