"""Each deployment gives a process that gets SIGTERM the time that its settings allow it to drain."""

import re
from typing import Any

import pytest
import yaml

from scheduler.embedded.stack import SCHEDULER_GRACE_S, WEB_MARGIN_S, stack_commands
from scheduler.embedded.supervisor import Command
from scheduler.settings.model import Worker
from scheduler.settings.sections import Web
from workers.supervision.task_stopper import CLOSING_S, REACTION_S

from .rendering import DEPLOY, containers, kustomized, pods, render
from .value_sets import VALUE_SETS

COMPOSE = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
#: Docker's time between SIGTERM and SIGKILL.
DOCKER_GRACE_S = 10.0
UNIT_OF = {
    "scheduler": "paceline-scheduler@.service", "worker": "paceline-worker@.service", "waiter": "paceline-waiter@.service",
    "web": "paceline-web@.service", "flower": "paceline-flower.service",
}  # fmt: skip


def needed_s(role: str, *, worker_grace_s: float = Worker().grace_sec) -> float:
    """The seconds in which a process of a role ends after SIGTERM, at the latest."""
    match role:
        case "worker":
            # Tasks that have not ended get SIGTERM, and SIGKILL if they ignore it. Then the worker reports them and closes.
            return worker_grace_s + REACTION_S + CLOSING_S
        case "scheduler":
            return SCHEDULER_GRACE_S
        case "web":
            return Web().drain_timeout + WEB_MARGIN_S
    return Command(name=role, argv=()).grace_sec


@pytest.mark.parametrize("grace_s", [Worker().grace_sec, 600.0])
def test_a_stack_on_one_machine_waits_until_each_process_has_drained(grace_s: float) -> None:
    commands = stack_commands(
        {}, schedulers=1, workers=[("default", 4)], waiters=1, flower=True, web=Web(), worker_grace_sec=grace_s
    )

    limits = {command.name.partition("-")[0]: command.grace_sec for command in commands}
    assert limits.keys() == UNIT_OF.keys()
    assert {role: limit for role, limit in limits.items() if limit < needed_s(role, worker_grace_s=grace_s)} == {}


@pytest.mark.parametrize("role", UNIT_OF)
def test_a_unit_waits_until_its_process_has_drained(role: str) -> None:
    unit = (DEPLOY / "systemd" / UNIT_OF[role]).read_text(encoding="utf-8")
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)

    assert float(limit) >= needed_s(role)


def test_compose_waits_until_each_process_has_drained() -> None:
    for name, service in COMPOSE.items():
        command = service.get("command", [])
        if command[:1] == ["paceline"] and command[1] != "db":
            assert seconds(service.get("stop_grace_period")) >= needed_s(command[1]), name


def seconds(period: str | None) -> float:
    if period is None:
        return DOCKER_GRACE_S
    assert period.endswith("s")
    return float(period[:-1])


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_pods_of_the_chart_wait(name: str) -> None:
    assert too_short(render(VALUE_SETS[name])) == []


@pytest.mark.parametrize("folder", ["base", "trial", "autoscaling"])
def test_the_pods_of_kustomize_wait(folder: str) -> None:
    assert too_short(kustomized(DEPLOY / "kustomize" / folder)) == []


def too_short(objects: list[dict[str, Any]]) -> list[str]:
    """The pods that Kubernetes kills before their process has drained."""
    found = []
    for pod, template in pods(objects):
        limit = template["spec"].get("terminationGracePeriodSeconds", 30)
        for container in containers(template):
            if container["name"] in UNIT_OF:
                values = {one["name"]: one.get("value") for one in container.get("env", [])}
                grace_s = float(values.get("PACELINE_WORKER_GRACE_SEC") or Worker().grace_sec)
                if limit < needed_s(container["name"], worker_grace_s=grace_s):
                    found.append(pod)
    return found


def test_the_check_finds_a_pod_without_time_to_drain() -> None:
    objects = render({})
    worker = next(template for pod, template in pods(objects) if pod == "paceline-worker-default")
    worker["spec"]["terminationGracePeriodSeconds"] = 60

    assert too_short(objects) == ["paceline-worker-default"]
