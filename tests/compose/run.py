#!/usr/bin/env python3
"""`make test-compose`: build the image, run docker-compose.yml with three workers and Spark, check a run of flights in it, and then
scale the workers while 2,000 tasks wait and containers are killed.

usage: run.py [flights] [backlog] [autoscale]. Without arguments, it checks the first two.
Needs Docker and Compose (the plugin, or docker-compose 1.29) and nothing but the standard library. Whatever happens, the
stack and its volumes are removed; the last line on stdout is one JSON object.
"""

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoscale import check_autoscale
from backlog import check_backlog
from stack import (
    CHECKOUT,
    PACELINE_SERVICES,
    PROGRAMS,
    CheckError,
    Stack,
    call,
    compose_command,
    eventually,
    expect,
    require_engine,
    say,
)  # fmt: skip

IMAGE, SLIM_IMAGE = "paceline:latest", "paceline-slim:latest"
HEAVY = "spark-heavy"
# Limits of waits, for a machine with two cores that has other work too.
HEALTHY_WITHIN_S = 900
PARSED_WITHIN_S = 300
SHOWN_WITHIN_S = 180
MASTER_PAGE = "import urllib.request; print(urllib.request.urlopen('http://spark-master:8080/json/').read().decode())"
UNSIGNED = """
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen('http://spark-master:6066/v1/submissions/create', b'{}', timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
RUN_WITHIN_S = 1800
NODES = ["worker", "worker", "worker", "worker-spark", "worker-spark-heavy"]


def main() -> int:
    started = time.monotonic()
    signal.signal(signal.SIGTERM, stopped)
    result: dict[str, Any] = {"ok": False}
    try:
        run_stack(sys.argv[1:] or DEFAULT, result)
        result["ok"] = True
    except (CheckError, subprocess.CalledProcessError) as error:
        say(f"FAILED: {error}")
        result["error"] = str(error)
    except Exception as error:
        traceback.print_exc()
        result["error"] = repr(error)
    print(json.dumps(result | {"seconds": round(time.monotonic() - started, 1)}))
    return 0 if result["ok"] else 1


def stopped(*_: object) -> None:
    raise CheckError("stopped by SIGTERM")


def run_stack(parts: list[str], result: dict[str, Any]) -> None:
    """Run the parts, and put the results of each into `result`."""
    expect(set(parts) <= PARTS.keys(), f"{parts}: the parts are {', '.join(PARTS)}.")
    require_engine()
    with tempfile.TemporaryDirectory(prefix="paceline-compose-") as folder:
        run_stack_in(Path(folder), parts, result)


def run_stack_in(folder: Path, parts: list[str], result: dict[str, Any]) -> None:
    stack = Stack(compose_command(), folder)
    result["image_mb"] = {IMAGE: build(IMAGE), SLIM_IMAGE: build(SLIM_IMAGE, "--target", "slim")}
    try:
        if "flights" in parts:
            stack.compose("--profile", "spark", "up", "-d", "--scale", "worker=3")
        else:
            stack.compose("up", "-d", "scheduler", "worker")
        eventually("all containers are healthy", stack.is_healthy, within_s=HEALTHY_WITHIN_S)
        for part in parts:
            result |= PARTS[part](stack)
    except BaseException:
        stack.show_logs()
        raise
    finally:
        say("Removing the stack")
        stack.compose("--profile", "spark", "down", "--volumes", "--remove-orphans", "--timeout", "60")


def build(image: str, *options: str) -> int:
    """Build an image of the Dockerfile, and return its size in megabytes."""
    say(f"Building {image}")
    # The network of the host is for machines whose registries answer there only; elsewhere it changes nothing.
    command = ["docker", "build", "--network", "host", *options, "--tag", image, str(CHECKOUT)]
    subprocess.run(command, stdout=sys.stderr, check=True)
    return round(int(call("docker", "image", "inspect", "--format", "{{.Size}}", image)) / 1e6)


def check_flights(stack: Stack) -> dict[str, Any]:
    eventually("flights is parsed", lambda: stack.is_parsed("flights"), within_s=PARSED_WITHIN_S)
    say("Running flights")
    run = stack.paceline("dags", "trigger", "flights", "--wait", "--timeout", str(RUN_WITHIN_S), failing=True)
    check_run(run)
    check_carriers(stack, run["run_id"])
    check_spark(stack)
    check_secrets(stack)
    check_rights(stack)
    eventually("Flower shows five workers", lambda: sorted(stack.flower_nodes()) == NODES, within_s=SHOWN_WITHIN_S)
    eventually("Flower shows the run's tasks", lambda: stack.flower_tasks() >= names(run), within_s=SHOWN_WITHIN_S)
    return {"run_id": run["run_id"], "tasks": len(run["tasks"]), "workers": len(NODES)}


# The checks ----------------------------------------------------------------------------------------------------------


def check_run(run: dict[str, Any]) -> None:
    """The run succeeded, and the heavy queue's tasks, the joins among them, ran on its worker and on no other."""
    expect(run["state"] == "success", f"the run is {run['state']}: {states(run)}")
    others = {task["task_id"]: task["state"] for task in run["tasks"] if task["state"] != "success"}
    expect(others == {"publish": "skipped"}, f"not every task succeeded: {states(run)}")
    heavy = {task["task_id"] for task in run["tasks"] if task["queue"] == HEAVY}
    on_heavy = {task["task_id"] for task in run["tasks"] if re.match(r"worker-spark-heavy[@#]", task["worker"])}
    expect("enrich" in heavy, f"enrich is not on the queue {HEAVY}, only {sorted(heavy)}")
    expect(heavy == on_heavy, f"of the queue {HEAVY} are {sorted(heavy)}, its worker ran {sorted(on_heavy)}")


def check_carriers(stack: "Stack", run_id: str) -> None:
    """The result is on the data volume."""
    path = f"/var/lib/paceline/data/flights/{run_id}/carrier_delays.csv"
    lines = stack.compose("exec", "-T", "worker", "cat", path).splitlines()
    expect(len(lines) == 17, f"{path} has {len(lines)} lines, not a header and 16 carriers")


def check_spark(stack: "Stack") -> None:
    """An application runs to its end beside its worker and in the standalone cluster, whose master lists it."""
    say("Submitting to the Spark cluster")
    run = stack.paceline("dags", "trigger", "spark_cluster", "--wait", "--timeout", str(RUN_WITHIN_S), failing=True)
    expect(run["state"] == "success", f"the run of spark_cluster is {run['state']}: {states(run)}")

    def page() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(stack.compose("exec", "-T", "spark-master", "python", "-c", MASTER_PAGE))
        return found

    eventually("the Spark master lists no running application", lambda: page()["activeapps"] == [], within_s=SHOWN_WITHIN_S)
    shown = page()
    expect(len(shown["workers"]) == 2, f"the Spark master has {len(shown['workers'])} workers, not 2")
    ended = [app["state"] for app in shown["completedapps"]]
    expect(ended == ["FINISHED", "FINISHED"], f"the Spark master lists applications as {ended}, not two that finished")
    drivers = [driver["state"] for driver in shown["completeddrivers"]]
    expect(drivers == ["FINISHED"], f"the Spark master lists drivers as {drivers}, not one that finished")


def check_secrets(stack: "Stack") -> None:
    """No process shows a secret to programs that author code can start in its container, health checks included."""
    say("Looking for secrets as the author's code can")
    program = f"{PROGRAMS}/look_around_parts/seen.py"
    for service in PACELINE_SERVICES:
        # With an empty environment, as the processes of tasks have one without secrets.
        found = stack.compose("exec", "-T", service, "env", "-i", "/opt/venv/bin/python", program, "1").strip()
        expect(found == "", f"a program in {service} finds secrets: {found}")
    described = stack.paceline("dags", "show", "look_around")["description"]
    expect(described == "nothing", f"a DAG file finds secrets while it is read: {described}")
    run = stack.paceline("dags", "trigger", "look_around", "--wait", "--timeout", str(RUN_WITHIN_S), failing=True)
    expect(run["state"] == "success", f"the run of look_around is {run['state']}: {states(run)}")
    for task in ("task", "waiter"):
        values = stack.paceline("tasks", "xcoms", "look_around", run["run_id"], task)
        found = [value["value"] for value in values if value["key"] == "return_value"]
        expect(found == ["nothing"], f"in look_around {task} finds secrets: {found}")


def check_rights(stack: "Stack") -> None:
    """Redis refuses commands that no role needs, and the Spark master a driver that is not signed."""
    for role in ("scheduler", "worker", "flower"):
        responses = stack.redis(role, "PING", "FLUSHALL", "CONFIG GET *", "EVAL return 0")
        expect(
            responses[0] == "PONG" and all(one.startswith("NOPERM") for one in responses[1:]),
            f"Redis answers {role} with {responses}",
        )
    responses = stack.compose("exec", "-T", "worker", "python", "-c", UNSIGNED).strip()
    expect(responses == "403", f"the Spark master answers a driver that is not signed with {responses}")


def names(run: dict[str, Any]) -> set[str]:
    """The run's tasks as Flower shows them."""
    return {f"flights.{task['task_id']}" for task in run["tasks"]}


def states(run: dict[str, Any]) -> str:
    return ", ".join(f"{task['task_id']} {task['state']}" for task in run["tasks"])


PARTS: dict[str, Callable[[Stack], dict[str, Any]]] = {
    "flights": check_flights,
    "backlog": lambda stack: {"backlog": check_backlog(stack)},
    "autoscale": lambda stack: {"autoscale": check_autoscale(stack)},
}
DEFAULT = ["flights", "backlog"]

if __name__ == "__main__":
    sys.exit(main())
