"""The thread that renews a heartbeat, and processes that report settings that differ."""

import itertools
import json
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from chaos.proxy import Link, Proxy
from support.scenario import Scenario, chain
from support.servers import PostgresServer
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.embedded import checks
from scheduler.services.loop import SchedulerLoop
from scheduler.settings import Core, Settings
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.heartbeats import Listener, Renewal
from scheduler.store.upkeep.processes import SettingsDrift, settings_differences
from scheduler.store.worker.claims import Ending
from workers.supervision.heartbeat import lease_s


class Results(Listener):
    """The results of renewals, of a process that runs these dispatches."""

    def __init__(self, running: Mapping[str, int] | None = None) -> None:
        self.running = running or {}
        self.drains = threading.Event()
        self.sent: list[float] = []
        self.refusals: list[str] = []
        self.failures: list[BaseException | None] = []
        self.doubts: list[Mapping[str, int]] = []

    def claimed(self) -> Mapping[str, int]:
        return self.running

    def is_draining(self) -> bool:
        return self.drains.is_set()

    def renewed(self, process_id: str, sent_at: float) -> None:
        self.sent.append(sent_at)

    def refused(self, process_id: str) -> None:
        self.refusals.append(process_id)

    def failed(self, error: BaseException | None) -> None:
        self.failures.append(error)

    def doubted(self, dispatches: Mapping[str, int]) -> None:
        self.doubts.append(dispatches)


@pytest.fixture
def link(postgres_server: PostgresServer) -> Iterator[tuple[Proxy, Link]]:
    proxy = Proxy()
    yield proxy, proxy.link(Path(postgres_server.embedded.run_folder) / ".s.PGSQL.5432")
    proxy.close()


def through(settings: Settings, link: Link) -> Settings:
    """The same database by TCP."""
    name = urllib.parse.urlsplit(settings.database_url).path
    url = f"postgresql://postgres@127.0.0.1:{link.port}{name}"
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": url})})


def renewing(
    settings: Settings, process_id: str, *, timeout_s: float = 2.0, running: Mapping[str, int] | None = None
) -> tuple[Renewal, Results]:
    results = Results(running)
    renewal = Renewal(settings, results, process_id=lambda: process_id, interval_s=0.05, timeout_s=timeout_s)
    renewal.start()
    return renewal, results


@pytest.mark.parametrize("requests", [True, False])
def test_a_half_open_connection_is_replaced(
    scenario: Scenario, settings: Settings, link: tuple[Proxy, Link], requests: bool
) -> None:
    proxy, wire = link
    renewal, results = renewing(through(settings, wire), scenario.worker_id, timeout_s=1.0)
    eventually(lambda: results.sent)

    proxy.do(lambda: wire.cut(requests=requests))
    eventually(lambda: results.failures, timeout=20)
    before = len(results.sent)
    proxy.do(lambda: wire.restore(reset=False))

    eventually(lambda: len(results.sent) > before, timeout=20)
    renewal.end()
    renewal.join(20)
    assert not renewal.is_alive()


def test_a_lock_on_its_row_delays_a_heartbeat_and_nothing_else(scenario: Scenario, settings: Settings) -> None:
    renewal, results = renewing(settings, scenario.worker_id, timeout_s=1.0)
    eventually(lambda: results.sent)
    with scenario.engine.begin() as elsewhere:
        elsewhere.exec_driver_sql("select 1 from process where id = %s for update", (scenario.worker_id,))
        eventually(lambda: results.failures)
        before = len(results.sent)

    eventually(lambda: len(results.sent) > before)
    renewal.end()


def test_an_attempt_that_was_given_up_ends_no_lease(scenario: Scenario, settings: Settings) -> None:
    timeout_s = 4.0
    renewal, results = renewing(settings, scenario.worker_id, timeout_s=timeout_s)
    eventually(lambda: results.sent)
    with scenario.engine.begin() as stalled:
        stalled.exec_driver_sql("select 1 from process where id = %s for update", (scenario.worker_id,))
        eventually(lambda: results.failures)
    before = len(results.sent)

    eventually(lambda: len(results.sent) > before)
    renewal.end()
    gaps = [after - sent for sent, after in itertools.pairwise(results.sent)]
    assert max(gaps) < lease_s(timeout_s)


def test_a_process_that_was_declared_lost_learns_it_from_its_heartbeat(scenario: Scenario, settings: Settings) -> None:
    renewal, results = renewing(settings, scenario.worker_id)
    eventually(lambda: results.sent)
    assert not renewal.is_refused(scenario.worker_id)

    scenario.sql("update process set stopped_at = now() where id = %s", scenario.worker_id)

    eventually(lambda: renewal.is_refused(scenario.worker_id))
    renewal.end()
    assert set(results.refusals) == {scenario.worker_id}


def test_it_returns_the_running_dispatches_that_the_database_does_not_have(scenario: Scenario, settings: Settings) -> None:
    scenario.add(chain("c", 1))
    for name in ("held", "elsewhere", "undone", "ended"):
        scenario.trigger("c", run_id=name)
    scenario.turn()
    claims = [scenario.claim(message) for message in sorted(scenario.messages())]
    held, elsewhere, undone, ended = (claim for claim in claims if claim is not None)
    scenario.sql("update task_instance set worker = 'another' where id = %s", elsewhere.id)
    scenario.sql("update task_instance set state = 'queued', worker = null, started_at = null where id = %s", undone.id)
    assert scenario.follower.report(ended, Ending(TaskState.SUCCESS)).is_stored

    running = {claim.dispatch_id: claim.id for claim in (held, elsewhere, undone, ended)}
    renewal, results = renewing(settings, scenario.worker_id, running=running)
    eventually(lambda: results.doubts)
    renewal.end()
    renewal.join(20)

    assert results.doubts[0] == {claim.dispatch_id: claim.id for claim in (elsewhere, undone, ended)}


def test_a_process_that_drains_records_it_and_keeps_its_heartbeat(scenario: Scenario, settings: Settings) -> None:
    renewal, results = renewing(settings, scenario.worker_id)
    eventually(lambda: results.sent)
    assert scenario.rows("select 1 from worker_drain") == []

    results.drains.set()

    eventually(lambda: scenario.rows("select process_id, asked_by from worker_drain") == [(scenario.worker_id, "a signal")])
    before = len(results.sent)
    eventually(lambda: len(results.sent) > before + 1)
    renewal.end()
    renewal.join(20)


def test_a_lock_on_task_instances_delays_no_heartbeat_of_a_running_task(scenario: Scenario, settings: Settings) -> None:
    scenario.start(chain("c", 1), run_id="r")
    (claim,) = (scenario.claim(message) for message in scenario.messages())
    assert claim is not None
    with scenario.engine.begin() as elsewhere:
        elsewhere.exec_driver_sql("lock table task_instance in access exclusive mode")
        renewal, results = renewing(settings, scenario.worker_id, running={claim.dispatch_id: claim.id})
        eventually(lambda: len(results.sent) > 10)

    renewal.end()
    renewal.join(20)
    assert not results.doubts and not results.failures


KEY = "SGVyZSBpcyBhIGtleSBvZiAzMiBieXRlcywgZXhhY3Q="


def other(settings: Settings, **core: object) -> Settings:
    return settings.model_copy(update={"core": settings.core.model_copy(update=core)})


@pytest.fixture
def odd(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> Iterator[SchedulerLoop]:
    """A scheduler whose parallelism is another one."""
    loop = SchedulerLoop(scenario.engine, other(scenario.settings, parallelism=7), name="odd")
    yield loop
    loop.close()


def test_equal_settings_are_not_worth_a_word(scenario: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    loop = SchedulerLoop(scenario.engine, scenario.settings, name="second")

    assert loop.heartbeat.registration.settings_drift(0.0) is None
    assert transact(scenario.engine, settings_differences, silent_s=60) == []
    assert "differ" not in caplog.text
    loop.close()


def test_a_process_with_different_settings_names_the_keys_in_log_and_health(
    scenario: Scenario, odd: SchedulerLoop, caplog: pytest.LogCaptureFixture
) -> None:
    first = scenario.schedulers[0]
    sentence = f"core.parallelism is 256 for {first.scheduler_id} and 7 for {odd.scheduler_id}"
    assert sentence in " ".join(record.getMessage() for record in caplog.get_records("setup"))

    health = odd.health.combined(lambda: odd.scheduler_id, lambda _: None, odd.heartbeat.registration.settings_drift).report()
    assert health["status"] == "healthy", "a process that differs does not end for it"
    assert sentence in health["parts"]["settings"]["message"]

    first.heartbeat.registration.settings_drift.enter(first.scheduler_id)
    assert sentence in str(first.heartbeat.registration.settings_drift(0.0)), "and so does the other"


def test_doctor_names_the_differences_until_they_are_gone(scenario: Scenario, odd: SchedulerLoop) -> None:
    found = [one for one in checks.running(scenario.engine, scenario.settings) if one.check == "settings"]
    assert [one.message for one in found] == [
        f"core.parallelism is 256 for {scenario.schedulers[0].scheduler_id} and 7 for {odd.scheduler_id}."
    ]

    transact(scenario.engine, processes.stop, odd.scheduler_id)
    assert [one for one in checks.running(scenario.engine, scenario.settings) if one.check == "settings"] == []


def test_agreement_is_logged_too(scenario: Scenario, odd: SchedulerLoop) -> None:
    lines: list[str] = []
    settings_drift = SettingsDrift(scenario.engine, other(scenario.settings, parallelism=9), lines.append, 60)
    settings_drift.enter(odd.scheduler_id)
    settings_drift = SettingsDrift(scenario.engine, scenario.settings, lines.append, 60)
    settings_drift._complaint = lines[-1]
    settings_drift.enter(odd.scheduler_id)

    assert "core.parallelism is 256" in lines[0]
    assert lines[1:] == ["The settings of all processes are equal again."]


def test_no_secret_path_or_name_is_stored(scenario: Scenario) -> None:
    settings = other(scenario.settings, fernet_key=KEY)
    stored = json.dumps(settings.agreed())

    assert KEY not in stored
    assert settings.agreed()["core.fernet_key"].startswith("sha256:")
    assert Settings(core=Core()).agreed()["core.fernet_key"] == ""
    assert not [key for key in settings.agreed() if key.split(".")[0] in {"paths", "database", "broker", "smtp"}]
    assert str(settings.home) not in stored
