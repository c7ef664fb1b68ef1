"""Processes with different settings report it in the log, in their health, and in `paceline doctor`."""

import json
from collections.abc import Iterator

import pytest
from support.scenario import Scenario

from scheduler.embedded import checks
from scheduler.services.loop import SchedulerLoop
from scheduler.settings import Core, Settings
from scheduler.store.db.database import transact
from scheduler.store.upkeep import processes
from scheduler.store.upkeep.settings_drift import SettingsDrift, differences

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
    assert transact(scenario.engine, differences, silent_s=60) == []
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
