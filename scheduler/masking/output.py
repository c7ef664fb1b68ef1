"""A pipe between what user code writes and its log, in which secrets become ***. Laid when the first secret is met."""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduler.masking import secrets_masker

#: As large as an unprivileged process may have it: code that writes while it holds the interpreter's lock, and so keeps our
#: thread from reading, finds room for this much.
PIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
SETTLE_TIMEOUT_S = 10.0


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a full disk: the task goes on without a log, as it would without us
        while data:
            data = data[os.write(target, data) :]


class MaskedOutput:
    """Takes the place of `descriptors`; what is written there goes to the file `target` without `known` secrets.

    It lives on until the last process that has inherited the pipe closes it. It owns `target`; `write` puts bytes into it and
    never raises.
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
        """Wait until all that has been written so far is in the file."""
        self._arrived.clear()
        os.write(self._write, self._marker)
        self._arrived.wait(SETTLE_TIMEOUT_S)

    def close(self) -> None:
        """Write no more; the descriptors have been given back."""
        os.close(self._write)

    def _pump(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
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
    """Mask the secrets that are met meanwhile. Each of `outputs` are the descriptors that lead to one file."""
    laid: list[MaskedOutput] = []
    saved = {descriptor: os.dup(descriptor) for descriptors in outputs for descriptor in descriptors}

    def lay() -> None:
        if not laid:
            laid.extend(MaskedOutput(os.dup(one[0]), one, secrets_masker.current()) for one in outputs)

    secrets_masker.begin(lay)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # user code closed or replaced it
                stream.flush()
        for one in laid:
            one.settle()
        secrets_masker.begin()
        for descriptor, original in saved.items():
            os.dup2(original, descriptor)
            os.close(original)
        for one in laid:
            one.close()
