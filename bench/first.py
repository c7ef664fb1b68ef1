"""The part `first`: the time until the first task of a new run starts, over a message of bare Celery from task to task."""

import time
from statistics import median

from bench.options import Options, Piece
from bench.raw import RawCelery
from bench.stack import Stack

SAMPLES = 40
#: Messages of bare Celery after each run, and those before them that do not count.
MESSAGES, FIRST = 5, 2
FILE = """\
from paceline import DAG, task
from paceline.operators import TriggerDagRunOperator


@task
def noop():
    pass


OPTIONS = {"schedule": None, "max_active_runs": 1000}
with DAG("one", **OPTIONS):
    noop()
with DAG("child", **OPTIONS):
    noop()
with DAG("parent", **OPTIONS):
    TriggerDagRunOperator(task_id="trigger", trigger_dag_id="child")
"""
#: When the transaction that creates a run begins, and when its first task starts.
STARTED = """
    select extract(epoch from r.queued_at)::float8, extract(epoch from min(t.started_at))::float8
      from dag_run r join task_instance t on t.dag_run_id = r.id where r.dag_id = %s and r.id >= %s group by r.id
"""


def measure(options: Options) -> Piece:
    """`first`: the median in ms from a trigger to the start of the first task, and from the transaction of TriggerDagRunOperator to
    that of its child run; the median of a message of bare Celery; and the medians of the ratios of the pairs."""
    samples = 3 if options.small else SAMPLES
    found: dict[str, list[float]] = {"triggered": [], "child": [], "celery": []}
    environment = {"PACELINE_SCHEDULER_MIN_FILE_PROCESS_INTERVAL": "3600"}
    with Stack({"first.py": FILE}, environment=environment) as stack:
        celery = RawCelery(stack)
        with celery.running():
            for sample in range(-2, samples):
                times = {"triggered": _triggered(stack), "child": _child(stack), "celery": median(celery.hops(MESSAGES, FIRST))}
                for name, ms in times.items() if sample >= 0 else ():
                    found[name].append(ms)
    ratios = {
        name: round(median(a / b for a, b in zip(found[name], found["celery"], strict=True)), 2) for name in ("triggered", "child")
    }
    times = {name: round(median(values), 3) for name, values in found.items()}
    options.say(f"first task after {times['triggered']} ms, of a child run after {times['child']} ms; Celery {times['celery']} ms")
    return {"first": {"ms": times, "over_celery": ratios}}


def _triggered(stack: Stack) -> float:
    """Milliseconds from the call of a client that triggers a run to the stored start of its task."""
    begun = time.time()
    (run,) = stack.trigger(["one"])
    stack.wait_closed([run])
    return float(stack.rows(STARTED, ("one", run))[0][1] - begun) * 1000


def _child(stack: Stack) -> float:
    """Milliseconds from the transaction of a task that triggers a run to the stored start of the task of that run."""
    (run,) = stack.trigger(["parent"])
    stack.wait_closed([run])
    stack.wait(lambda: bool(stack.rows(STARTED, ("child", run))[0][1]), 60, "the child run")
    created, started = stack.rows(STARTED, ("child", run))[0]
    return float(started - created) * 1000
