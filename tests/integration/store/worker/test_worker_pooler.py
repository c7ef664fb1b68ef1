"""The pooler of a worker: statements of several pool processes over few connections, and steps together in one statement."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg2
import pytest
from support.scenario import Scenario, chain
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.deciding.following import plan_of
from scheduler.messaging.publisher import Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.moves import prepared
from scheduler.store.upkeep.heartbeats import HeartbeatConnection
from scheduler.store.worker import pooler
from scheduler.store.worker.claims import Claim, Ending, NextInPlace, Refused, Reported
from scheduler.store.worker.hot_path import HotPath
from scheduler.store.worker.pooled import Request
from scheduler.store.worker.pooler import PooledConnection, Pooler
from workers.task.follow import DatabaseStore, Follower

PID = "select pg_backend_pid()"
DONE = Ending(TaskState.SUCCESS, result='{"a": 1}')
IN_PLACE = "00000000-0000-0000-0000-00000000000{}"
Start = Callable[..., Callable[..., HotPath]]


@pytest.fixture
def start(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a pooler with so many connections, and return what makes one of its clients."""
    made: list[HotPath] = []
    poolers: list[int] = []
    folder = tmp_path_factory.mktemp("p", numbered=True)

    def one(connections: int, kind: type[Pooler] = Pooler) -> Callable[..., HotPath]:
        worker = scenario.settings.worker.model_copy(update={"connections": connections})
        settings = scenario.settings.model_copy(update={"worker": worker})
        address = str(folder / f"{len(poolers)}")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        with listener:
            poolers.append(process_with(settings, listener, kind))
            if kind is not Pooler:
                poolers.append(process_with(settings, listener, Pooler, after=poolers[-1]))

        def client(place: int = 0) -> HotPath:
            made.append(HotPath(settings, scenario.worker_id, place, address))
            return made[-1]

        client.pid = poolers[-1]  # type: ignore[attr-defined]
        return client

    yield one
    for hot in made:
        hot.close()
    for pid in poolers:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def process_with(settings: Settings, listener: socket.socket, kind: type[Pooler], after: int | None = None) -> int:
    """Fork a pooler. It serves once the process `after` has ended."""
    pid = os.fork()
    if pid == 0:
        try:
            if after is not None:
                eventually(lambda: psutil.Process(after).status() == psutil.STATUS_ZOMBIE, timeout=60)
            kind(settings, listener).serve()
        finally:
            os._exit(1)
    return pid


def claims_of(scenario: Scenario, count: int, length: int = 3) -> tuple[SerializedDag, list[Claim]]:
    """The claims of the first tasks of as many chains."""
    made = scenario.add(chain("c", length, max_active_runs=100))
    for number in range(count):
        scenario.trigger("c", run_id=f"r{number}")
    scenario.turn()
    claims = [scenario.claim(message) for message in scenario.messages()]
    assert len(claims) == count
    return made, [claim for claim in claims if claim is not None]


def step(hot: HotPath, made: SerializedDag, claim: Claim, number: int = 1, ending: Ending = DONE) -> Any:
    return hot.report(claim, ending, plan_of(made, claim, ending.state, None), NextInPlace(IN_PLACE.format(number)))


def parameters_of(scenario: Scenario, made: SerializedDag, claim: Claim, number: int) -> Any:
    """The parameters of a step, as a pool process sends them."""
    sent: list[Any] = []

    class Recording(HotPath):
        def _step(self, parameters: Any) -> Any:
            sent.append({name: parameters[name] for name in prepared.STEP.parameters})
            raise NotSentError

    with pytest.raises(NotSentError):
        step(Recording(scenario.settings, scenario.worker_id), made, claim, number)
    return sent[0]


class NotSentError(Exception):
    """In place of a step that is sent."""


def test_pool_processes_share_connections_and_each_statement_has_its_session(scenario: Scenario, start: Start) -> None:
    client = start(1)
    hots = [client(), client()]

    assert hots[0].value(PID, ()) == hots[1].value(PID, ())
    hots[1].worker_id = "another"
    assert [hot.value("select current_setting('paceline.actor')", ()) for hot in hots] == [scenario.worker_id, "another"]
    assert bytes(hots[0].value(r"select '\x00ff'::bytea", ())) == b"\x00\xff"
    assert hots[0].read("""select '{"a": [1]}'::json, '[1]'::jsonb, null::json, now() is null""", ()) == [
        ({"a": [1]}, [1], None, False)
    ]


def test_a_claim_and_a_report_by_message(scenario: Scenario, start: Start) -> None:
    scenario.start(chain("c", 2), run_id="r")
    hot = start(1)()
    (message,) = scenario.messages()

    claim = hot.claim(*message)
    assert claim is not None and claim.conf == {}
    assert isinstance(hot.report(claim, DONE, plan_of(hot.dag(claim.version_id), claim, TaskState.SUCCESS, None)), Reported)
    assert scenario.states() == {"t000": "success", "t001": "queued"}


def test_an_error_has_its_class_and_code_and_the_next_statement_works(start: Start) -> None:
    hot = start(1)()

    with pytest.raises(psycopg2.errors.DivisionByZero) as caught:
        hot.read("select 1 / 0", ())

    assert caught.value.pgcode == "22012"
    assert hot.now()


def test_a_transaction_keeps_its_connection_and_others_get_another_one(scenario: Scenario, start: Start) -> None:
    client = start(2)
    hot, other = client(), client()

    with hot.transaction("create table t (v int)", {}):
        assert other.value(PID, ()) != hot.value(PID, ())
        hot.run("insert into t values (1)")

    assert hot.value("select count(*) from t", ()) == 1


def test_the_transaction_of_a_process_that_dies_is_rolled_back(scenario: Scenario, start: Start) -> None:
    client = start(1)
    hot, other = client(), client()
    scenario.sql("create table gone (v int)")

    dies = hot.transaction("insert into gone values (1)", {})
    dies.__enter__()
    hot._pooled.close()  # type: ignore[union-attr]

    assert other.value("select count(*) from gone", ()) == 0
    # It was not waiting in a transaction either, which would hold its locks.
    assert scenario.rows("select from pg_stat_activity where state like 'idle in%%' and application_name = 'paceline task'") == []
    with pytest.raises(psycopg2.OperationalError):
        dies.__exit__(None, None, None)


def test_steps_together_store_what_each_stores_alone(scenario: Scenario) -> None:
    made, claims = claims_of(scenario, 5)
    ended = claims[1]
    requests = [Request("w", None, parameters_of(scenario, made, claim, number)) for number, claim in enumerate(claims)]
    # The second try was cleared, the third run is in another state, and the others go on.
    scenario.sql("update task_instance set dispatch_id = gen_random_uuid() where id = %s", ended.id)
    scenario.sql("update dag_run set state = 'failed', ended_at = now() where id = %s", claims[2].dag_run_id)

    connection = PooledConnection(scenario.settings)
    answer = connection.answer(Request(scenario.worker_id, pooler.STEPS, pooler.of_steps(requests)))
    connection.close()

    assert answer.error is None
    number = [column.name for column in answer.columns].index("no")
    assert sorted(row[number] for row in answer.rows) == [1, 4, 5]
    states = "select task_no, state, dispatch_id::text from task_instance where dag_run_id = %s order by task_no"
    assert [state for _, state, _ in scenario.rows(states, ended.dag_run_id)] == ["running", None, None]
    assert [state for _, state, _ in scenario.rows(states, claims[2].dag_run_id)] == ["running", None, None]
    for at in (0, 3, 4):
        assert scenario.rows(states, claims[at].dag_run_id) == [
            (0, "success", claims[at].dispatch_id), (1, "running", IN_PLACE.format(at)), (2, None, None)
        ]  # fmt: skip
        assert scenario.rows("select value from xcom where task_instance_id = %s", claims[at].id) == [({"a": 1},)]


def test_steps_that_wait_at_the_same_time_have_one_commit(scenario: Scenario, start: Start) -> None:
    made, claims = claims_of(scenario, 8)
    client = start(1)
    hots = [client() for _ in claims]
    for hot in hots:
        hot.now()
    os.kill(client.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(step, hot, made, claim, number) for number, (hot, claim) in enumerate(zip(hots, claims, strict=True))
        ]
        eventually(lambda: all(one.running() for one in answers))
        sent = threading.Event()
        sent.wait(0.2)
        os.kill(client.pid, signal.SIGCONT)  # type: ignore[attr-defined]
        found = [one.result(20) for one in answers]

    assert all(isinstance(one, Reported) and one.continues is not None for one in found)
    assert [one.continues.dag_run_id for one in found] == [claim.dag_run_id for claim in claims]
    commits = scenario.rows("select count(distinct xmin::text) from task_instance where state = 'success'")[0][0]
    assert commits < len(claims)


def test_a_step_that_waits_for_a_lock_does_not_delay_the_others(scenario: Scenario, start: Start) -> None:
    made, claims = claims_of(scenario, 2)
    client = start(3)
    locked = psycopg2.connect(scenario.settings.database_url)
    with contextlib.closing(locked), ThreadPoolExecutor(2) as pool:
        with locked.cursor() as cursor:
            cursor.execute("select from task_instance where id = %s for update", (claims[0].id,))
        waits = pool.submit(step, client(), made, claims[0], 0)
        goes_on = pool.submit(step, client(), made, claims[1], 1)
        assert isinstance(goes_on.result(20), Reported)
        assert not waits.done()
        locked.rollback()
        assert isinstance(waits.result(20), Reported)


class EndsBeforeItAnswers(Pooler):
    """Is killed after it has stored steps."""

    def _finish(self, client: Any, answer: Any) -> None:
        if answer.rows:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._finish(client, answer)


def test_what_a_pooler_stored_and_did_not_answer_goes_on_where_it_was(scenario: Scenario, start: Start) -> None:
    _, claims = claims_of(scenario, 4)
    client = start(1, EndsBeforeItAnswers)
    stores = [DatabaseStore(hot.settings, hot, Follower(hot, Publisher(hot.settings), Wakeups(hot.settings), enabled=True))
              for hot in (client() for _ in claims)]  # fmt: skip

    def report(number: int) -> Any:
        return stores[number].report(claims[number], DONE, NextInPlace(IN_PLACE.format(number)))

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(report, range(4)))

    assert [(one.is_stored, one.continues.task_id, one.continues.dispatch_id) for one in answers] == [
        (True, "t001", IN_PLACE.format(number)) for number in range(4)
    ]
    # At least one was stored twice as far as its process knows, and once in fact.
    assert any(isinstance(one, Refused) for one in answers)
    tries = "select task_no, state, try_number from task_instance where task_no < 2 order by 1"
    assert scenario.rows(tries) == [(0, "success", 1)] * 4 + [(1, "running", 1)] * 4


def test_one_step_that_cannot_be_stored_fails_alone(scenario: Scenario, start: Start) -> None:
    made, claims = claims_of(scenario, 2)
    client = start(1)
    os.kill(client.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        bad = pool.submit(step, client(), made, claims[0], 0, Ending(TaskState.SUCCESS, result="no json"))
        good = pool.submit(step, client(), made, claims[1], 1)
        eventually(lambda: bad.running() and good.running())
        os.kill(client.pid, signal.SIGCONT)  # type: ignore[attr-defined]
        with pytest.raises(psycopg2.errors.InvalidTextRepresentation):
            bad.result(20)
        assert isinstance(good.result(20), Reported)


HEARTBEATS = "select count(*) from pg_stat_activity where application_name = 'paceline beat' and datname = current_database()"
AT = "select heartbeat_at from process where id = %s"


def test_a_heartbeat_over_the_pooler_has_a_connection_of_its_own_only_while_the_pooler_does_not_answer(
    scenario: Scenario, start: Start
) -> None:
    client = start(1)
    pid = client.pid  # type: ignore[attr-defined]
    beating = HeartbeatConnection(scenario.settings, "paceline beat", 10.0, client()._pooler)

    def beat() -> tuple[bool, int]:
        """Whether the heartbeat was stored, and its own connections afterwards."""
        before = scenario.rows(AT, scenario.worker_id)
        assert beating.renew(scenario.worker_id) is False, "nobody asked this worker to drain"
        assert beating.doubted(scenario.worker_id, {IN_PLACE.format(1): 1}) == {IN_PLACE.format(1): 1}
        return scenario.rows(AT, scenario.worker_id) > before, scenario.rows(HEARTBEATS)[0][0]

    assert beat() == (True, 0)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert beat() == (True, 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert beat()[0]
    eventually(lambda: scenario.rows(HEARTBEATS) == [(0,)], timeout=30)
    assert beating.renew("w#gone") is None
    beating.close()


def test_a_locked_table_is_an_answer_to_a_heartbeat(scenario: Scenario, start: Start) -> None:
    beating = HeartbeatConnection(scenario.settings, "paceline beat", 10.0, start(1)()._pooler)
    assert beating.renew(scenario.worker_id) is False  # the pooler has its connection
    with scenario.engine.begin() as migration:
        migration.exec_driver_sql("lock table task_instance in access exclusive mode")
        assert beating.doubted(scenario.worker_id, {IN_PLACE.format(1): 1}) == {}
        assert migration.exec_driver_sql(HEARTBEATS).scalar_one() == 0
    beating.close()
