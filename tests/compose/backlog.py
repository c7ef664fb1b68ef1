"""2,000 tasks wait; four workers start; a scheduler and a worker are killed; all workers but one stop. Nothing is lost."""

import subprocess
import time
from collections import Counter
from typing import Any

from stack import Stack, call, eventually, expect, say

RUNS, TASKS = 8, 2000
#: Where the DAG backlog writes a line for each task that ended: its run and ID, and its container.
FILE = "/var/lib/paceline/data/backlog.txt"
#: Tasks that a worker of docker-compose.yml runs at once.
CONCURRENCY = 4
ENDED_WITHIN_S = 1800


def check_backlog(stack: Stack) -> dict[str, Any]:
    say("Stopping the workers of the queue default")
    scale(stack, 0)
    eventually("backlog is parsed", lambda: stack.is_parsed("backlog"), within_s=300)
    runs = [stack.paceline("dags", "trigger", "backlog", "--run-id", f"r{number}")["run_id"] for number in range(RUNS)]
    eventually(f"{TASKS} tasks wait", lambda: waiting(stack) == TASKS, within_s=300)
    began = time.monotonic()
    scale(stack, 4)
    eventually("all four workers took tasks", lambda: len(ended_by(stack)) == 4, within_s=600)
    took = ended_by(stack)
    say("Killing a scheduler and a worker")
    # Those with number 2: `exec` goes to number 1.
    killed = {service: stack.container(service, 2) for service in ("scheduler", "worker")}
    call("docker", "kill", *killed.values())
    eventually("no more than 600 tasks wait", lambda: waiting(stack) <= 600, within_s=ENDED_WITHIN_S)
    left = waiting(stack)
    say(f"Stopping all workers but one, while {left} tasks wait")
    scale(stack, 1)
    eventually("no task waits or runs", lambda: not open_tasks(stack), within_s=ENDED_WITHIN_S)
    eventually(
        "all runs ended", lambda: all(run_state(stack, run) not in {"queued", "running"} for run in runs), within_s=ENDED_WITHIN_S
    )
    seconds = time.monotonic() - began
    result = judge(stack, runs, killed["worker"][:12])
    left_alone = stack.number_of("scheduler") == 1
    expect(left_alone, "Docker restarted a container after `docker kill`; README.md says that it does not")
    say("Starting the scheduler that was killed")
    stack.compose("up", "-d", "--no-deps", "--no-recreate", "scheduler")
    eventually("all containers are healthy again", stack.is_healthy, within_s=600)
    return {
        **result, "workers_before_the_kill": len(took), "waiting_at_scale_in": left, "seconds": round(seconds, 1),
    }  # fmt: skip


def judge(stack: Stack, runs: list[str], killed: str) -> dict[str, Any]:
    """Every run and task succeeded, each task ran once, and only tasks of the killed worker may have run twice."""
    shown = [stack.paceline("runs", "show", "backlog", run) for run in runs]
    expect({run["state"] for run in shown} == {"success"}, f"the runs are {[run['state'] for run in shown]}")
    tasks = [task for run in shown for task in run["tasks"]]
    expect(len(tasks) == TASKS, f"the runs have {len(tasks)} tasks")
    expect({task["state"] for task in tasks} == {"success"}, f"tasks are {Counter(task['state'] for task in tasks)}")
    retried = sum(task["try_number"] > 1 for task in tasks)
    expect(retried <= 2 * CONCURRENCY, f"{retried} tasks were tried again, more than the killed worker had")
    lines = [line.split() for line in written(stack)]
    hosts: dict[str, list[str]] = {}
    for task, host in lines:
        hosts.setdefault(task, []).append(host)
    expect(len(hosts) == TASKS, f"{TASKS - len(hosts)} tasks wrote no line")
    repeated = {task: found for task, found in hosts.items() if len(found) > 1}
    expect(all(killed in found for found in repeated.values()), f"tasks ran twice without a killed worker: {repeated}")
    by_worker = Counter(host for _, host in lines)
    return {"runs": len(runs), "tasks": TASKS, "by_worker": sorted(by_worker.values(), reverse=True), "retried": retried,
            "repeated": len(repeated)}  # fmt: skip


def scale(stack: Stack, workers: int) -> None:
    """Compose v1 leaves a container that was killed in its list, and may start it again."""
    stack.compose("up", "-d", "--no-deps", "--no-recreate", "--scale", f"worker={workers}", "worker")


def waiting(stack: Stack) -> int:
    return int(stack.paceline("autoscale", "--queue", "default")["waiting"])


def open_tasks(stack: Stack) -> int:
    found = stack.paceline("autoscale", "--queue", "default")
    return int(found["waiting"] + found["running"])


def run_state(stack: Stack, run: str) -> str:
    return str(stack.paceline("runs", "show", "backlog", run)["state"])


def written(stack: Stack) -> list[str]:
    """The lines of the ended tasks; none if no task has ended."""
    try:
        return stack.compose("exec", "-T", "scheduler", "cat", FILE).splitlines()
    except subprocess.CalledProcessError:
        return []


def ended_by(stack: Stack) -> Counter[str]:
    """How many tasks each container of the workers ended."""
    return Counter(line.split()[1] for line in written(stack))
