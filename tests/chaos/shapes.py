"""The 20 DAGs of a chaos run, by its seed: chains, fans, joins, pools, mapped tasks and groups, sensors, deferrals, random ones."""

import random
from collections.abc import Callable
from textwrap import indent

from support.ledger import Ledger

#: Pools made before anything runs; tasks that need 2 slots are among those of `narrow` and `odd`.
POOLS = {"narrow": 2, "odd": 3, "wide": 6, "probes": 100}
RULES = ("all_success", "all_success", "all_success", "all_done", "one_success", "none_failed", "none_failed_min_one_success",
         "one_failed", "all_done_min_one_success", "one_done", "none_skipped")  # fmt: skip
#: DAGs in one file: every pool child reads each file once.
PER_FILE = 5

#: Ways to work beside `work(seconds)` of the ledger; each enters the ledger in one dispatch of a try only.
KINDS = '''
from scheduler import task_group
from scheduler.authoring.operator import Operator
from scheduler.exceptions import SkipTask
from scheduler.operators import EmptyOperator, PythonOperator
from scheduler.sensors import PythonSensor
from scheduler.triggers import TimeDeltaTrigger

def fails_first(seconds=0.0, tries=1):
    with entry():
        time.sleep(seconds)
        if get_current_context()["ti"].try_number <= tries:
            raise RuntimeError("fails at first, as planned")

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
    with entry():
        time.sleep(seconds)
        return list(range(count))

def item(number, seconds=0.0):
    with entry():
        time.sleep(seconds)
        return number

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

def node(task_id, call=work, seconds=0.0, **options):
    """A task that comes back quickly after a fault."""
    kwargs = {"seconds": seconds} if "op_kwargs" not in options else options.pop("op_kwargs")
    options = {"retries": 5, "retry_delay": timedelta(seconds=0.3), **options}
    return PythonOperator(task_id=task_id, python_callable=call, op_kwargs=kwargs, **options)
'''


#: Two more: one task that any scheduler should move at once, whatever fills the other queue, and a heap of tasks to wait in Redis.
PROBES = "probes"
MEASURES = f"""
with DAG("probe", schedule=None, max_active_runs=1000):
    EmptyOperator(task_id="probe", pool="probes", queue="{PROBES}")

with DAG("burst", schedule=None, max_active_runs=1000, max_active_tasks=1000):
    for number in range(40):
        node(f"b{{number:02}}", seconds=0.05, priority_weight=9)
"""


def files(seed: int, ledger: Ledger) -> dict[str, str]:
    """DAG files by name: four of five DAGs, and those that measure."""
    sources = list(dags(seed).values())
    head = ledger.prelude() + KINDS
    return {"measures.py": head + MEASURES} | {
        f"chaos_{number}.py": head + "\n\n".join(sources[at : at + PER_FILE])
        for number, at in enumerate(range(0, len(sources), PER_FILE), start=1)
    }


def dags(seed: int) -> dict[str, str]:
    """The source of each DAG, without the head of the file, by DAG id."""
    makers: list[Callable[[random.Random], list[str]]] = [
        _chain, _chain, _fan, _fan, _join, _join, _diamonds, _retries, _retries, _narrow, _odd, _wide, _mapped, _mapped_output,
        _group, _sensor, _deferral, _random, _random, _random,
    ]  # fmt: skip
    found = {}
    for number, make in enumerate(makers, start=1):
        dice = random.Random(f"{seed} {number}")
        dag_id = f"c{number:02}_{make.__name__.strip('_')}"
        runs, tasks = dice.choice((1, 2, 3, 16)), dice.choice((4, 8, 16, 64))
        head = f"with DAG({dag_id!r}, schedule=None, max_active_runs={runs}, max_active_tasks={tasks}):"
        found[dag_id] = head + "\n" + indent("\n".join(make(dice)), "    ")
    return found


def _seconds(dice: random.Random) -> float:
    """From nothing to long enough to be killed in it; so that about half of all pool children are at work."""
    return round(dice.choice((0.0, 0.1, 0.3, 1.0, dice.uniform(0.5, 4.0))), 2)


def _chain(dice: random.Random) -> list[str]:
    length = dice.randint(12, 30)
    lines = [f"t = [node(f't{{n:02}}', seconds={_seconds(dice) / 3:.2f}) for n in range({length})]"]
    return [*lines, "for a, b in zip(t, t[1:]): a >> b"]


def _fan(dice: random.Random) -> list[str]:
    width = dice.randint(15, 40)
    return [
        f"first = node('first', seconds={_seconds(dice)})",
        f"fan = [node(f'f{{n:02}}', seconds={_seconds(dice)}) for n in range({width})]",
        "first >> fan",
    ]


def _join(dice: random.Random) -> list[str]:
    width = dice.randint(10, 30)
    return [
        f"fan = [node(f'f{{n:02}}', seconds={_seconds(dice)}) for n in range({width})]",
        f"middle = node('middle', trigger_rule={dice.choice(('all_success', 'all_done'))!r})",
        "fan >> middle",
        "middle >> node('last')",
    ]


def _diamonds(dice: random.Random) -> list[str]:
    return [
        "top = node('t0')",
        f"for level in range(1, {dice.randint(4, 7)}):",
        f"    sides = [node(f's{{level}}_{{n}}', seconds={_seconds(dice)}) for n in range({dice.randint(2, 5)})]",
        "    bottom = node(f't{level}')",
        "    top >> sides >> bottom",
        "    top = bottom",
    ]


def _retries(dice: random.Random) -> list[str]:
    return [
        f"t = [node(f'r{{n}}', call=fails_first, op_kwargs=dict(seconds={_seconds(dice)}, tries=n % 3)) for n in range(12)]",
        f"fails_for_good = node('fails', call=fails, retries={dice.randint(0, 2)}, retry_delay=timedelta(seconds=0.2))",
        "after = node('after', trigger_rule='all_done')",
        "for a, b in zip(t, t[4:]): a >> b",
        "[*t[-4:], fails_for_good] >> after",
        "fails_for_good >> node('never')",
    ]


def _narrow(dice: random.Random) -> list[str]:
    return _pool(dice, "narrow", 10)


def _odd(dice: random.Random) -> list[str]:
    return _pool(dice, "odd", 18)


def _wide(dice: random.Random) -> list[str]:
    return _pool(dice, "wide", 24)


def _pool(dice: random.Random, pool: str, count: int) -> list[str]:
    """Two layers, so that following has its part in filling the pool."""
    return [
        f"a = [node(f'a{{n:02}}', pool={pool!r}, pool_slots=1 + n % 2, priority_weight=n % 4, weight_rule='absolute',"
        f" seconds={_seconds(dice) / 2:.2f}) for n in range({count // 2})]",
        f"b = [node(f'b{{n:02}}', pool={pool!r}, pool_slots=1 + n % 2, priority_weight=n % 5, weight_rule='absolute',"
        f" seconds={_seconds(dice) / 2:.2f}) for n in range({count // 2})]",
        "for x, y in zip(a, b): x >> y",
    ]


def _mapped(dice: random.Random) -> list[str]:
    limit = dice.choice(("", ", max_active_tis_per_dagrun=2", ", max_active_tis_per_dag=3"))
    return [
        "one = PythonOperator.partial(task_id='one', python_callable=item, retries=5, retry_delay=timedelta(seconds=0.2)"
        f"{limit}).expand(op_kwargs=[dict(number=n, seconds={_seconds(dice) / 2:.2f}) for n in range({dice.randint(8, 25)})])",
        "node('first') >> one >> node('last')",
    ]


def _mapped_output(dice: random.Random) -> list[str]:
    return [
        f"make = task(lists, retries=5, retry_delay=timedelta(seconds=0.2))({dice.randint(5, 20)})",
        "numbers = task(item, retries=5, retry_delay=timedelta(seconds=0.2)).expand(number=make)",
        f"more = task(item, task_id='more', retries=5, retry_delay=timedelta(seconds=0.2)).partial("
        f"seconds={_seconds(dice) / 2:.2f}).expand(number=make)",
        "[numbers, more] >> node('last', trigger_rule='none_failed')",
    ]


def _group(dice: random.Random) -> list[str]:
    return [
        "@task_group",
        "def each(number):",
        "    a = task(item, task_id='a', retries=5, retry_delay=timedelta(seconds=0.2))(number)",
        f"    b = task(item, task_id='b', retries=5, retry_delay=timedelta(seconds=0.2))(a, seconds={_seconds(dice) / 2:.2f})",
        "    task(item, task_id='c', retries=5, retry_delay=timedelta(seconds=0.2))(b)",
        f"made = task(lists, retries=5, retry_delay=timedelta(seconds=0.2))({dice.randint(4, 9)})",
        "each.expand(number=made) >> node('last')",
    ]


def _sensor(dice: random.Random) -> list[str]:
    return [
        "for n in range(4):",
        "    wait = PythonSensor(task_id=f'wait{n}', python_callable=poke, op_args=[0.5 + n], poke_interval=0.7,",
        "                        mode='reschedule', timeout=600, retries=5, retry_delay=timedelta(seconds=0.3))",
        f"    wait >> [node(f'n{{n}}_{{k}}', seconds={_seconds(dice)}) for k in range(3)]",
    ]


def _deferral(dice: random.Random) -> list[str]:
    return [
        "for n in range(5):",
        "    wait = Waits(task_id=f'wait{n}', seconds=0.4 * n, retries=5, retry_delay=timedelta(seconds=0.3))",
        f"    node(f'before{{n}}') >> wait >> node(f'after{{n}}', seconds={_seconds(dice)})",
    ]


def _random(dice: random.Random) -> list[str]:
    size = dice.randint(15, 30)
    calls = ("work", "work", "work", "work", "fails_first", "fails", "skips")
    lines = []
    for number in range(size):
        call = dice.choice(calls)
        retries = {"fails": dice.randint(0, 1), "work": dice.choice((0, 3, 5, 5))}.get(call, 5)
        rule = dice.choice(RULES)
        lines.append(
            f"t{number} = node('t{number:02}', call={call}, seconds={_seconds(dice)}, retries={retries},"
            f" trigger_rule={rule!r}, pool={dice.choice(('default_pool', 'default_pool', 'wide'))!r},"
            f" pool_slots={dice.choice((1, 1, 1, 2))}, priority_weight={dice.randint(1, 5)})"
        )
        above = sorted(dice.sample(range(max(0, number - 8), number), dice.randint(0, min(3, number))))
        lines += [f"t{one} >> t{number}" for one in above]
    return lines
