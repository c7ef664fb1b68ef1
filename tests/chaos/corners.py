"""DAGs whose promises the plan cannot state, each with a judge: loops, teardowns, child runs, changing versions, retention.

Their runs are not compared with the plan. The ledger judges them like all others, and each judge here adds what is particular.
"""

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from support.ledger import Ledger, ask

from chaos.dag_files import KINDS

LOOPS, TEARDOWN, PARENT, CHILD, CHANGING, SOURCE, RETAINED = (
    "k1_loops", "k2_teardown", "k3_parent", "k3_child", "k4_changing", "k5_source", "k5_retained",
)  # fmt: skip
DAG_IDS = (LOOPS, TEARDOWN, PARENT, CHILD, CHANGING, SOURCE, RETAINED)
#: Those that the load triggers.
TRIGGERED = (TEARDOWN, PARENT, CHANGING, SOURCE)
CHANGING_FILE = "corner_changing.py"
ITERATIONS, NEEDED = 5, 2
SOON = "priority_weight=50, weight_rule='absolute'"
RETRY = "retries=8, retry_delay=timedelta(seconds=0.3)"

LOOPS_BODY = f"""
@task({RETRY})
def page(*, loop):
    with entry(loop.index) as it:
        it.returned = loop.index
    return loop.index

@task_group
def pages():
    page()

with DAG({LOOPS!r}, max_active_runs=2, default_args={{"depends_on_past": True}}, SCHEDULE):
    pages.loop(max_iterations={ITERATIONS}, until=lambda *, loop: loop.index >= {NEEDED})
"""
TEARDOWN_BODY = f"""
with DAG({TEARDOWN!r}, schedule=None, max_active_runs=16):
    up = PythonOperator(task_id="up", python_callable=work, op_kwargs={{"seconds": 0.2}}, {RETRY}, {SOON}).as_setup()
    busy = PythonOperator(task_id="busy", python_callable=work, op_kwargs={{"seconds": 3.0}}, {RETRY}, {SOON})
    after = PythonOperator(task_id="after", python_callable=work, {RETRY}, {SOON})
    down = PythonOperator(task_id="down", python_callable=work, {RETRY}, {SOON}).as_teardown(setups=up)
    up >> busy >> after >> down
"""
CHILDREN_BODY = f"""
from paceline.operators import TriggerDagRunOperator

with DAG({PARENT!r}, schedule=None, max_active_runs=16):
    for name in ("waits", "defers", "goes_on"):
        TriggerDagRunOperator(
            task_id=name, trigger_dag_id={CHILD!r}, conf={{"parent": "{{{{ run_id }}}}/" + name}},
            wait_for_completion=name != "goes_on", deferrable=name == "defers", poke_interval=0.5, {RETRY},
        )

with DAG({CHILD!r}, schedule=None, max_active_runs=64):
    PythonOperator(task_id="work", python_callable=work, op_kwargs={{"seconds": 0.5}}, {RETRY})
"""
#: Two versions of one DAG. In the second one, another task comes first, so every number of a task changes.
CHANGING_BODY = f"""
with DAG({CHANGING!r}, schedule=None, max_active_runs=16, disable_bundle_versioning=True):
    first = PythonOperator(task_id="first", python_callable=work, op_kwargs={{"seconds": 0.3}}, {RETRY})
    second = PythonOperator(task_id="second", python_callable=work, op_kwargs={{"seconds": 0.5, "takes": "first"}}, {RETRY})
    third = PythonOperator(task_id="third", python_callable=work, op_kwargs={{"seconds": 0.5, "takes": "second"}}, {RETRY})
    last = PythonOperator(task_id="last", python_callable=work, op_kwargs={{"takes": "third"}}, {RETRY})
    first >> second >> third >> last
"""
GATED = CHANGING_BODY.replace(
    "    first = ", '    gate = EmptyOperator(task_id="gate")\n    beside = EmptyOperator(task_id="beside")\n    first = '
).replace("    first >> second", "    gate >> [beside, first]\n    beside >> last\n    first >> second")
RETAINED_BODY = f"""
from paceline import Asset
from paceline.timetables import AssetOrTimeSchedule, DeltaTriggerTimetable

some = Asset("chaos://some")

with DAG({SOURCE!r}, schedule=None):
    PythonOperator(task_id="update", python_callable=work, outlets=[some], {RETRY})

with DAG({RETAINED!r}, max_active_runs=2, SCHEDULE):
    PythonOperator(task_id="work", python_callable=work, {RETRY})
"""


@dataclass(frozen=True, slots=True)
class Corners:
    """The corner DAGs of one run; those with a schedule run at an interval from `first` to `last`, with catchup."""

    first: datetime
    last: datetime
    interval: timedelta

    @property
    def dates(self) -> int:
        """The number of scheduled runs of a DAG with a schedule."""
        return int((self.last - self.first) / self.interval) + 1

    def files(self, ledger: Ledger) -> dict[str, str]:
        """DAG files by name."""
        seconds = self.interval.total_seconds()
        dates = (
            f"catchup=True, start_date=datetime.fromtimestamp({self.first.timestamp()}, timezone.utc),"
            f" end_date=datetime.fromtimestamp({self.last.timestamp()}, timezone.utc)"
        )
        timed = f"schedule=timedelta(seconds={seconds}), {dates}"
        either = (
            f"schedule=AssetOrTimeSchedule(timetable=DeltaTriggerTimetable(timedelta(seconds={seconds})), assets=[some]), {dates}"
        )
        bodies = {
            "corner_loops.py": LOOPS_BODY.replace("SCHEDULE", timed),
            "corner_teardown.py": TEARDOWN_BODY,
            "corner_children.py": CHILDREN_BODY,
            CHANGING_FILE: CHANGING_BODY,
            "corner_retained.py": RETAINED_BODY.replace("SCHEDULE", either),
        }
        return {name: ledger.prelude() + KINDS + body for name, body in bodies.items()}

    def judge(self, database_url: str, ledger: Ledger) -> dict[str, list[str]]:
        """The violations by counter."""
        executions = [Ran(*row) for row in ledger.rows(EXECUTIONS, list(DAG_IDS))]
        cleaned = {run_id for (run_id,) in ask(database_url, SUCCEEDED_SETUPS, TEARDOWN)}
        return {
            "wrong_runs": [*self._loops(database_url), *_children(database_url), *self._dates(executions)],
            "wrong_xcoms": [*_given(executions)],
            "teardowns_missed": [*_teardowns(executions, cleaned)],
        }

    def _loops(self, database_url: str) -> Iterator[str]:
        """Every run has its iterations, and those after the last are removed and block nothing."""
        runs = ask(database_url, "select run_id, state from dag_run where dag_id = %s", LOOPS)
        if len(runs) != self.dates:
            yield f"{LOOPS} has {len(runs)} runs instead of {self.dates}"
        yield from (f"{LOOPS}, run {run_id}, is {state}" for run_id, state in runs if state != "success")
        for run_id, states in ask(database_url, INSTANCES_OF_RUN, LOOPS):
            if states != [*["success"] * NEEDED, *["removed"] * (ITERATIONS - NEEDED)]:
                yield f"{LOOPS}, run {run_id}: its iterations are {states}"

    def _dates(self, executions: "Sequence[Ran]") -> Iterator[str]:
        """Every date ran, once, although its run was deleted meanwhile. The ledger finds a try that ran twice."""
        ran = {one.run_id for one in executions if one.dag_id == RETAINED and one.run_id.startswith("scheduled__")}
        if len(ran) != self.dates:
            yield f"{len(ran)} dates of {RETAINED} ran instead of {self.dates}"


def changed(ledger: Ledger, rng: random.Random) -> str:
    """The text of one of the two versions of CHANGING."""
    return ledger.prelude() + KINDS + rng.choice((CHANGING_BODY, GATED)) + f"# {rng.random()}\n"


@dataclass(frozen=True, slots=True)
class Ran:
    """An execution of a task of a corner DAG."""

    dag_id: str
    run_id: str
    task_id: str
    try_number: int
    start: float
    end: float | None
    outcome: str | None
    given: Any
    returned: Any


EXECUTIONS = """
select dag_id, run_id, task_id, try_number, extract(epoch from started_at)::float, extract(epoch from ended_at)::float, outcome,
       given, returned
  from ledger where dag_id = any(%s) order by started_at
"""
INSTANCES_OF_RUN = """
select r.run_id, array_agg(coalesce(t.state, 'none') order by t.map_index, t.id)
  from task_instance t join dag_run r on r.id = t.dag_run_id
 where r.dag_id = %s and r.state = 'success' and t.task_id = 'pages.page' group by 1
"""
SUCCEEDED_SETUPS = """
select r.run_id from task_instance t join dag_run r on r.id = t.dag_run_id
 where r.dag_id = %s and t.task_id = 'up' and t.state = 'success'
"""
#: The runs of each parent task that succeeded.
CHILDREN = """
select r.run_id || '/' || t.task_id,
       (select count(*) from dag_run c where c.dag_id = %s and c.conf->>'parent' = r.run_id || '/' || t.task_id)
  from task_instance t join dag_run r on r.id = t.dag_run_id where r.dag_id = %s and t.state = 'success'
"""


def _children(database_url: str) -> Iterator[str]:
    for parent, count in ask(database_url, CHILDREN, CHILD, PARENT):
        if count != 1:
            yield f"{PARENT}, {parent}: it has {count} child runs"


def _given(executions: Sequence[Ran]) -> Iterator[str]:
    """Each task of CHANGING got a value of the task that it asked for, in its own run, whatever the version."""
    for one in executions:
        if one.dag_id == CHANGING and one.given is not None:
            asked = {"second": "first", "third": "second", "last": "third"}[one.task_id]
            if not str(one.given).startswith(f"{one.run_id}/{asked}/"):
                yield f"{CHANGING}.{one.task_id} (run {one.run_id}) got {one.given!r} from {asked}"


def _teardowns(executions: Sequence[Ran], set_up: Collection[str]) -> Iterator[str]:
    """In each run whose setup succeeded and ran, the teardown ran after it, no matter what ended the tasks between them."""
    of_run: defaultdict[str, list[Ran]] = defaultdict(list)
    for one in executions:
        if one.dag_id == TEARDOWN and one.outcome == "done" and one.run_id in set_up:
            of_run[one.run_id].append(one)
    for run_id, done in of_run.items():
        up = [one.end for one in done if one.task_id == "up" and one.end is not None]
        if up and not any(one.task_id == "down" and one.start >= max(up) for one in done):
            yield f"{TEARDOWN}, run {run_id}: the setup succeeded, and the teardown did not run after it"


def without_deleted(lost: Sequence[str]) -> list[str]:
    """The findings of the ledger without executions whose runs retention has deleted."""
    return [text for text in lost if not (text.startswith(f"{RETAINED}.") and text.endswith("ran and is unknown"))]
