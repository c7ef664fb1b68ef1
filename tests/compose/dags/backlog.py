"""Runs of 250 short tasks, each of which adds a line to a file on the data volume when it ends."""

import os
import socket
import time

from paceline import DAG, get_current_context, task

FILE = "/var/lib/paceline/data/backlog.txt"


def work() -> None:
    time.sleep(0.3)
    now = get_current_context()["ti"]
    line = f"{now.run_id}/{now.task_id} {socket.gethostname()}\n".encode()
    # One write in append mode: lines of different containers do not mix.
    file = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


with DAG("backlog", schedule=None, max_active_tasks=250):
    for number in range(250):
        task(task_id=f"t{number:03}", retries=5, retry_delay=1)(work)()
