"""Runs of short tasks. Each adds a line to a file on the data volume when it ends, with the version of the code that it ran."""

import os
import socket
import time

from steady_parts.version import VERSION

from paceline import DAG, get_current_context, task

FILE = "/var/lib/paceline/data/steady.txt"


def work() -> None:
    # A late import: it must find the version of the run, too.
    from steady_parts.seconds import SECONDS

    time.sleep(SECONDS)
    now = get_current_context()["ti"]
    line = f"{now.run_id} {now.task_id} {VERSION} {socket.gethostname()}\n".encode()
    # One write in append mode: lines of different pods do not mix.
    file = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


with DAG("steady", schedule=None, max_active_tasks=100):
    for number in range(60):
        task(task_id=f"t{number:02}", retries=5, retry_delay=1)(work)()
