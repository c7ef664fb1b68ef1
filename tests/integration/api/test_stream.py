"""The event stream: changes reach each open page that may see them, and the number of queries does not grow with pages."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from support.waiting import eventually

from scheduler.api import stream
from scheduler.api.call import PREFIX
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact
from scheduler.store.read.changes import Changes

from .conftest import PASSWORD, Web, World


class Listener:
    """An open stream, read in a thread."""

    def __init__(self, http: httpx.Client, query: str) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(http, query), daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def _read(self, http: httpx.Client, query: str) -> None:
        name = ""
        with http.stream("GET", f"{PREFIX}/events{query}", timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    self.messages.append((name, json.loads(line.removeprefix("data: "))))
                    self._ready.set()

    def tasks(self) -> list[tuple[str, str, str | None]]:
        return [(task["dag_run_id"], task["task_id"], task["state"]) for _, data in self.messages for task in data.get("tasks", ())]

    def runs(self) -> set[tuple[str, str]]:
        return {(run["dag_run_id"], run["state"]) for _, data in self.messages for run in data.get("runs", ())}

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def listening(web: Web, query: str = "", **account: Any) -> Iterator[Listener]:
    token = web.account(f"l{threading.get_ident()}{len(query)}{len(account)}", **(account or {"role": "viewer"}))
    with web.http(token) as http:
        listener = Listener(http, query)
        try:
            yield listener
        finally:
            web.app.state.service.stopping.set()
            listener.join()


def test_changes_reach_a_page(web: Web, world: World) -> None:
    with listening(web, "?dag_id=etl") as page:
        world.scenario.sql("update process set heartbeat_at = clock_timestamp()")
        world.scenario.trigger("etl", run_id="new")
        eventually(lambda: ("new", "queued") in page.runs(), timeout=20)
        world.scenario.turn()
        eventually(lambda: ("new", "extract", "queued") in page.tasks(), timeout=20)
        world.scenario.work()
        eventually(lambda: ("new", "extract", "success") in page.tasks(), timeout=20)
        world.scenario.sql("update dag_schedule set is_paused = true where dag_id = 'etl'")
        eventually(lambda: any(data.get("dags") for _, data in page.messages), timeout=20)


def test_a_page_receives_only_requested_changes_that_its_account_may_see(web: Web, world: World) -> None:
    with listening(web, tags={"other": "admin"}) as stranger, listening(web, "?dag_id=etl&dag_run_id=now") as narrow:
        with listening(web) as page:
            world.scenario.trigger("etl", run_id="new")
            eventually(lambda: ("new", "queued") in page.runs(), timeout=20)
            assert page.tasks() == []
            world.scenario.sql("update task_instance set state = 'failed', ended_at = clock_timestamp() where state = 'running'")
            eventually(lambda: ("now", "extract", "failed") in narrow.tasks(), timeout=20)
            assert {run for run, _ in narrow.runs()} == {"now"}
            assert stranger.runs() == set()


def test_a_late_commit_is_not_missed(web: Web, world: World) -> None:
    """The event of the first transaction is older than the look that saw the event of the second one."""
    with listening(web, "?dag_id=etl") as page, world.scenario.engine.connect() as late:
        late.exec_driver_sql("update dag_run set state = 'queued', ended_at = null, started_at = null where run_id = 'bad'")
        world.scenario.trigger("etl", run_id="new")
        eventually(lambda: ("new", "queued") in page.runs(), timeout=20)
        world.scenario.trigger("etl", run_id="newer")
        eventually(lambda: ("newer", "queued") in page.runs(), timeout=20)
        assert ("bad", "queued") not in page.runs()
        late.commit()
        eventually(lambda: ("bad", "queued") in page.runs(), timeout=20)


def test_the_newest_transaction_is_not_missed(web: Web, world: World) -> None:
    """No transaction ends after it began, so that no snapshot lists it as running."""
    stream = web.app.state.service.stream
    with listening(web, "?dag_id=etl") as page, world.scenario.engine.connect() as late:
        late.exec_driver_sql("update dag_run set state = 'queued', ended_at = null, started_at = null where run_id = 'bad'")
        looks = stream.looks
        eventually(lambda: stream.looks >= looks + 3, timeout=20)
        late.commit()
        eventually(lambda: ("bad", "queued") in page.runs(), timeout=20)


def test_a_change_that_began_before_the_first_look_is_not_missed(web: Web, world: World) -> None:
    with world.scenario.engine.connect() as late:
        late.exec_driver_sql("update dag_run set state = 'queued', ended_at = null, started_at = null where run_id = 'bad'")
        with listening(web, "?dag_id=etl") as page:
            late.commit()
            eventually(lambda: ("bad", "queued") in page.runs(), timeout=20)


def test_a_stream_ends_with_its_login_and_with_other_rights(web: Web, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOGINS_S", 0.0)
    token = web.account("ada", "viewer")
    other = web.account("bob", "viewer")
    session = httpx.post(f"{web.url}/auth/token", json={"username": "ada", "password": PASSWORD}).json()["access_token"]
    with web.http(session) as first, web.http(token) as second, web.http(other) as third:
        ended, stays, changed = Listener(first, ""), Listener(second, ""), Listener(third, "")
        transact(web.engine, accounts.set_password, "ada", "a new password")
        ended.join()
        world.scenario.sql("update account set role = 'operator' where name = 'bob'")
        changed.join()
        world.scenario.trigger("etl", run_id="new")
        eventually(lambda: ("new", "queued") in stays.runs(), timeout=20)
        web.app.state.service.stopping.set()
        stays.join()


def test_the_number_of_looks_does_not_grow_with_pages(web: Web, world: World) -> None:
    statements: list[str] = []
    event.listen(web.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    stream = web.app.state.service.stream
    with ExitStack() as stack:
        token = web.account("ada", "viewer")
        pages = [Listener(stack.enter_context(web.http(token)), "?dag_id=etl") for _ in range(30)]
        statements.clear()
        looks = stream.looks
        eventually(lambda: stream.looks >= looks + 4, timeout=20)
        counted = len([statement for statement in statements if "from event" in statement])
        assert counted <= stream.looks - looks + 1
        world.scenario.trigger("etl", run_id="new")
        eventually(lambda: all(("new", "queued") in page.runs() for page in pages), timeout=20)
        web.app.state.service.stopping.set()
        for page in pages:
            page.join()
    eventually(lambda: not stream._pages)


def test_task_instances_are_read_only_for_pages_of_a_dag(web: Web, world: World) -> None:
    statements: list[str] = []
    event.listen(web.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with listening(web) as page:
        world.scenario.trigger("etl", run_id="new")
        eventually(lambda: ("new", "queued") in page.runs(), timeout=20)
        world.scenario.turn()
        eventually(lambda: ("new", "running") in page.runs(), timeout=20)

    assert not [statement for statement in statements if "from task_instance where id = any" in statement]
    assert not any(data.get("more") for _, data in page.messages)


def test_a_page_of_a_dag_that_opened_during_a_look_reads_again() -> None:
    run = {"dag_id": "etl", "dag_run_id": "new", "state": "running", "tags": []}
    seen = Changes(datetime.now(UTC), {1: run}, {}, more=True, dags=False)

    messages = {dag_id: stream._message(seen, stream.Scope(dag_id)) or "" for dag_id in (None, "etl")}

    assert '"more":false' in messages[None]
    assert '"more":true' in messages["etl"]


def test_a_client_that_missed_changes_reads_again_even_if_no_change_follows(web: Web) -> None:
    followed = stream.Stream(web.engine, threading.Event())
    token = web.account("ada", "viewer")
    account = transact(web.engine, logins.account, token, "token")
    assert account is not None

    async def listen() -> list[str]:
        messages = followed.follow(stream.Scope(), stream.Session(logins.digest(token), account))
        await anext(messages)
        for number in range(stream.MOST_BEHIND + 1):
            followed._broadcast(stream.event("changes", {"number": number}))
        found = [await asyncio.wait_for(anext(messages), 20) for _ in range(stream.MOST_BEHIND + 1)]
        await messages.aclose()
        return found

    found = asyncio.run(listen())

    assert found[-2:] == [stream.event("changes", {"number": stream.MOST_BEHIND - 1}), stream.event("reset", {})]
