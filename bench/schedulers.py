"""The part `schedulers`: the gain from a second and a third scheduler, with a real worker and with a stub."""

from statistics import median

from bench import measure as measuring
from bench import shapes
from bench.options import Options, Piece
from bench.stack import START_S, Stack
from bench.stub import StubWorker

COUNTS = (1, 2, 3)
#: Enough capacity for all tasks, so that schedulers wait only for each other.
ENVIRONMENT = {"PACELINE_CORE_PARALLELISM": "20000", "PACELINE_SCHEDULER_MIN_FILE_PROCESS_INTERVAL": "3600"}
POOLS = tuple(f"bench_{number}" for number in range(4))
DAGS, LENGTH = 20, 5
TEXT = """\
from paceline import DAG, task


@task
def noop():
    pass


for number in range({dags}):
    pool = {pools!r}[number % {count}]
    with DAG(f"{prefix}_{{number:02}}", schedule=None, max_active_runs=10000):
        before = None
        for place in range({length}):
            one = noop.override(task_id=f"t{{place}}", pool=pool)()
            if before is not None:
                before >> one
            before = one
"""


def measure(options: Options) -> Piece:
    """`schedulers`: tasks/s by number of schedulers, for `many`, for dispatch alone in one pool, and in four pools; ratios for
    dispatch alone in one pool."""
    runs = 2 if options.small else 50  # of each DAG
    many = shapes.small()["many"] if options.small else shapes.many()
    found: dict[str, dict[int, list[float]]] = {
        name: {count: [] for count in COUNTS} for name in ("many", "one_pool", "four_pools")
    }
    files = dict(many.files) | {"one_pool.py": _text("one_pool", 1), "four_pools.py": _text("four_pools", 4)}
    with Stack(files, schedulers=0, workers=0, environment=ENVIRONMENT) as stack:
        stack.rows("insert into pool (name, slots) select unnest(%s), 5000 returning name", (list(POOLS),))
        stack.start(schedulers=1, workers=0)  # its workers read the files
        stack.stop_processes()
        for iteration in range(options.iterations):
            for count in COUNTS if iteration % 2 == 0 else reversed(COUNTS):
                stack.start(schedulers=count, workers=1)
                measuring.warm_up(stack, many)
                row = {"many": measuring.run(stack, many).tasks_per_s}
                stack.stop_processes()
                row |= _alone(stack, count, runs)
                for name, value in row.items():
                    found[name][count].append(value)
                options.say(f"{count} scheduler(s): " + ", ".join(f"{name} {value:.0f} tasks/s" for name, value in row.items()))
    medians = {name: {str(count): round(median(values), 1) for count, values in by.items()} for name, by in found.items()}
    alone = medians["one_pool"]
    return {"schedulers": medians, "ratios": {"schedulers": {count: round(alone[count] / alone["1"], 2) for count in alone}}}


def _alone(stack: Stack, count: int, runs: int) -> dict[str, float]:
    """Tasks per second of schedulers with the stub as the only worker."""
    stack.start(schedulers=count, workers=0)
    with StubWorker(stack):
        row = {name: _dispatch(stack, name, runs) for name in ("one_pool", "four_pools")}
    stack.stop_processes()
    return row


def _dispatch(stack: Stack, prefix: str, runs: int) -> float:
    """Tasks per second from the release of all runs to the end of the last one."""
    dag_ids = [f"{prefix}_{number:02}" for number in range(DAGS)]
    stack.rows("update dag_schedule set is_paused = true where dag_id = any(%s) returning dag_id", (dag_ids,))
    run_ids = stack.trigger(dag_ids * runs)
    stack.rows("update dag_schedule set is_paused = false where dag_id = any(%s) returning dag_id", (dag_ids,))
    released = stack.rows("select extract(epoch from clock_timestamp())::float8")[0][0]
    stack.wakeups.wake(*(f"run:{run}" for run in run_ids))
    stack.wait_closed(run_ids, START_S)
    ended = stack.rows("select extract(epoch from max(ended_at))::float8 from dag_run where id = any(%s)", (run_ids,))[0][0]
    return float(len(run_ids) * LENGTH / (ended - released))


def _text(prefix: str, pools: int) -> str:
    return TEXT.format(dags=DAGS, pools=POOLS, count=pools, prefix=prefix, length=LENGTH)
