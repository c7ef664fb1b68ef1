"""A worker with two brokers takes no more messages than it has places, gives back what it cannot run, and drops garbage."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.worker import state as celery_state
from support.servers import RedisServer
from support.several_brokers import queues_of, running_two, with_brokers
from support.waiting import eventually

from scheduler.messaging.publisher import dispatch_ids_in_brokers
from scheduler.settings import Settings
from workers.celery_worker.intake import Places

from .. import conftest

QUEUED = "select dispatch_id::text from task_instance where state = 'queued'"


@pytest.fixture
def two(short_folder: Path) -> Iterator[tuple[RedisServer, RedisServer]]:
    with running_two(short_folder) as servers:
        yield servers


@pytest.fixture
def settings(settings: Settings, two: tuple[RedisServer, RedisServer]) -> Settings:
    return with_brokers(settings, *two)


def test_a_busy_worker_leaves_messages_in_both_brokers_and_a_stopped_one_keeps_none(bench: conftest.Bench) -> None:
    own, go = queues_of(bench.settings), bench.folder / "go"
    scenario = bench.scenario
    first = bench.worker(queues=",".join(own))
    bench.dag(
        f"""
        import os, time
        with DAG("d", schedule=None):
            for number in range(8):
                @task(task_id=f"t{{number}}", queue={own!r}[number % 2])
                def wait():
                    {conftest.wait_for(go)}
                wait()
        """
    )
    run = scenario.trigger("d", run_id="r1")

    def waiting() -> set[str]:
        return {dispatch_id for (dispatch_id,) in scenario.rows(QUEUED)}

    def only_one_taken() -> bool:
        scenario.turn()
        states = list(scenario.states(run).values())
        return states.count("running") == 1 and len(waiting()) >= 4 and dispatch_ids_in_brokers(scenario.brokers, own) == waiting()

    eventually(only_one_taken, timeout=60, message=lambda: f"{scenario.states(run)}\n{bench.output}")
    first.signal(signal.SIGTERM)
    go.touch()
    assert first.wait() == 0
    assert dispatch_ids_in_brokers(scenario.brokers, own) >= waiting()

    bench.worker(queues=",".join(own), concurrency=2)
    bench.wait(run)
    assert scenario.run_state(run) == "success"
    assert scenario.rows("select distinct try_number from task_instance") == [(1,)]


def test_garbage_in_a_broker_costs_only_itself(bench: conftest.Bench) -> None:
    own = queues_of(bench.settings)
    for broker, queue in zip(bench.scenario.brokers.all, own, strict=True):
        broker.client.lpush(queue, b"\xff", "{}", "[" * 100_000, '{"headers": {}, "properties": {}}')
        broker.client.set(f"{queue}:9", "no list")
    bench.worker(queues=",".join(own))

    run = bench.run(
        f"""
        with DAG("d", schedule=None):
            EmptyOperator(task_id="e", queue={own[0]!r}) >> [PythonOperator(task_id=q, queue=q, python_callable=int) for q in {own}]
        """
    )

    assert bench.scenario.run_state(run) == "success"
    assert bench.output.count("refused a message") >= 8
    assert all(not broker.client.exists(f"{queue}:9") for broker, queue in zip(bench.scenario.brokers.all, own, strict=True))


def test_places_are_kept_once_and_none_is_free_when_the_worker_stops() -> None:
    assert not celery_state.reserved_requests
    places = Places(2)
    assert [places.keep() for _ in range(3)] == [True, True, False]
    places.give_back()
    assert places.wait() and not places.keep()

    arrived: list[int] = []
    assert places.while_open(lambda: arrived.append(1))
    places.close()
    places.give_back()
    assert not places.keep()
    assert not places.while_open(lambda: arrived.append(2))
    assert arrived == [1]
