"""deploy/secrets has the keys that the chart and the kustomize folders need, and nothing else."""

import json
import os
import subprocess
import sys

from scheduler.settings import Settings

from .rendering import DEPLOY, containers, pods, render
from .value_sets import VALUE_SETS


def secrets(*arguments: str, **environment: str) -> dict[str, dict[str, str]]:
    done = subprocess.run([sys.executable, str(DEPLOY / "secrets"), *arguments], capture_output=True, text=True, check=True,
                          env={"PATH": os.environ["PATH"], **environment})  # fmt: skip
    return {item["metadata"]["name"]: item["stringData"] for item in json.loads(done.stdout)["items"]}


def test_every_secret_and_key_that_a_pod_needs_is_there() -> None:
    found = secrets()
    for pod, template in pods(render(VALUE_SETS["trial"] | {"flower": {"enabled": True}})):
        for container in containers(template):
            for source in container.get("envFrom", []):
                assert source["secretRef"]["name"] in found, pod
            for variable in container.get("env", []):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert reference["key"] in found[reference["name"]], pod


def test_each_role_accepts_its_environment_and_sees_no_password_of_another() -> None:
    found = secrets()

    scheduler, worker, web = (Settings.load(found[f"paceline-{role}"]) for role in ("scheduler", "worker", "web"))

    assert scheduler.database_url.startswith("postgresql://paceline_scheduler:")
    assert worker.worker_database_url.startswith("postgresql://paceline_worker:")
    assert web.web_database_url.startswith("postgresql://paceline_web:")
    assert found["paceline-migrate"]["PACELINE_WORKER_DATABASE_URL"] == worker.worker_database_url
    assert "PACELINE_DATABASE_URL" not in found["paceline-worker"] | found["paceline-web"] | found["paceline-flower"]
    password = worker.broker_url.split(":")[2].partition("@")[0]
    assert found["paceline-redis"]["PACELINE_REDIS_WORKER_PASSWORD"] == password
    assert password not in json.dumps([found["paceline-scheduler"], found["paceline-web"], found["paceline-flower"]])


def test_other_servers() -> None:
    found = secrets(
        PACELINE_DATABASE_OWNER_URL="postgresql://o:p@db:5433/other?sslmode=require", PACELINE_BROKER_URL="rediss://:s@r:1/2"
    )

    assert found["paceline-scheduler"]["PACELINE_DATABASE_URL"].endswith("@db:5433/other?sslmode=require")
    assert {one["PACELINE_BROKER_URL"] for name, one in found.items() if "PACELINE_BROKER_URL" in one} == {"rediss://:s@r:1/2"}
