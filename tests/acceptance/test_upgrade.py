"""The previous release runs beside this one under load: a rolling upgrade, and back. `make test-upgrade` runs it."""

import dataclasses
import itertools
import time
from pathlib import Path

import pytest
from support import releases
from support.faulty import Code
from support.ledger import Ledger
from support.ledger import ask as query
from support.releases import Release
from support.stacks import QUICK
from support.waiting import eventually

from scheduler.embedded import stack as stacks
from scheduler.embedded.supervisor import Supervisor
from scheduler.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.on_demand, pytest.mark.timeout(600)]

LONGEST_GAP_S = 1.0
#: Executions that the load starts between two replacements.
BETWEEN = 30
PIPELINES = 6
#: A run of a pipeline updates the asset that starts its next run, until the file `stop` exists.
AGAIN = """
@task(outlets=[Asset("load://{name}")])
def again():
    with entry():
        if os.path.exists({stop!r}):
            raise SkipTask("the test ends")
"""
#: An XCom, mapped tasks, a retry, a join and a deferred task.
PIPELINE = """
from paceline.sensors import WaitSensor

@task
def numbers():
    with entry():
        return [1, 2, 3]

@task
def each(number, ti=None):
    with entry(number):
        if number == 2 and ti.try_number == 1:
            raise ValueError("the first try fails")

@task
def join():
    work(0.1)

each.expand(number=numbers()) >> join() >> again()
WaitSensor(task_id="wait", time_to_wait=timedelta(seconds=0.2), deferrable=True) >> task(task_id="waited")(lambda: work())()
"""
#: A replaced worker has to wait for this one.
LONG = "task(task_id='long')(lambda: work(3))() >> again()"
LOADS = {"long": LONG} | {f"p{number}": PIPELINE for number in range(PIPELINES)}
OPEN = "select count(*) from dag_run where state in ('queued', 'running')"


@pytest.fixture
def settings(empty_database_url: str, settings: Settings) -> Settings:
    """Settings with a database that the release before migrates."""
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": empty_database_url})})


class Installation:
    """Two schedulers, two workers and a waiter, each of one of two releases."""

    def __init__(self, settings: Settings, supervisor: Supervisor, ledger: Ledger) -> None:
        self.url = settings.database_url
        self.environment = stacks.environment_for(settings) | QUICK
        self.ledger = ledger
        self._supervisor = supervisor
        workers = [("default", 4)] * 2
        commands = stacks.stack_commands(self.environment, schedulers=2, workers=workers, waiters=1, worker_grace_sec=10.0)
        self._commands = {command.name: command for command in commands}
        #: Mixed, so that schedulers and workers of both releases work together.
        self.names = ["scheduler-1", "worker-1", "waiter-1", "worker-2", "scheduler-2"]

    def start(self, name: str, release: Release) -> None:
        command = self._commands[name]
        environment = release.environment(command.environment or {})
        self._supervisor.start(dataclasses.replace(command, environment=environment))

    def replace(self, name: str, release: Release) -> None:
        """Replace one process, and wait until it is registered and the load has gone on for a while."""
        self._supervisor.stop(name)
        self.start(name, release)
        eventually(lambda: name in self.releases().get(release.head(self.environment), ()), timeout=60, message=self.logs)
        self.await_load()

    def releases(self) -> dict[str, set[str]]:
        """The names of the processes by the schema that their release was written for."""
        names = {self._supervisor.pid(name): name for name in self._supervisor.names()}
        found: dict[str, set[str]] = {}
        for schema, pid in query(self.url, "select schema, pid from process where stopped_at is null"):
            found.setdefault(schema, set()).add(names.get(pid, f"process {pid}"))
        return found

    def await_load(self) -> None:
        begun = self.executions()
        eventually(lambda: self.executions() >= begun + BETWEEN, timeout=60, message=self.logs)

    def executions(self) -> int:
        return int(self.ledger.rows("select count(*) from ledger")[0][0])

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self._supervisor.log_tail(name, 40)}" for name in self.names)


def longest_gap(moments: list[float]) -> float:
    """The longest time between two starts, in seconds."""
    return max(after - before for before, after in itertools.pairwise(moments))


def test_a_rolling_upgrade_and_the_way_back_fail_no_run_and_interrupt_no_dispatch(
    settings: Settings, ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = releases.previous(tmp_path / "previous"), releases.this()
    if old is None:
        pytest.skip("there is no former release with this schema to upgrade from")
    stop = tmp_path / "stop"
    for name, body in LOADS.items():
        options = {"schedule": Code(f"[Asset('load://{name}')]"), "default_args": {"retries": 2, "retry_delay": 0.1}}
        source = ledger.dag(name, AGAIN.format(name=name, stop=str(stop)) + body, **options)
        (settings.dags_folder / f"{name}.py").write_text(f"from paceline import Asset\n{source}")
    with Supervisor(settings.home / "logs") as supervisor:
        site = Installation(settings, supervisor, ledger)
        schemas = {release.name: release.head(site.environment) for release in (old, new)}
        old.cli(site.environment, "db", "migrate")
        Ledger.witness(site.url)
        for name in site.names:
            site.start(name, old)
        stored = "select count(*) from dag where version_id is not null"
        eventually(lambda: query(site.url, stored) == [(len(LOADS),)], timeout=60, message=site.logs)
        for name in LOADS:
            old.cli(site.environment, "dags", "trigger", name)
        eventually(lambda: site.executions() >= 5 * BETWEEN, timeout=120, message=site.logs)
        versions = query(site.url, "select dag_id, number from dag_version order by 1")
        begun = time.time()

        new.cli(site.environment, "db", "migrate")
        for name in site.names:
            site.replace(name, new)
        upgraded = site.releases()
        for name in reversed(site.names):
            site.replace(name, old)
        ended = time.time()
        returned = site.releases()

        stop.touch()
        eventually(lambda: query(site.url, OPEN) == [(0,)], timeout=60, message=site.logs)
        verdict = ledger.check(site.url)
        states = dict(query(site.url, "select state, count(*) from dag_run group by 1"))
        starts = ledger.rows("select extract(epoch from started_at)::float from ledger order by 1")
        logs = site.logs()

    moments = [at for (at,) in starts if begun <= at <= ended]
    gap, usual = (longest_gap(part) for part in (moments, [at for (at,) in starts if at < begun]))
    with capsys.disabled():
        print(
            f"\nFrom {old.name[:12]} ({schemas[old.name]}) to the checkout ({schemas[new.name]}) and back in {ended - begun:.0f} s:"
            f" {states.get('success', 0)} runs, {len(moments)} executions, longest gap {gap:.2f} s (before: {usual:.2f} s)."
        )
    assert upgraded == {schemas[new.name]: set(site.names)}
    assert returned == {schemas[old.name]: set(site.names)}
    assert set(states) == {"success"}, f"{states}\n{logs}"
    assert verdict.ok and not verdict.overtaken, verdict
    assert gap < LONGEST_GAP_S, logs
    assert query(site.url, "select dag_id, number from dag_version order by 1") == versions, "an upgrade makes no version of a DAG"
