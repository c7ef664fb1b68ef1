"""The stack of docker-compose.yml as a Compose project of its own, and helpers that its checks share."""

import base64
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PROJECT = "paceline-test"
#: Where the services have the DAGs of the test and their programs.
PROGRAMS = "/opt/paceline/programs"
#: The services whose containers have secrets and Paceline.
PACELINE_SERVICES = ("scheduler", "worker", "worker-spark", "worker-spark-heavy", "waiter", "web", "flower", "spark-master")


class Stack:
    """One Compose project with its own passwords, volumes and port."""

    def __init__(self, command: list[str], folder: Path) -> None:
        files = [CHECKOUT / "docker-compose.yml", with_dags_of_test(folder)]
        self._command = [*command, "--project-name", PROJECT, *(part for file in files for part in ("--file", str(file)))]
        self._port = free_port()
        self._flower_password = generated()
        self.environment = os.environ | {
            **{name: generated() for name in password_names()},
            "PACELINE_CORE_FERNET_KEY": f"{generated()[:42]}A=",
            "PACELINE_FLOWER_PASSWORD": self._flower_password,
            "PACELINE_FLOWER_PORT": str(self._port),
            "PACELINE_WEB_PORT": str(free_port()),
            # For programs that call Compose themselves, such as deploy/compose-autoscale.
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": os.pathsep.join(map(str, files)),
        }

    def compose(self, *arguments: str) -> str:
        return call(*self._command, *arguments, environment=self.environment)

    def paceline(self, *arguments: str, failing: bool = False) -> Any:
        """The JSON output of the CLI in a scheduler's container. With `failing`, the output of a failed command too."""
        done = self._cli(*arguments)
        succeeded = done.returncode in ({0, 1} if failing else {0})
        expect(
            succeeded and bool(done.stdout), f"`paceline {' '.join(arguments)}` printed no result and exited with {done.returncode}"
        )
        return json.loads(done.stdout)

    def is_parsed(self, dag: str) -> bool:
        """Whether the schedulers have stored a DAG."""
        return self._cli("dags", "show", dag).returncode == 0

    def _cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self._command, "exec", "-T", "scheduler", "paceline", *arguments, "--json"]
        return subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=False)

    def container(self, service: str, number: int) -> str:
        """The ID of a container of a service that runs."""
        found = running({"service": service, "container-number": str(number)})
        expect(len(found) == 1, f"{len(found)} containers are number {number} of the service {service}")
        return found[0]

    def number_of(self, service: str) -> int:
        """How many containers of a service run."""
        return len(running({"service": service}))

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
        """Names of the workers in Flower, without their hosts."""
        return [name.partition("@")[0] for name in self._flower("/api/workers?refresh=true")]

    def flower_tasks(self) -> set[str]:
        return {task["name"] for task in self._flower("/api/tasks?limit=10000").values()}

    def redis(self, role: str, *commands: str) -> list[str]:
        """The responses of Redis to a role, command for command. The password travels in the container's own environment."""
        words = f"REDISCLI_AUTH=$PACELINE_REDIS_{role.upper()}_PASSWORD redis-cli --user paceline_{role} --no-auth-warning"
        return [self.compose("exec", "-T", "redis", "sh", "-c", f"{words} {one}").strip() for one in commands]

    def show_logs(self) -> None:
        command = [*self._command, "logs", "--no-color", "--tail", "60"]
        subprocess.run(command, env=self.environment, stdout=sys.stderr, check=False)

    def _flower(self, path: str) -> Any:
        login = base64.b64encode(f"paceline:{self._flower_password}".encode()).decode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", headers={"Authorization": f"Basic {login}"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except OSError as error:
            raise CheckError(f"Flower's {path} answers {error}") from error


def running(labels: dict[str, str]) -> list[str]:
    """The IDs of containers of this project with these labels of Compose."""
    labels = {"project": PROJECT} | labels
    filters = [part for name, value in labels.items() for part in ("--filter", f"label=com.docker.compose.{name}={value}")]
    return call("docker", "ps", "--quiet", "--no-trunc", *filters).split()


def generated() -> str:
    """A secret that the DAG look_around recognizes by its beginning; 36 bytes in base64."""
    return f"Sesame{secrets.token_hex(21)}"


def with_dags_of_test(folder: Path) -> Path:
    """A second Compose file: schedulers get the DAGs of the checkout together with those beside this file.

    The programs of these DAGs are in every service too, but not where a DAG file would be found.
    """
    shutil.copytree(CHECKOUT / "dags", folder / "dags")
    shutil.copytree(Path(__file__).parent / "dags", folder / "dags", dirs_exist_ok=True)
    for place in (folder, *folder.rglob("*")):
        place.chmod(0o755 if place.is_dir() else 0o644)
    mounted = {service: {"volumes": [f"{folder / 'dags'}:{PROGRAMS}:ro"]} for service in PACELINE_SERVICES}
    mounted["scheduler"]["volumes"].append(f"{folder / 'dags'}:/opt/paceline/dags:ro")
    file = folder / "compose.json"
    file.write_text(json.dumps({"services": mounted}), encoding="utf-8")
    return file


def require_engine() -> None:
    address = os.environ.get("DOCKER_HOST", "its default socket")
    expect(shutil.which("docker") is not None, "there is no `docker` command: install Docker.")
    answer = subprocess.run(["docker", "info"], capture_output=True, check=False)
    expect(answer.returncode == 0, f"no Docker engine answers at {address}: start one, or set DOCKER_HOST.")


def password_names() -> list[str]:
    """The passwords that docker-compose.yml requires."""
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
