"""deploy/secrets has the keys that the chart and the kustomize folders need, and nothing else."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import yaml

from scheduler.settings import Settings

from .rendering import DEPLOY, containers, kustomized, pods, render
from .value_sets import VALUE_SETS

FERNET = "PACELINE_CORE_FERNET_KEY"


def secrets(*arguments: str, **environment: str) -> dict[str, dict[str, str]]:
    # Without a PATH there is no kubectl: the cluster of the developer plays no part, and kubectl leaves no cache here.
    done = subprocess.run([sys.executable, str(DEPLOY / "secrets"), *arguments], capture_output=True, text=True, check=True,
                          env={"PATH": ""} | environment)  # fmt: skip
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


#: A program with the name of kubectl, for a cluster that has the Secrets of a file.
KUBECTL = """#!{python}
import sys
if sys.argv[1] == "get":
    assert sys.argv[-2:] == ["-n", "pipelines"]
    print(open({file!r}).read())
"""


def test_a_second_run_keeps_the_passwords_and_the_encryption_key(tmp_path: Path) -> None:
    first = secrets("--namespace", "pipelines")
    cluster, program = tmp_path / "cluster.json", tmp_path / "kubectl"
    stored = [
        {
            "metadata": {"name": name},
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
        }
        for name, values in first.items()
    ]
    cluster.write_text(json.dumps({"kind": "List", "items": stored}), encoding="utf-8")
    program.write_text(KUBECTL.format(python=sys.executable, file=str(cluster)), encoding="utf-8")
    program.chmod(0o755)
    path = str(tmp_path)

    assert secrets("--namespace", "pipelines", PATH=path) == first
    moved = secrets("--namespace", "pipelines", PATH=path, PACELINE_DATABASE_OWNER_URL="postgresql://o:p@db/other")
    for role, key in (("scheduler", "PACELINE_DATABASE_URL"), ("worker", "PACELINE_WORKER_DATABASE_URL")):
        before = first[f"paceline-{role}"]
        assert moved[f"paceline-{role}"] == before | {key: before[key].replace("paceline-postgres:5432/paceline", "db/other")}
    assert secrets("--namespace", "pipelines", PATH=path, PACELINE_CORE_FERNET_KEY="mine")["paceline-web"][FERNET] == "mine"

    cluster.unlink()
    command = [sys.executable, str(DEPLOY / "secrets"), "--namespace", "pipelines"]
    failed = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (1, "") and "cannot read the Secrets" in failed.stderr


#: The commands of `paceline` that decrypt variables and connections, or derive the key of logins from it. The autoscaler runs no
#: user code and has the Secret of schedulers.
DECRYPTING = {"scheduler", "worker", "waiter", "web", "autoscale"}


def test_only_the_roles_that_decrypt_get_the_encryption_key() -> None:
    having = {name for name, values in secrets().items() if FERNET in values}
    objects = [render(VALUE_SETS[name]) for name in ("everything", "flower", "trial", "autoscaling")]
    objects += [kustomized(folder) for folder in (DEPLOY / "kustomize").iterdir() if folder.is_dir()]
    for pod, template in (pair for one in objects for pair in pods(one)):
        for container in template["spec"]["containers"]:  # those of the start run no user code
            given = any(source["secretRef"]["name"] in having for source in container.get("envFrom", []))
            given |= any(
                variable.get("valueFrom", {}).get("secretKeyRef", {}).get("key") == FERNET for variable in container.get("env", [])
            )
            assert given == (_role(container.get("args") or container.get("command") or []) in DECRYPTING), (pod, container["name"])

    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    assert {name for name, service in compose.items() if FERNET in service.get("environment", {})} == {
        name for name, service in compose.items() if _role(service.get("command", [])) in DECRYPTING
    }

    for unit in (DEPLOY / "systemd").glob("*.service"):
        lines = unit.read_text(encoding="utf-8").splitlines()
        files = [line.rpartition("/")[2] for line in lines if line.startswith("EnvironmentFile=/")]
        given = any(f"{FERNET}=" in (DEPLOY / "systemd" / file).read_text(encoding="utf-8") for file in files)
        command = next(line for line in lines if line.startswith("ExecStart=")).split()
        assert given == (command[1] in DECRYPTING), unit.name


def _role(command: list[str] | str) -> str:
    """The command of `paceline` that a container runs; empty for another program."""
    return command[1] if isinstance(command, list) and len(command) > 1 and command[0].endswith("paceline") else ""
