"""The part `creation`: the time from a large run being due to the start of its first task, over one insert of as many rows."""

import time
from statistics import median

from bench.options import Options, Piece
from bench.stack import START_S, Stack
from scheduler.store.db.rows import array_literal

SIZE = 10_000
FILE = """\
from datetime import UTC, datetime

from paceline import DAG, task


@task
def noop(number=0):
    pass


# Its time never comes by itself.
DUE = {{"schedule": "@daily", "start_date": datetime(2100, 1, 1, tzinfo=UTC), "catchup": False, "max_active_tasks": 128}}
BY_HAND = {{"schedule": None, "max_active_tasks": 128}}
for name, options in (("plain", DUE), ("by_hand", BY_HAND)):
    with DAG(name, **options):
        for i in range({size}):
            noop.override(task_id=f"t{{i:05}}")()
with DAG("mapped", **DUE):
    noop.expand(number=list(range({size})))
"""
WAYS = ("plain", "mapped", "by_hand")
INSERT = """
    insert into task_instance (dag_run_id, task_no, task_id, max_tries, queue, pool, pool_slots, priority_weight, rank)
    select %s, n.no, n.id, n.tries, 'default', 'default_pool', 1, 1, 1
      from unnest(%s::int[], %s::text[], %s::int[]) n (no, id, tries)
"""


def measure(options: Options) -> Piece:
    """`creation`: seconds from the due time to the first start of a run of plain tasks, of one mapped task, and of plain tasks
    triggered manually; and seconds of the insert. The ratio is that of plain tasks."""
    size = 50 if options.small else SIZE
    found: dict[str, list[float]] = {name: [] for name in ("insert", *WAYS)}
    environment = {"PACELINE_SCHEDULER_MIN_FILE_PROCESS_INTERVAL": "3600"}
    with Stack({"creation.py": FILE.format(size=size)}, environment=environment) as stack:
        planned = "select count(*) from dag_schedule where next_run_after is not null"
        stack.wait(lambda: stack.rows(planned)[0][0] == 2, START_S, "both DAGs to be planned")
        _insert(stack, size, "stays")  # the statistics of an empty table are misleading
        for iteration in range(options.iterations + 1):
            for way in WAYS:
                inserts = [_insert(stack, size)]
                begun = _began(stack, way)
                inserts.append(_insert(stack, size))
                if iteration:
                    found["insert"].append(median(inserts))
                    found[way].append(begun)
                    options.say(f"{way}: first start after {begun:.3f} s, {begun / median(inserts):.2f} x an insert")
    times = {name: round(median(values), 4) for name, values in found.items()}
    ratios = {
        name: round(median(a / b for a, b in zip(found[name], found["insert"][at::3], strict=True)), 2)
        for at, name in enumerate(WAYS)
    }
    return {"creation": {"size": size, "seconds": times, "over_insert": ratios}, "ratios": {"creation": ratios["plain"]}}


def _insert(stack: Stack, size: int, run_id: str = "goes") -> float:
    """Seconds of one durable insert of the same number of task instances."""
    run = stack.rows(
        "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at, ended_at)"
        " select 'x', %s, 'manual', 'success', min(id), now(), now(), now() from dag_version returning id",
        (run_id,),
    )[0][0]
    columns = (array_literal(range(size)), array_literal(f"t{number:05}" for number in range(size)), array_literal([0] * size))
    with stack.connect() as connection, connection.cursor() as cursor:
        start = time.perf_counter()
        cursor.execute(INSERT, (run, *columns))
        connection.commit()
        seconds = time.perf_counter() - start
    connection.close()
    if run_id == "goes":
        _forget(stack, run)
    else:
        end = "update task_instance set state = 'success', ended_at = now() where dag_run_id = %s returning id"
        stack.rows(end, (run,))
    return seconds


def _began(stack: Stack, way: str) -> float:
    """Seconds from the due time of a run to the stored start of its first task."""
    last = stack.rows("select coalesce(max(id), 0) from dag_run")[0][0]
    due_at = stack.rows("select extract(epoch from clock_timestamp())::float8")[0][0]
    if way == "by_hand":
        stack.trigger([way])
    else:
        stack.rows("update dag_schedule set next_run_after = clock_timestamp() where dag_id = %s returning dag_id", (way,))
        stack.wakeups.wake("plan")
    first = """select r.id, extract(epoch from min(t.started_at))::float8 from dag_run r join task_instance t on t.dag_run_id = r.id
                where r.id > %s and t.started_at is not null group by 1"""
    stack.wait(lambda: bool(stack.rows(first, (last,))), START_S, "the first task to start", interval_s=0.2)
    run, started = stack.rows(first, (last,))[0]
    _forget(stack, run)
    return float(started - due_at)


def _forget(stack: Stack, run: int) -> None:
    """Delete the run, so that the next sample finds the same table.

    Its tasks end first: a pool process that still reads the DAG file for one of them would delay the first task of the next sample.
    """
    dag = "(select dag_id from dag_run where id = %s)"
    stack.rows(f"update dag_schedule set is_paused = true where dag_id = {dag} returning dag_id", (run,))
    active = "select count(*) from task_instance where state in ('queued', 'running')"
    stack.wait(lambda: stack.rows(active)[0][0] == 0, START_S, "what runs to end")
    stack.rows(f"update dag_schedule set is_paused = false where dag_id = {dag} returning dag_id", (run,))
    stack.rows("delete from dag_run where id = %s returning id", (run,))
    with stack.connection.cursor() as cursor:
        cursor.execute("vacuum analyze task_instance")
