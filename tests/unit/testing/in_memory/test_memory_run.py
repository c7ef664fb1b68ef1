"""A run in memory: the cases that both stores of tries share, without servers."""

import os
import signal
from pathlib import Path

import pytest
from support.conformance import CONNECTION, Case, memory_run, outcome
from support.conformance_cases import CASES

from scheduler.settings import Paths, Settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with a folder of DAGs, and the connection that the cases read."""
    (tmp_path / "dags").mkdir()
    conn_id, uri = CONNECTION
    monkeypatch.setenv(f"PACELINE_CONN_{conn_id.upper()}", uri)
    return Settings(paths=Paths(home=tmp_path / "home", dags_folder=tmp_path / "dags"))


@pytest.mark.parametrize("name", CASES)
def test_a_run_ends_as_the_case_expects(here: Settings, name: str) -> None:
    before, run = dict(os.environ), memory_run(here, name, CASES[name])

    list(run.rows())

    assert outcome(run) == CASES[name].expected()
    assert os.environ == before


FLAKY = Case("""
@task(retries=1, retry_delay=3600)
def flaky(ti=None):
    if ti.try_number == 1: raise ValueError()
flaky()
""", {})  # fmt: skip
SIGNALLED = Case("""
@task(retries=1)
def first(): os.kill(os.getpid(), int(Variable.get("signal")))
first() >> EmptyOperator(task_id="after", trigger_rule="all_done")
""", {})  # fmt: skip


def test_a_retry_does_not_wait_for_its_delay(here: Settings) -> None:
    assert [row["state"] for row in memory_run(here, "d", FLAKY).rows()] == ["success"]


def test_ctrl_c_in_a_task_ends_the_run(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_VAR_SIGNAL", str(int(signal.SIGINT)))
    run = memory_run(here, "d", SIGNALLED)

    with pytest.raises(KeyboardInterrupt):
        list(run.rows())
    assert run.store.ended == []


def test_sigterm_in_a_task_ends_the_process(here: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_VAR_SIGNAL", str(int(signal.SIGTERM)))
    run = memory_run(here, "d", SIGNALLED)
    child = os.fork()
    if child == 0:
        try:
            list(run.rows())
        finally:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
