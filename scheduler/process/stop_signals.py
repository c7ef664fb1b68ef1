"""What SIGTERM and SIGINT do to a process of Paceline that has not begun its work yet."""

import signal
import sys
import threading

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def exit_at_once() -> None:
    """From now on they raise SystemExit(0) wherever the process is: for waits, while there is nothing to give back."""
    for number in NUMBERS:
        signal.signal(number, lambda *_: sys.exit(0))


def remember() -> threading.Event:
    """From now on they set this event and no more.

    Call it before the process makes its mark or enters the registry. An end in the middle of that, or the default end, would
    leave something behind that looks alive.
    """
    asked = threading.Event()
    for number in NUMBERS:
        signal.signal(number, lambda *_: asked.set())
    return asked
