"""A run executes the bundle version with which it was planned, on workers without DAG files, whatever is deployed meanwhile."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bundles import deploy, versions_in
from support.deferred import running_waiter
from support.notices import notify
from support.waiting import eventually

from scheduler.dagfiles.load import are_below
from scheduler.settings import Settings, airflow_options
from scheduler.store.actions import clear
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs, Tasks

from ..conftest import Bench

LIB = """
VERSION = {version}
class Thing:
    def __reduce__(self):
        return Thing, ()
    version = VERSION
"""
#: A task of each kind; `first` waits until the test lets it go on. Each notes which code it executes.
FLOW = """
import json, os, pathlib, pickle, time
import lib
from lib import VERSION
from package.deep import own
from paceline import DAG, BaseOperator, task
from paceline.operators import BashOperator
from paceline.triggers import BaseTrigger, TriggerEvent

OUT = pathlib.Path({out!r})
HERE = pathlib.Path(__file__).parent

def note(where):
    import lib as now, late
    from package.deep import own as deep, later
    told = [now.VERSION, VERSION, own.VERSION, deep.VERSION, later.VERSION, late.VERSION]
    told += [pickle.loads(pickle.dumps(lib.Thing())).version, int((HERE / "data/version.txt").read_text())]
    with open(OUT / "told", "a") as file:
        file.write(json.dumps([where, sorted(set(told))]) + "\\n")

class Fires(BaseTrigger):
    def serialize(self):
        return f"{{Fires.__module__}}.Fires", {{}}
    async def run(self):
        import asyncio
        while not (OUT / "fire").exists():
            await asyncio.sleep(0.01)
        note("trigger")
        await asyncio.gather(self.part("one"), self.part("two"))
        yield TriggerEvent(VERSION)
    async def part(self, name):
        await asyncio.sleep(0.01)
        import only_in_triggers
        assert only_in_triggers.VERSION == VERSION
        note(f"part {{name}}")

class Waits(BaseOperator):
    def execute(self, context):
        note("deferring")
        self.defer(trigger=Fires(), method_name="resumed")
    def resumed(self, context, event):
        assert event == VERSION, event
        note("resumed")

import asyncio
with DAG("d", schedule=None, on_success_callback=lambda context: note("callback of the DAG")):
    @task
    def first():
        note("first")
        (OUT / "waits").touch()
        while not (OUT / "go").exists():
            time.sleep(0.01)

    @task(on_success_callback=lambda context: note("callback"))
    def second(number):
        note(f"second {{number}}")

    bash = BashOperator(task_id="bash", bash_command="script.sh", do_xcom_push=True)
    first() >> Waits(task_id="waits") >> second.expand(number=[1, 2]) >> bash
"""


def files(out: Path, version: int) -> dict[str, str]:
    constant = f"VERSION = {version}"
    return {
        "flow.py": FLOW.format(out=str(out)),
        "lib.py": LIB.format(version=version),
        "late.py": constant,
        "only_in_triggers.py": constant,
        "package/__init__.py": "",
        "package/base.py": constant,
        "package/deep/__init__.py": "",
        "package/deep/own.py": "from ..base import VERSION",
        "package/deep/later.py": "from . import own\nVERSION = own.VERSION",
        "data/version.txt": str(version),
        "script.sh": f"echo version {version} of {{{{ dag.dag_id }}}}",
    }


PLACES = (
    "first", "deferring", "trigger", "part one", "part two", "resumed", "second 1", "second 2", "callback", "callback of the DAG",
)  # fmt: skip
#: A later version, without the modules, the data and the tasks of the first.
EMPTIED = {
    "flow.py": "from paceline import DAG\nfrom paceline.operators import EmptyOperator\nwith DAG('d'): EmptyOperator(task_id='x')"
}


@pytest.fixture(autouse=True)
def interpreter(settings: Settings) -> Iterator[None]:
    """A waiter of a test leaves no modules to that of the next one, which would be another process."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    airflow_options.use(None)
    for name in are_below(settings.bundles_folder):
        del sys.modules[name]


def told(out: Path) -> dict[str, list[int]]:
    """By what a run has executed: the versions that it found."""
    return dict(json.loads(line) for line in (out / "told").read_text().splitlines())


@pytest.mark.parametrize("later", ["another", "emptied"])
def test_a_run_executes_its_version_to_its_end(bench: Bench, tmp_path: Path, later: str) -> None:
    worker_home = tmp_path / "machine"
    bench.worker(PACELINE_HOME=str(worker_home), PACELINE_DAGS_FOLDER=str(tmp_path / "nothing"),
                 PACELINE_PATHS_LOGS_FOLDER=str(bench.settings.logs_folder))  # fmt: skip
    deploy(bench.scenario, files(tmp_path, 1))
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run, first="running")
    eventually((tmp_path / "waits").exists)

    deploy(bench.scenario, EMPTIED if later == "emptied" else files(tmp_path, 2))
    (tmp_path / "go").touch()
    with running_waiter(bench.settings):
        bench.wait(run, waits="deferred")
        (tmp_path / "fire").touch()
        bench.wait(run)
    notify(bench.scenario)

    assert bench.scenario.rows("select t.task_id, t.reason from task_instance t where t.state <> 'success'") == []
    assert told(tmp_path) == {where: [1] for where in PLACES}
    assert "version 1 of d" in bench.log("bash")
    assert bench.scenario.rows("select error from notice where error is not null") == []
    assert not (tmp_path / "nothing").exists()


def test_versions_alternate_in_one_process_and_one_waiter(bench: Bench, tmp_path: Path) -> None:
    bench.worker()
    (tmp_path / "go").touch()
    runs = []
    for version in (1, 2, 3):
        deploy(bench.scenario, files(tmp_path, version))
        runs.append(bench.scenario.trigger("d", run_id=f"r{version}"))
    # All of them wait at once in the same waiter, then end in any order.
    with running_waiter(bench.settings):
        for run in runs:
            bench.wait(run, waits="deferred")
        (tmp_path / "fire").touch()
        for run in runs:
            bench.wait(run)
    notify(bench.scenario)

    assert bench.scenario.rows("select t.task_id, t.reason from task_instance t where t.state <> 'success'") == []
    lines = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert all(len(versions) == 1 for _, versions in lines), lines
    assert sorted(versions[0] for where, versions in lines if where == "resumed") == [1, 2, 3]
    assert len(versions_in(bench.settings.bundles_folder)) == 3


def test_a_version_whose_content_was_tampered_with_fails_the_task(bench: Bench, tmp_path: Path) -> None:
    bench.worker()
    version = deploy(bench.scenario, files(tmp_path, 1))
    bench.scenario.sql("update bundle_blob set content = (select content from bundle_blob order by digest desc limit 1)")
    run = bench.scenario.trigger("d", run_id="r1")

    bench.wait(run)

    assert bench.scenario.run_state(run) == "failed"
    assert f"in bundle version {version} is not what was deployed" in str(bench.column("first", "reason"))


ONE = """
import lib
from paceline import DAG, task
with DAG("d", schedule=None):
    @task
    def first():
        {body}
    first()
"""


def result(bench: Bench) -> object:
    """The return value of the only task instance."""
    return json.loads(bench.scenario.rows("select value::text from xcom where key = 'return_value'")[0][0])


def test_a_cleared_run_keeps_its_version_unless_it_is_to_have_the_newest(bench: Bench) -> None:
    bench.worker()
    dag = ONE.format(body="return lib.VERSION")
    deploy(bench.scenario, {"d.py": dag, "lib.py": "VERSION = 1"})
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run)
    deploy(bench.scenario, {"d.py": dag, "lib.py": "VERSION = 2"})

    found = [result(bench)]
    for latest in (None, True):
        transact(
            bench.scenario.engine, clear.clear, Runs(dag_id="d", run_id="r1"), Tasks(), core=bench.settings.core, latest=latest
        )
        bench.wait(run)
        found.append(result(bench))

    assert found == [1, 1, 2]


def test_processes_that_a_task_starts_execute_its_version(bench: Bench) -> None:
    """Started by `spawn`: a fork of a process with threads, as every pool process is, may inherit a lock that nobody releases."""
    bench.worker()
    body = """import multiprocessing
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            return pool.map(lib.times, [1, 2])"""
    runs = []
    for version in (3, 7):
        lib = "def times(value):\n    import late\n    return value * late.VERSION"
        deploy(bench.scenario, {"d.py": ONE.format(body=body), "lib.py": lib, "late.py": f"VERSION = {version}"})
        runs.append(bench.scenario.trigger("d", run_id=f"r{version}"))

    for run in runs:
        bench.wait(run)

    assert bench.scenario.rows("select reason from task_instance where state <> 'success'") == []
    values = bench.scenario.rows("select value::text from xcom where key = 'return_value' order by task_instance_id")
    assert [json.loads(value) for (value,) in values] == [[3, 6], [7, 14]]


#: Modules with names of the standard library and of site-packages, a namespace package, data, and names that Python or pytest
#: treat specially. The task, and the processes that it starts, say which version of each they find.
MANY = """
import colorsys, concurrent.futures, conftest, importlib.resources, json, multiprocessing, pathlib, sitecustomize, sys
from paceline import DAG, task
import space.other
from space.inner import deep

with DAG("d", schedule=None):
    @task
    def first():
        import helper, late
        assert not hasattr(colorsys, "VERSION") and not hasattr(json, "VERSION"), "the standard library comes first"
        found = [each.VERSION for each in (conftest, sitecustomize, deep, space.other, helper, late)]
        found.append(int((pathlib.Path(__file__).parent / "res/v.txt").read_text()))
        found += [int(importlib.resources.files(name).joinpath("v.txt").read_text()) for name in ("res", "space")]
        for kind in ("spawn", "forkserver"):
            context = multiprocessing.get_context(kind)
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                found += pool.submit(helper.told).result()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return found + pool.submit(helper.told).result()

    @task.external_python(python=sys.executable)
    def external():
        return "external"

    first() >> external()
"""
HELPER = """
from late import VERSION

def told():
    import late, space.other
    return [VERSION, late.VERSION, space.other.VERSION]
"""


def test_names_that_others_have_and_processes_of_a_task_keep_to_a_version(bench: Bench) -> None:
    bench.worker()
    runs = []
    names = ("colorsys", "json", "conftest", "sitecustomize", "late", "space/inner/__init__", "space/inner/deep", "space/other",
             "res/__init__")  # fmt: skip
    for version in (1, 2):
        constants = dict.fromkeys((f"{name}.py" for name in names), f"VERSION = {version}")
        data = dict.fromkeys(("res/v.txt", "space/v.txt"), str(version))
        deploy(bench.scenario, {"flow.py": MANY, "helper.py": HELPER} | constants | data)
        runs.append(bench.scenario.trigger("d", run_id=f"r{version}"))

    for run in (*runs, bench.scenario.trigger("d", run_id="r3")):
        bench.wait(run)

    assert bench.scenario.rows("select task_id, reason from task_instance where state <> 'success'") == []
    values = bench.scenario.rows("select r.run_id, x.value::text from xcom x join task_instance t on t.id = x.task_instance_id"
                                 " join dag_run r on r.id = t.dag_run_id where t.task_id = 'first' order by 1")  # fmt: skip
    assert [(run_id, set(json.loads(value))) for run_id, value in values] == [("r1", {1}), ("r2", {2}), ("r3", {2})]


SPARK = """
import lib, late
from paceline import DAG, task

def double(value):
    return value * lib.VERSION, late.VERSION

with DAG("d", schedule=None):
    @task.pyspark(retries=0)
    def first(sc):
        from package.deep import later
        return sc.parallelize([1, 10], 2).map(lambda value: (*double(value), later.VERSION)).collect()

    first()
"""


@pytest.mark.spark
def test_python_workers_of_spark_execute_the_version_of_the_run(bench: Bench, tmp_path: Path) -> None:
    runs = []
    for version in (1, 2):
        deploy(bench.scenario, files(tmp_path, version) | {"flow.py": SPARK})
        runs.append(bench.scenario.trigger("d", run_id=f"r{version}"))
    # One pool process with one warm JVM, whose Python workers stay for the next task.
    bench.worker(queues="default,spark")

    for run in (*runs, bench.scenario.trigger("d", run_id="r3")):
        bench.wait(run)

    assert bench.scenario.rows("select t.task_id, t.reason from task_instance t where t.state <> 'success'") == []
    results = bench.scenario.rows("select r.run_id, x.value::text from xcom x join task_instance t on t.id = x.task_instance_id"
                                  " join dag_run r on r.id = t.dag_run_id where x.key = 'return_value' order by 1")  # fmt: skip
    assert [(run_id, json.loads(value)) for run_id, value in results] == [
        ("r1", [[1, 1, 1], [10, 1, 1]]), ("r2", [[2, 2, 2], [20, 2, 2]]), ("r3", [[2, 2, 2], [20, 2, 2]]),
    ]  # fmt: skip
