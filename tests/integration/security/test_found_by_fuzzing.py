"""Defects that `make fuzz` has found, each as a test of its own."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.scenario import Scenario, chain

from paceline.authoring import values, xcom
from paceline.exceptions import PacelineError, ParamError, XComError
from scheduler.dagfiles import fork_server
from scheduler.settings import Settings
from scheduler.settings.model import shown
from scheduler.store.db.database import transact
from scheduler.store.read import reads
from scheduler.store.runs import manual_runs


@pytest.fixture
def scenario(settings: Settings) -> Iterator[Scenario]:
    scenario = Scenario(settings)
    scenario.add(chain("c", 1))
    yield scenario
    scenario.close()


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return {"a": value}


def test_a_conf_that_no_worker_could_read_is_refused(scenario: Scenario) -> None:
    with pytest.raises(ParamError, match="nested more than 100 levels deep"):
        transact(scenario.engine, manual_runs.trigger, "c", conf=nested(950))
    transact(scenario.engine, manual_runs.trigger, "c", conf=nested(values.MAX_DEPTH - 2))


def test_so_is_an_xcom_and_a_dag(settings: Settings) -> None:
    with pytest.raises(XComError, match="nested too deeply"):
        xcom.encode(nested(950), 10**6)
    itself: list[Any] = []
    itself += [itself, itself]
    assert values.is_too_deep(itself)
    (settings.dags_folder / "deep.py").write_text(
        "from paceline import DAG, Param\nvalue = 1\nfor _ in range(300):\n    value = [value]\n"
        "with DAG('d', schedule=None, params={'p': value}):\n    pass\n"
    )
    work = fork_server.Work(settings.dags_folder, settings.core, settings.scheduler)
    assert "nested more than 100 deep" in fork_server.parse("deep.py", work)["problem"]["message"]


@pytest.mark.parametrize("run_id", [".", "..", "...", "../x", "a/b", "a\n", "a\0", "é", "a" * 251, " "])
def test_a_run_id_that_names_another_folder_is_refused(scenario: Scenario, run_id: str) -> None:
    with pytest.raises(PacelineError, match="is not valid: use 1 to 250 letters"):
        transact(scenario.engine, manual_runs.trigger, "c", run_id=run_id)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_a_value_that_the_database_cannot_store_is_named(scenario: Scenario, text: str) -> None:
    with pytest.raises(PacelineError, match="NUL character or half of a surrogate"):
        transact(scenario.engine, reads.dag, text)


def test_a_password_in_the_wrong_setting_is_masked() -> None:
    assert shown("core.parallelism", "postgresql://ann:Sesame@h/d") == "postgresql://ann:***@h/d"
    assert shown("core.parallelism", "ann:Sesame@h") == "ann:***@h"
