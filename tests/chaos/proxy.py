"""TCP links between processes and their servers. A link can be half-open: it accepts data, delivers nothing and stays open."""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

CHUNK = 1 << 16
ANSWER_S = 10.0
#: Turns of the event loop from the acceptance of a connection to the first line of its task.
TURNS = 4


class Link:
    """One listening port, forwarded to a Unix socket; each process of the stack has links of its own."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._requests, self._answers = asyncio.Event(), asyncio.Event()
        self._requests.set()
        self._answers.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        #: Bytes and connections that were taken while it was cut.
        self.swallowed = 0

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is None:
            return
        # asyncio leaves open a connection that it accepts in the turn in which its server closes. So accept no more, and give those
        # that were accepted the turns after which each has a task.
        loop = asyncio.get_running_loop()
        for one in self._server.sockets:
            loop.remove_reader(one.fileno())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._server.close()

    def cut(self, *, requests: bool = True) -> None:
        """From now on nothing passes, in either direction; new connections are accepted and stay silent. Without `requests`, a
        request arrives and is served, and only the responses are lost."""
        self._answers.clear()
        if requests:
            self._requests.clear()

    def refuse(self) -> None:
        """From now on connections are refused, and those that are there are reset: the client knows at once."""
        self._refuses = True
        self._reset()

    def move(self, target: Path) -> None:
        """From now on another server is behind it."""
        self._target = target
        self._reset()

    def restore(self, *, reset: bool) -> None:
        """All that was held back arrives late; or, as after the give-up of a kernel, the connections are gone."""
        if reset:
            self._reset()
        self._refuses = False
        self._requests.set()
        self._answers.set()

    def _reset(self) -> None:
        for writer in list(self._writers):
            # Closed so, a TCP connection is reset instead of ended; one whose process was killed meanwhile is closed already.
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._refuses:
            self._reset()
        far: asyncio.StreamWriter | None = None
        try:
            if not self._requests.is_set():
                self.swallowed += 1
                await self._requests.wait()
            far_reader, far = await asyncio.open_unix_connection(str(self._target))
            self._writers.add(far)
            await asyncio.gather(self._pump(reader, far, self._requests), self._pump(far_reader, writer, self._answers))
        except OSError:
            pass  # the server is away, as the client is about to notice
        finally:
            for one in (writer, far):
                if one is not None:
                    self._writers.discard(one)
                    one.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passes: asyncio.Event) -> None:
        try:
            while data := await source.read(CHUNK):
                if not passes.is_set():
                    self.swallowed += len(data)
                    await passes.wait()
                sink.write(data)
                await sink.drain()
            # A cut link must not even show the end of the other side.
            await passes.wait()
        finally:
            with contextlib.suppress(OSError):
                sink.close()


class Proxy:
    """The links of a stack, in a thread with an event loop of its own."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # a connection that was aborted is no news here
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def link(self, target: Path) -> Link:
        link = Link(target)
        self._run(link.listen())
        self._links.append(link)
        return link

    def do(self, change: Callable[[], None]) -> None:
        """Cut or restore from another thread; its errors are the caller's."""

        async def now() -> None:
            change()

        self._run(now())

    def close(self) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_S)
        self._loop.close()

    async def _end(self) -> None:
        for link in self._links:
            await link.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_S)
