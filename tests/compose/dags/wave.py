"""Tasks of ten seconds that need no processor."""

import time

from paceline import DAG, task


def work() -> None:
    time.sleep(10)


for name, tasks in (("wave", 480), ("ripple", 4)):
    with DAG(name, schedule=None, max_active_tasks=500):
        for number in range(tasks):
            task(task_id=f"t{number:03}")(work)()
