"""The pooler of a worker: a process that runs the statements of all its pool processes over a few connections.

Steps (moves/report.sql) that wait at the same time become one statement and one commit. Other statements run in threads. After a
`begin`, a client keeps its connection until its transaction ends; if the client is gone, the transaction is rolled back.
Nothing is remembered: a statement whose answer is lost is repeated by its pool process, as after a lost connection.
"""

import contextlib
import os
import select
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from psycopg2.extras import register_default_json, register_default_jsonb

from scheduler.settings import Settings
from scheduler.store.db import sqlstates
from scheduler.store.moves import prepared as sql
from scheduler.store.worker.hot_path import WorkerConnection
from scheduler.store.worker.pooled import BYTEA, CHUNK, LENGTH, READY, Answer, Column, Request, packed, unpacked

#: Seconds that a statement waits for a free connection before another one opens. One that waits for a lock is not free for long.
PATIENCE_S = 0.1
#: Seconds between two looks at connections that are idle.
LOOK_S = 1.0
#: Steps in one statement. More would hold the locks of each other for longer, and save little.
MOST_STEPS = 32
STEP = f"{sql.HOLD_MOVES.execute}; {sql.STEP.execute}"
STEPS = f"{sql.HOLD_STEPS.execute}; {sql.STEPS.execute}"
#: How long steps wait for the locks of one of them together, and in the thread that serves all clients. Then each waits alone.
BRIEFLY = "set local lock_timeout = '100ms'"


class PooledConnection(WorkerConnection):
    """A connection of the pooler. Values of type json stay text, which pool processes decode."""

    def __init__(self, settings: Settings) -> None:
        never = settings.worker.model_copy(update={"idle_connection_seconds": 0, "connections": 0})
        super().__init__(settings.model_copy(update={"worker": never}), "")
        self.free_since = 0.0

    def answer(self, request: Request) -> Answer:
        """Run a statement. An error is an answer too."""
        self.worker_id = request.worker_id
        try:
            cursor = self.run(STEP if request.statement is None else request.statement, request.parameters)
            if cursor.description is None:
                return Answer()
            columns = [Column(column.name, column.type_code) for column in cursor.description]
            if any(column.type_code == BYTEA for column in columns):
                return Answer(columns, [tuple(map(_plain, row)) for row in cursor.fetchall()])
            return Answer(columns, cursor.fetchall())
        except psycopg2.Error as error:
            return Answer(error=error)
        except Exception as error:  # such as a parameter of a class that psycopg2 does not know
            self.close()
            return Answer(error=psycopg2.ProgrammingError(f"{type(error).__name__}: {error}"))

    @property
    def in_transaction(self) -> bool:
        connection = self._connection
        return connection is not None and connection.info.transaction_status != TRANSACTION_STATUS_IDLE

    def _adapt(self, connection: Any) -> None:
        register_default_json(connection, loads=str)
        register_default_jsonb(connection, loads=str)


@dataclass(slots=True, eq=False)
class Client:
    """A pool process. `held` is the connection of its transaction."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    held: PooledConnection | None = None
    is_busy: bool = False
    is_gone: bool = False

    def read(self) -> Request | None:
        """The request, once all of it has arrived. EOFError if the client is gone."""
        try:
            data = self.socket.recv(CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not data:
            raise EOFError
        self.received += data
        if len(self.received) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self.received)
        if len(self.received) < LENGTH.size + length:
            return None
        request: Request = unpacked(bytes(self.received[LENGTH.size :]))
        self.received.clear()
        return request

    def send(self, answer: Answer) -> None:
        """Send an answer. A client that is gone repeats its request, or has no need for the answer."""
        try:
            message = packed(answer)
        except Exception as error:  # such as a value of a type that psycopg2 has a class for
            message = packed(Answer(error=psycopg2.NotSupportedError(f"{type(error).__name__}: {error}")))
        with contextlib.suppress(OSError):
            self.socket.sendall(message)


@dataclass(slots=True)
class Waiting:
    """A request without a connection yet, since a time on the monotonic clock."""

    client: Client
    request: Request
    since: float = field(default_factory=time.monotonic)


class Pooler:
    """Serves the clients of a listening socket over at most `worker.connections` connections, in one thread and a few others."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._most = settings.worker.connections
        self._idle_s = settings.worker.idle_connection_seconds
        self._clients: dict[int, Client] = {}
        self._free: list[PooledConnection] = []
        self._opened = 0
        self._steps: deque[Waiting] = deque()
        self._others: deque[Waiting] = deque()
        self._threads = ThreadPoolExecutor(self._most, "statement")
        #: The clients of statements that have ended in threads, each with its connection if that is free, and what wakes this
        #: thread then.
        self._ended: deque[tuple[Client, PooledConnection | None]] = deque()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        self._poll = select.epoll()

    def serve(self) -> None:
        """Serve until the process ends."""
        listener = self._listener.fileno()
        self._listener.setblocking(False)
        for number in (listener, self._woken):
            self._poll.register(number, select.EPOLLIN)
        while True:
            for number, _ in self._poll.poll(self._pause_s()):
                if number == listener:
                    self._accept()
                elif number == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                else:
                    self._read(self._clients[number])
            while self._ended:
                client, connection = self._ended.popleft()
                if connection is not None:
                    self._give_back(connection)
                if client.is_gone:
                    self._drop(client)
            self._run_waiting()
            self._close_idle()

    def _pause_s(self) -> float:
        return PATIENCE_S / 2 if self._steps or self._others else LOOK_S

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = self._listener.accept()
            accepted.setblocking(True)
            accepted.send(READY)
            self._clients[accepted.fileno()] = Client(accepted)
            self._poll.register(accepted.fileno(), select.EPOLLIN)

    def _read(self, client: Client) -> None:
        try:
            request = client.read()
        except Exception:  # it is gone, or what it sent cannot be read: user code runs in pool processes
            self._leave(client)
            return
        if request is None:
            return
        client.is_busy = True
        if client.held is not None:
            self._start(client, request, client.held)
        else:
            (self._steps if request.statement is None else self._others).append(Waiting(client, request))

    def _leave(self, client: Client) -> None:
        number = client.socket.fileno()
        self._poll.unregister(number)
        del self._clients[number]
        client.is_gone = True
        if not client.is_busy:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        """Close a client that is gone, and roll its transaction back."""
        client.socket.close()
        held, client.held = client.held, None
        if held is not None:
            held.close()
            self._give_back(held)

    # Connections

    def _take(self, since: float) -> PooledConnection | None:
        """A connection for what waits since then; None if all are busy and another one may not open, or not yet."""
        if self._free:
            return self._free.pop()
        if self._opened and (self._opened >= self._most or time.monotonic() < since + PATIENCE_S):
            return None
        self._opened += 1
        return PooledConnection(self._settings)

    def _give_back(self, connection: PooledConnection) -> None:
        connection.free_since = time.monotonic()
        if connection.is_open:
            self._free.append(connection)
        else:
            self._opened -= 1

    def _close_idle(self) -> None:
        """Close the connections that have been free for long. The one given back last is used first."""
        until = time.monotonic() - self._idle_s
        while self._idle_s and self._free and self._free[0].free_since < until:
            self._free.pop(0).close()
            self._opened -= 1

    # Statements

    def _run_waiting(self) -> None:
        while self._steps and (connection := self._take(self._steps[0].since)) is not None:
            steps = [self._steps.popleft() for _ in range(min(len(self._steps), MOST_STEPS))]
            self._run_steps(connection, steps)
        while self._others and (connection := self._take(self._others[0].since)) is not None:
            waiting = self._others.popleft()
            self._start(waiting.client, waiting.request, connection)

    def _run_steps(self, connection: PooledConnection, steps: Sequence[Waiting]) -> None:
        """Run steps in this thread, in one transaction. If that fails for one of them, each runs alone, in another thread."""
        requests = [each.request for each in steps]
        if len(steps) == 1:
            statement, parameters = STEP, requests[0].parameters
        else:
            statement, parameters = STEPS, of_steps(requests)
        answer = connection.answer(Request(requests[0].worker_id, f"{BRIEFLY}; {statement}", parameters))
        self._give_back(connection)
        if answer.error is None and len(steps) == 1:
            self._finish(steps[0].client, answer)
        elif answer.error is None:
            number = [column.name for column in answer.columns].index("no")
            stored: dict[int, list[tuple[Any, ...]]] = {}
            for row in answer.rows:
                stored.setdefault(row[number], []).append(row)
            for no, each in enumerate(steps, 1):
                self._finish(each.client, Answer(answer.columns, stored.get(no, [])))
        elif sqlstates.is_passing(answer.error) and not sqlstates.is_of_statement(answer.error):
            for each in steps:
                self._finish(each.client, answer)
        else:
            # One of them waits for a lock, or cannot be stored.
            self._others.extend(steps)

    def _start(self, client: Client, request: Request, connection: PooledConnection) -> None:
        self._threads.submit(self._run, client, request, connection)

    def _run(self, client: Client, request: Request, connection: PooledConnection) -> None:
        """Run one statement, in a thread. The client may send the next one as soon as it has the answer."""
        answer = connection.answer(request)
        held = client.held = connection if connection.in_transaction else None
        client.is_busy = False
        client.send(answer)
        self._ended.append((client, None if held else connection))
        os.write(self._wake, b"x")

    def _finish(self, client: Client, answer: Answer) -> None:
        client.is_busy = False
        client.send(answer)
        if client.is_gone:
            self._drop(client)


def of_steps(requests: Sequence[Request]) -> Mapping[str, Any]:
    """The parameters of `steps` and its locks, from those of each step."""
    each: list[Mapping[str, Any]] = [request.parameters for request in requests]  # type: ignore[misc]
    values = {
        name: [next(iter(values[name])) if isinstance(values[name], list) else values[name] for values in each]
        for name in sql.STEPS.parameters
    }
    return {**values, "ti_ids": values["ti_id"], "dag_run_ids": values["dag_run_id"]}


def _plain(value: Any) -> Any:
    """A value of bytes, which psycopg2 returns as a view of memory, or any other."""
    return bytes(value) if isinstance(value, memoryview) else value
