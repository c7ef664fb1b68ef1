"""A masking pipe between the output of user code and its log, which replaces secrets with ***.

It is inserted when user code reads its first secret.
"""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from paceline import secrets_masker

#: The largest pipe of an unprivileged process. Code that writes while it holds the GIL blocks the reading thread, so the pipe
#: must hold all that it writes until then.
PIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
SETTLE_TIMEOUT_S = 10.0


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk: the task continues without a log, as it would without masking
        while data:
            data = data[os.write(target, data) :]


class MaskedOutput:
    """Replaces `descriptors` with a pipe. A thread masks the `known` secrets in its data and writes it to the file `target`.

    The thread runs until the last process that inherited the pipe closes it, and then closes `target`. `write` writes bytes to
    `target` and must not raise.
    """

    def __init__(
        self,
        target: int,
        descriptors: Iterable[int],
        known: secrets_masker.Secrets,
        *,
        write: Callable[[int, bytes], None] = _write,
    ) -> None:
        self._target = target
        self._write_target = write
        self._stream = secrets_masker.Stream(known)
        self._marker = b"\0" + secrets.token_bytes(16)
        self._arrived = threading.Event()
        self._read, self._write = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.thread = threading.Thread(target=self._pump, name="masked-output", daemon=True)
        self.thread.start()
        for descriptor in descriptors:
            os.dup2(self._write, descriptor)

    def settle(self) -> None:
        """Wait until all data written so far is in the file."""
        self._arrived.clear()
        os.write(self._write, self._marker)
        self._arrived.wait(SETTLE_TIMEOUT_S)

    def close(self) -> None:
        """Close this process's end of the pipe. Call it after the descriptors are restored."""
        os.close(self._write)

    def _pump(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the main thread handles them
        waiting = b""
        while data := os.read(self._read, CHUNK_BYTES):
            *settled, waiting = (waiting + data).split(self._marker)
            for part in settled:
                self._put(self._stream.feed(part) + self._stream.finish())
                self._arrived.set()
            ready = len(waiting) - secrets_masker.longest_start(waiting, (self._marker,))
            self._put(self._stream.feed(waiting[:ready]))
            waiting = waiting[ready:]
        self._put(self._stream.feed(waiting) + self._stream.finish())
        os.close(self._read)
        os.close(self._target)

    def _put(self, data: bytes) -> None:
        self._write_target(self._target, data)


@contextlib.contextmanager
def masked(*outputs: Sequence[int]) -> Iterator[None]:
    """Mask all secrets that are read during the block. Each of `outputs` holds the descriptors of one file."""
    pipes: list[MaskedOutput] = []
    saved = {descriptor: os.dup(descriptor) for descriptors in outputs for descriptor in descriptors}

    def insert_pipes() -> None:
        if not pipes:
            pipes.extend(MaskedOutput(os.dup(output[0]), output, secrets_masker.current()) for output in outputs)

    secrets_masker.begin(insert_pipes)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # user code closed or replaced it
                stream.flush()
        for pipe in pipes:
            pipe.settle()
        secrets_masker.begin()
        for descriptor, original in saved.items():
            os.dup2(original, descriptor)
            os.close(original)
        for pipe in pipes:
            pipe.close()
