#!/usr/bin/env python3
"""`make test-compose`: build the image, run docker-compose.yml with three workers and Spark, and check a run of flights in it.

Needs Docker and Compose (the plugin, or docker-compose 1.29) and nothing but the standard library. Whatever happens, the
stack and its volumes are removed; the last line on stdout is one JSON object.
"""

import base64
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = "paceline:latest"
PROJECT = "paceline-test"
HEAVY = "spark-heavy"
HEALTHY_WITHIN_S = 300
MASTER_PAGE = "import urllib.request; print(urllib.request.urlopen('http://spark-master:8080/json/').read().decode())"
UNSIGNED = """
import urllib.error, urllib.request
try:
    print(urllib.request.urlopen('http://spark-master:6066/v1/submissions/create', b'{}', timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
RUN_WITHIN_S = 900
#: Those whose containers hold secrets and Paceline.
PACELINE_SERVICES = ("scheduler", "worker", "worker-spark", "worker-spark-heavy", "waiter", "web", "flower", "spark-master")
NODES = ["worker", "worker", "worker", "worker-spark", "worker-spark-heavy"]


def main() -> int:
    started = time.monotonic()
    try:
        result = run_stack()
    except (CheckError, subprocess.CalledProcessError) as error:
        say(f"FAILED: {error}")
        result = {"ok": False, "error": str(error)}
    print(json.dumps(result | {"seconds": round(time.monotonic() - started, 1)}))
    return 0 if result["ok"] else 1


def run_stack() -> dict[str, Any]:
    require_engine()
    with tempfile.TemporaryDirectory(prefix="paceline-compose-") as folder:
        return run_stack_in(Path(folder))


def run_stack_in(folder: Path) -> dict[str, Any]:
    stack = Stack(compose_command(), folder)
    say("Building the image")
    # The network of the host is for machines whose registries answer there only; elsewhere it changes nothing.
    build = ["docker", "build", "--network", "host", "--tag", IMAGE, str(CHECKOUT)]
    subprocess.run(build, stdout=sys.stderr, check=True)
    try:
        stack.compose("--profile", "spark", "up", "-d", "--scale", "worker=3")
        eventually("all containers are healthy", stack.is_healthy, within_s=HEALTHY_WITHIN_S)
        eventually("flights is parsed", lambda: stack.paceline("dags", "show", "flights") is not None, within_s=120)
        say("Running flights")
        run = stack.paceline("dags", "trigger", "flights", "--wait", "--timeout", str(RUN_WITHIN_S), failing=True)
        check_run(run)
        check_carriers(stack, run["run_id"])
        check_spark(stack)
        check_secrets(stack)
        check_rights(stack)
        eventually("Flower shows five workers", lambda: sorted(stack.flower_nodes()) == NODES, within_s=60)
        eventually("Flower shows the run's tasks", lambda: stack.flower_tasks() >= names(run), within_s=60)
    except BaseException:
        stack.show_logs()
        raise
    finally:
        say("Removing the stack")
        stack.compose("--profile", "spark", "down", "--volumes", "--remove-orphans", "--timeout", "60")
    return {"ok": True, "run_id": run["run_id"], "tasks": len(run["tasks"]), "workers": len(NODES)}


# What must hold ------------------------------------------------------------------------------------------------------


def check_run(run: dict[str, Any]) -> None:
    """The run succeeded, and the heavy queue's tasks, the joins among them, ran on its worker and on no other."""
    expect(run["state"] == "success", f"the run is {run['state']}: {states(run)}")
    expect({task["state"] for task in run["tasks"]} == {"success"}, f"not every task succeeded: {states(run)}")
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
    run = stack.paceline("dags", "trigger", "spark_cluster", "--wait", "--timeout", "300", failing=True)
    expect(run["state"] == "success", f"the run of spark_cluster is {run['state']}: {states(run)}")
    page = json.loads(stack.compose("exec", "-T", "spark-master", "python", "-c", MASTER_PAGE))
    expect(len(page["workers"]) == 2, f"the Spark master has {len(page['workers'])} workers, not 2")
    ended = [one["state"] for one in page["completedapps"]]
    expect(ended == ["FINISHED", "FINISHED"], f"the Spark master lists applications as {ended}, not two that finished")
    drivers = [one["state"] for one in page["completeddrivers"]]
    expect(drivers == ["FINISHED"], f"the Spark master lists drivers as {drivers}, not one that finished")


def check_secrets(stack: "Stack") -> None:
    """No process shows a secret to what the author's code can start in its container, health checks among them."""
    say("Looking for secrets as the author's code can")
    program = "/opt/paceline/dags/look_around_parts/seen.py"
    for service in PACELINE_SERVICES:
        # With an empty environment, as the processes of tasks have one without secrets.
        found = stack.compose("exec", "-T", service, "env", "-i", "/opt/venv/bin/python", program, "1").strip()
        expect(found == "", f"a program in {service} finds secrets: {found}")
    described = stack.paceline("dags", "show", "look_around")["description"]
    expect(described == "nothing", f"a DAG file finds secrets while it is read: {described}")
    run = stack.paceline("dags", "trigger", "look_around", "--wait", "--timeout", "300", failing=True)
    expect(run["state"] == "success", f"the run of look_around is {run['state']}: {states(run)}")
    for task in ("task", "waiter"):
        values = stack.paceline("tasks", "xcoms", "look_around", run["run_id"], task)
        found = [one["value"] for one in values if one["key"] == "return_value"]
        expect(found == ["nothing"], f"in look_around {task} finds secrets: {found}")


def check_rights(stack: "Stack") -> None:
    """Redis refuses what no role needs, and the Spark master a driver that is not signed."""
    for role in ("scheduler", "worker", "flower"):
        said = stack.redis(role, "PING", "FLUSHALL", "CONFIG GET *", "EVAL return 0")
        expect(said[0] == "PONG" and all(one.startswith("NOPERM") for one in said[1:]), f"Redis answers {role} with {said}")
    said = stack.compose("exec", "-T", "worker", "python", "-c", UNSIGNED).strip()
    expect(said == "403", f"the Spark master answers a driver that is not signed with {said}")


def names(run: dict[str, Any]) -> set[str]:
    """The run's tasks as Flower shows them."""
    return {f"flights.{task['task_id']}" for task in run["tasks"]}


def states(run: dict[str, Any]) -> str:
    return ", ".join(f"{task['task_id']} {task['state']}" for task in run["tasks"])


# The stack -----------------------------------------------------------------------------------------------------------


class Stack:
    """One Compose project with its own passwords, volumes and port."""

    def __init__(self, command: list[str], folder: Path) -> None:
        files = [CHECKOUT / "docker-compose.yml", with_dags_of_test(folder)]
        self._command = [*command, "--project-name", PROJECT, *(part for file in files for part in ("--file", str(file)))]
        self._port = free_port()
        self._flower_password = made_up()
        self._environment = os.environ | {
            **{name: made_up() for name in password_names()},
            "PACELINE_CORE_FERNET_KEY": f"{made_up()[:42]}A=",
            "PACELINE_FLOWER_PASSWORD": self._flower_password,
            "PACELINE_FLOWER_PORT": str(self._port),
        }

    def compose(self, *arguments: str) -> str:
        return call(*self._command, *arguments, environment=self._environment)

    def paceline(self, *arguments: str, failing: bool = False) -> Any:
        """What the CLI in a scheduler's container prints as JSON; None if it fails, unless a failed run prints one too."""
        command = [*self._command, "exec", "-T", "scheduler", "paceline", *arguments, "--json"]
        done = subprocess.run(command, env=self._environment, stdout=subprocess.PIPE, text=True, check=False)
        if failing:
            expect(done.returncode in {0, 1} and bool(done.stdout), f"{' '.join(arguments)} exited with {done.returncode}")
        return json.loads(done.stdout) if failing or done.returncode == 0 else None

    def is_healthy(self) -> bool:
        """Every container that has a health check passes it; an ended container fails the test at once."""
        health = []
        for container in self.compose("ps", "-q").split():
            state = json.loads(call("docker", "inspect", "--format", "{{json .State}}", container))
            expect(state["Status"] != "exited" or state["ExitCode"] == 0, f"container {container[:12]} ended: {state}")
            if "Health" in state:
                health.append(state["Health"]["Status"])
        return bool(health) and set(health) == {"healthy"}

    def flower_nodes(self) -> list[str]:
        """Names of the workers that Flower knows, without their hosts."""
        return [name.partition("@")[0] for name in self._flower("/api/workers?refresh=true")]

    def flower_tasks(self) -> set[str]:
        return {task["name"] for task in self._flower("/api/tasks?limit=10000").values()}

    def redis(self, role: str, *commands: str) -> list[str]:
        """What Redis answers a role, command for command. The password travels in the container's own environment."""
        words = f"REDISCLI_AUTH=$PACELINE_REDIS_{role.upper()}_PASSWORD redis-cli --user paceline_{role} --no-auth-warning"
        return [self.compose("exec", "-T", "redis", "sh", "-c", f"{words} {one}").strip() for one in commands]

    def show_logs(self) -> None:
        command = [*self._command, "logs", "--no-color", "--tail", "60"]
        subprocess.run(command, env=self._environment, stdout=sys.stderr, check=False)

    def _flower(self, path: str) -> Any:
        login = base64.b64encode(f"paceline:{self._flower_password}".encode()).decode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", headers={"Authorization": f"Basic {login}"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError as error:
            raise CheckError(f"Flower's {path} answers {error}") from error


def made_up() -> str:
    """A secret that the DAG look_around knows by its beginning; 36 bytes in base64."""
    return f"Sesame{secrets.token_hex(21)}"


def with_dags_of_test(folder: Path) -> Path:
    """A second Compose file: it mounts the DAGs of the checkout together with those beside this file."""
    shutil.copytree(CHECKOUT / "dags", folder / "dags")
    shutil.copytree(Path(__file__).parent / "dags", folder / "dags", dirs_exist_ok=True)
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    mounted = {
        service: {"volumes": [f"{folder / 'dags'}:/opt/paceline/dags:ro"]} for service in (*PACELINE_SERVICES, "spark-worker")
    }
    file = folder / "compose.json"
    file.write_text(json.dumps({"services": mounted}), encoding="utf-8")
    return file


def require_engine() -> None:
    address = os.environ.get("DOCKER_HOST", "its default socket")
    expect(shutil.which("docker") is not None, "there is no `docker` command: install Docker.")
    answer = subprocess.run(["docker", "info"], capture_output=True, check=False)
    expect(answer.returncode == 0, f"no Docker engine answers at {address}: start one, or set DOCKER_HOST.")


def password_names() -> list[str]:
    """The passwords that docker-compose.yml asks for."""
    example = (CHECKOUT / "config/.env.example").read_text(encoding="utf-8")
    return re.findall(r"^(\w+_PASSWORD)=$", example, re.MULTILINE)


def compose_command() -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
            return command
    raise CheckError("there is no Docker Compose: install its plugin, or docker-compose 1.29.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Waiting, calling, telling -------------------------------------------------------------------------------------------


class CheckError(Exception):
    """Something that must hold does not."""


def expect(holds: bool, sentence: str) -> None:
    if not holds:
        raise CheckError(sentence)


def eventually(what: str, holds: Callable[[], bool], *, within_s: float) -> None:
    say(f"Waiting until {what}")
    deadline = time.monotonic() + within_s
    while not holds():
        expect(time.monotonic() < deadline, f"not within {within_s:g} s: {what}")
        time.sleep(1)


def call(*command: str, environment: dict[str, str] | None = None) -> str:
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
