"""Ends a forked process when its parent ends for any reason."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process the signal when `parent`, which forked it from its main thread, ends. Linux only.

    The parent may have ended before the call to prctl, so it is checked afterwards.
    """
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
