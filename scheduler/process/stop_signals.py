"""The handlers of SIGTERM and SIGINT while a Paceline process starts."""

import signal
import sys
import threading

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def exit_at_once() -> None:
    """Make both signals raise SystemExit(0) at any point: for waits during which there is nothing to clean up."""
    for number in NUMBERS:
        signal.signal(number, lambda *_: sys.exit(0))


def remember() -> threading.Event:
    """Make both signals only set the event that is returned.

    Call it before the process creates its pidfile or registers. If a signal ended the process in the middle of that, a pidfile
    or a row in the registry would stay and make the process look alive.
    """
    stop = threading.Event()
    for number in NUMBERS:
        signal.signal(number, lambda *_: stop.set())
    return stop
