"""The cost of passing a message to a child, and the report of its end in the parent."""

import json
import pickle
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.worker import state as celery_state
from kombu.transport.virtual.base import Message as Received

from scheduler.messaging.message import Message
from scheduler.messaging.publisher import TASK_NAME, envelope
from workers.celery_worker import strategy
from workers.supervision.slots import Step
from workers.task import execute
from workers.task.outcome import Fail, Outcome

DISPATCH = "00000000-0000-4000-8000-000000000001"


class Pool:
    """Receives bytes for a child, and runs them on demand."""

    def apply_async(self, function: Any, args: Any = (), **handlers: Any) -> None:
        self.sent, self.handlers = pickle.dumps((function, args)), handlers

    def work(self) -> None:
        function, args = pickle.loads(self.sent)
        self.handlers["accept_callback"](1, 0.0)
        self.handlers["callback"](pickle.loads(pickle.dumps(function(*args))))


class Eventer:
    enabled = True

    def __init__(self) -> None:
        self.groups = {"worker", "task"}
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **what: Any) -> None:
        self.sent.append((kind, what))


class Consumer:
    """The part of Celery's class that the strategy uses."""

    hostname, connection_errors, state = "w@h", (), celery_state

    def __init__(self) -> None:
        self.app = Celery("test", broker="memory://", set_as_current=False)
        self.controller, self.pool, self.event_dispatcher = self, Pool(), Eventer()
        self.died: list[tuple[int, str, str]] = []
        self.steps: list[Step] = []
        self.last_step: Step | None = None

    def on_task_request(self, request: Any) -> None:
        request.execute_using_pool(self.pool)

    def child_died(self, ti_id: int, dispatch_id: str, said: str) -> None:
        self.died.append((ti_id, dispatch_id, said))

    def receive(self) -> list[str]:
        """Process one message; the acknowledged messages."""
        request = strategy.request_class(self.child_died, lambda: self.steps, lambda _: self.last_step)
        task = self.app.task(name=TASK_NAME, shared=False, Request=request)(execute.run)
        acknowledged: list[str] = []
        message = Message(ti_id=7, dispatch_id=DISPATCH, queue="q", dag_id="d", run_id="r", task_id="t")
        received = Received(json.loads(envelope(message, 6, "g@h")), self.app.connection().channel())
        strategy.strategy(task, self.app, self)(received, None, lambda *_: acknowledged.append("yes"), None, ())
        return acknowledged


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


def executing(outcome: BaseException | Outcome | None) -> list[tuple[int, str]]:
    """Let children execute like this; the bytes that they received."""
    given: list[tuple[int, str]] = []

    def work(ti_id: int, dispatch_id: str) -> Outcome | None:
        given.append((ti_id, dispatch_id))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    execute.executes_with(work, bool)
    return given


def test_only_the_two_ids_go_to_the_child_and_flower_sees_each_step(consumer: Consumer) -> None:
    given = executing(None)

    acknowledged = consumer.receive()
    assert consumer.pool.handlers["correlation_id"] == DISPATCH
    assert pickle.loads(consumer.pool.sent) == (execute.run, (7, DISPATCH))
    assert len(celery_state.reserved_requests) == 1
    consumer.pool.work()

    assert given == [(7, DISPATCH)]
    assert acknowledged == ["yes"]
    assert [kind for kind, _ in consumer.event_dispatcher.sent] == ["task-received", "task-started", "task-succeeded"]
    assert consumer.event_dispatcher.sent[0][1]["name"] == "d.t"
    assert consumer.event_dispatcher.sent[0][1]["args"] == "r"
    assert not celery_state.reserved_requests
    assert consumer.died == []


def test_a_failed_try_is_a_failure_in_flower_and_no_death(consumer: Consumer) -> None:
    executing(Fail("boom"))

    consumer.receive()
    consumer.pool.work()

    kind, what = consumer.event_dispatcher.sent[-1]
    assert (kind, what["exception"]) == ("task-failed", "TryFailed('boom')")
    assert consumer.died == []
    assert not celery_state.reserved_requests


def test_an_error_of_our_own_is_reported_even_if_it_cannot_be_pickled(consumer: Consumer) -> None:
    class Local(Exception):
        """Pickle does not find its class."""

    executing(Local("no report"))

    consumer.receive()
    consumer.pool.work()

    ((ti_id, dispatch_id, reason),) = consumer.died
    assert (ti_id, dispatch_id) == (7, DISPATCH)
    assert "no report" in reason


def test_the_end_of_a_child_is_reported(consumer: Consumer) -> None:
    executing(None)
    consumer.receive()
    try:
        raise RuntimeError("Worker exited prematurely: signal 9 (SIGKILL)")
    except RuntimeError:
        lost = ExceptionInfo()

    consumer.pool.handlers["error_callback"](lost)

    assert [reason for _, _, reason in consumer.died] == ["Worker exited prematurely: signal 9 (SIGKILL)"]
    assert not celery_state.reserved_requests


def test_a_task_that_celery_has_revoked_runs_because_postgresql_decides(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_state, "revoked", {DISPATCH})
    monkeypatch.setattr("celery.worker.request.revoked_tasks", {DISPATCH})

    consumer.receive()

    assert hasattr(consumer.pool, "sent")


def in_place(seconds: float = 0.5) -> Step:
    return Step(message=DISPATCH, seconds=seconds, ti_id=8, dispatch_id="second", name="d.u", arguments="r", started_at=1.5)


def test_events_of_tasks_are_on_once_flower_enables_them(consumer: Consumer) -> None:
    consumer.event_dispatcher.groups = {"worker"}
    consumer.receive()
    consumer.pool.work()
    assert consumer.event_dispatcher.sent == []

    consumer.event_dispatcher.groups.add("task")
    consumer.receive()
    assert "task-received" in [kind for kind, _ in consumer.event_dispatcher.sent]


def test_events_name_the_task_that_runs_in_place(consumer: Consumer) -> None:
    executing(None)
    consumer.steps = [in_place()]
    processed = celery_state.all_total_count[0]

    consumer.receive()
    consumer.pool.work()

    assert [(kind, what["uuid"]) for kind, what in consumer.event_dispatcher.sent] == [
        ("task-received", DISPATCH), ("task-started", DISPATCH), ("task-succeeded", DISPATCH),
        ("task-received", "second"), ("task-started", "second"), ("task-succeeded", "second"),
    ]  # fmt: skip
    assert consumer.event_dispatcher.sent[3][1]["name"] == "d.u"
    assert celery_state.all_total_count[0] - processed == 2


def test_the_runtime_in_events_is_that_of_one_task(consumer: Consumer) -> None:
    executing(None)
    consumer.steps = [in_place(seconds=7.0)]

    consumer.receive()
    consumer.pool.handlers["callback"]((0, "None", 9.5))

    runtimes = [what["runtime"] for kind, what in consumer.event_dispatcher.sent if kind == "task-succeeded"]
    assert runtimes == [7.0, 2.5]


@pytest.mark.parametrize(("safe", "arguments"), [(False, [8, "second"]), (True, "r")])
def test_remote_control_describes_the_task_that_runs_in_place(consumer: Consumer, safe: bool, arguments: object) -> None:
    executing(None)
    consumer.receive()
    request = celery_state.requests[DISPATCH]
    by_message = request.info(safe=safe)
    consumer.last_step = in_place()

    described = request.info(safe=safe)

    assert (by_message["id"], by_message["name"]) == (DISPATCH, "d.t")
    assert described == by_message | {"id": "second", "name": "d.u", "args": arguments, "time_start": 1.5}
    consumer.pool.work()


def test_a_process_ends_with_the_result_of_its_last_task(consumer: Consumer) -> None:
    execute.executes_with(lambda *_: None, lambda: True)
    consumer.receive()

    with pytest.raises(execute.ReplaceProcessError) as ended:
        execute.run(7, DISPATCH)
    execute.executes_with(lambda *_: None, bool)
    try:
        raise pickle.loads(pickle.dumps(ended.value))
    except SystemExit:
        consumer.pool.handlers["error_callback"](ExceptionInfo())

    assert consumer.event_dispatcher.sent[-1][0] == "task-succeeded"
    assert consumer.died == []
