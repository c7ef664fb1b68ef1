"""The worker's heart against a real database, without a worker around it."""

import os

import pytest
from support.scenario import Scenario, chain
from support.waiting import eventually

from scheduler.doorbell import Doorbell
from scheduler.settings import Settings
from workers import heartbeat
from workers.board import Board, Running
from workers.heartbeat import Heart, Identity


def test_what_stands_as_running_here_although_no_child_runs_it_is_tried_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim got through, its answer was lost with the connection, and the child dropped the message as a duplicate."""
    monkeypatch.setattr(heartbeat, "UNKNOWN_S", 0.2)
    scenario = Scenario(settings)
    scenario.add(chain("c", 1, task={"retries": 1}))
    scenario.trigger("c", run_id="lost")
    scenario.trigger("c", run_id="known")
    board = Board(2)
    identity = Identity(name="w", host="h", pid=os.getpid(), queues=("default",), concurrency=2)
    heart = Heart(scenario.engine, board, identity, Doorbell(settings), interval_s=0.1)
    scenario.hot.worker_id = heart.register()
    scenario.turn()
    lost, known = (scenario.claim(message) for message in sorted(scenario.messages()))
    assert lost and known
    board.slot(0).enter(Running(ti_id=known.id, dispatch_id=known.dispatch_id, pid=os.getpid(), log=os.devnull))

    heart.start()
    try:
        eventually(lambda: scenario.rows("select state from task_instance where id = %s", lost.id) == [("up_for_retry",)])
    finally:
        heart.finish()

    assert "no process of that worker runs it" in scenario.rows("select reason from task_instance where id = %s", lost.id)[0][0]
    assert scenario.rows("select state from task_instance where id = %s", known.id) == [("running",)]
    scenario.close()
