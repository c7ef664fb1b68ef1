"""Writes the plan as DAG files: each task acts as planned, and records its inputs and its result in the ledger."""

from support.ledger import Ledger

from chaos.plan import Plan, PlannedDag, PlannedTask

#: Ways to work; each enters the ledger in one dispatch of a try only. Return values name the run, the instance and the try, so
#: that no value of another one looks right.
KINDS = '''
from paceline import task_group
from paceline.authoring.operator import Operator
from paceline.operators import EmptyOperator, PythonOperator
from paceline.sensors import PythonSensor
from paceline.triggers import TimeDeltaTrigger

def name():
    ti = get_current_context()["ti"]
    return f"{ti.run_id}/{ti.task_id}/{ti.map_index}/{ti.try_number}"

def taken(takes):
    return None if takes is None else get_current_context()["ti"].xcom_pull(task_ids=takes)

def work(seconds=0.0, takes=None):
    with entry(taken(takes)) as it:
        time.sleep(seconds)
        it.returned = name()
    return it.returned

def fails_first(seconds=0.0, tries=1):
    with entry() as it:
        time.sleep(seconds)
        if get_current_context()["ti"].try_number <= tries:
            raise RuntimeError("fails at first, as planned")
        it.returned = name()
    return it.returned

def fails(seconds=0.0):
    with entry():
        raise RuntimeError("fails, as planned")

def skips(seconds=0.0):
    with entry():
        raise SkipTask("skips, as planned")

def poke(after_s):
    """True some seconds after the first poke, and then on record."""
    ti = get_current_context()["ti"]
    if time.time() - ti.start_date.timestamp() < after_s:
        return False
    with entry():
        return True

def lists(count, seconds=0.0):
    with entry() as it:
        time.sleep(seconds)
        it.returned = [f"{get_current_context()['ti'].run_id}:{n}" for n in range(count)]
    return it.returned

def item(number, seconds=0.0):
    with entry(number) as it:
        time.sleep(seconds)
        it.returned = name()
    return it.returned

class Waits(Operator):
    """Defers, and is on record once it goes on."""

    def __init__(self, seconds, **options):
        super().__init__(**options)
        self.seconds = seconds

    def execute(self, context):
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=self.seconds)), method_name="go_on")

    def go_on(self, context, event=None):
        with entry():
            return None
'''


def files(plan: Plan, ledger: Ledger) -> dict[str, str]:
    """DAG files by name."""
    head = ledger.prelude() + KINDS
    return {name: head + "\n".join(dag_source(dag) for dag in dags) for name, dags in plan.groups().items()}


def dag_source(dag: PlannedDag) -> str:
    """The source of one DAG, without the head of its file."""
    options = f"max_active_runs={dag.max_active_runs}, max_active_tasks={dag.max_active_tasks}"
    if dag.schedule is None:
        options += ", schedule=None"
    else:
        one = dag.schedule
        options += (
            f", schedule=timedelta(seconds={one.interval.total_seconds()}), catchup=True,"
            f" start_date=datetime.fromtimestamp({one.start.timestamp()}, timezone.utc),"
            f" end_date=datetime.fromtimestamp({one.end.timestamp()}, timezone.utc)"
        )
    lines = [f"with DAG({dag.dag_id!r}, {options}):", "    t = {}"]
    grouped = [task for task in dag.tasks if task.group is not None]
    for one in dag.tasks:
        if one.group is None:
            lines.append(f"    t[{one.task_id!r}] = {_made(one)}")
        elif one is grouped[0]:
            lines += ["    " + line for line in _group(grouped)]
    for one in dag.tasks:
        if one.group is None:
            above = sorted({f"t[{name!r}]" if dag.task[name].group is None else "t['each']" for name in one.upstream})
            lines += [f"    {name} >> t[{one.task_id!r}]" for name in above]
    return "\n".join([*lines, ""])


def _options(one: PlannedTask) -> str:
    options = {"retries": one.retries, "trigger_rule": one.rule, "pool": one.pool, "pool_slots": one.pool_slots}
    options |= {"depends_on_past": True} if one.depends_on_past else {}
    options |= {"queue": one.queue} if one.queue is not None else {}
    options |= {"priority_weight": one.weight, "weight_rule": "absolute"} if one.weight is not None else {}
    options |= dict([one.limit]) if one.limit is not None else {}
    return ", ".join(
        [*(f"{name}={value!r}" for name, value in options.items()), f"retry_delay=timedelta(seconds={one.retry_delay_s})"]
    )


def _made(one: PlannedTask) -> str:
    options = f"task_id={one.task_id!r}, {_options(one)}"
    if one.is_mapped and one.over is not None:
        return f"task(item, {options}).partial(seconds={one.seconds}).expand(number=t[{one.over!r}])"
    if one.is_mapped:
        entries = f"[dict(number=n, seconds={one.seconds}) for n in range({one.count})]"
        return f"PythonOperator.partial(python_callable=item, {options}).expand(op_kwargs={entries})"
    if one.does == "empty":
        return f"EmptyOperator({options})"
    if one.does == "lists":
        return f"task(lists, {options})({one.count}, seconds={one.seconds})"
    if one.does == "pokes":
        poking = f"python_callable=poke, op_args=[{one.seconds}], poke_interval=0.7, mode='reschedule', timeout=600"
        return f"PythonSensor({poking}, {options})"
    if one.does == "waits":
        return f"Waits(seconds={one.seconds}, {options})"
    given = {"seconds": one.seconds}
    if one.does == "fails_first":
        given["tries"] = one.failing_tries
    if one.takes is not None:
        given["takes"] = one.takes
    return f"PythonOperator(python_callable={one.does}, op_kwargs={given!r}, {options})"


def _group(tasks: list[PlannedTask]) -> list[str]:
    """A mapped task group `each`: a chain of `item`, each of which takes the result of the one before it."""
    lines, before = ["@task_group", "def each(number):"], "number"
    for task in tasks:
        short = task.task_id.partition(".")[2]
        lines.append(f"    {short} = task(item, task_id={short!r}, {_options(task)})({before}, seconds={task.seconds})")
        before = short
    return [*lines, f"t['each'] = each.expand(number=t[{tasks[0].over!r}])"]
