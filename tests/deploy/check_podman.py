#!/usr/bin/env python3
"""Run the pods of the chart with Podman, which needs no cluster, and the flights pipeline in them.

usage: check_podman.py [PODMAN]. Needs the images localhost/paceline and localhost/paceline-slim in Podman, with the DAG files of
dags/ in /opt/paceline/dags, and images for PostgreSQL and Redis. Prints one JSON object; exits 1 if the run fails.

Podman runs Pods, ConfigMaps and PersistentVolumeClaims, with one replica of each Deployment. It has no Services, Jobs,
StatefulSets, PodDisruptionBudgets, NetworkPolicies, Ingresses or custom resources. So, here:
* pods use the network of the host, and servers are at 127.0.0.1;
* Secrets are ConfigMaps, and a StatefulSet and a Job are Pods;
* probes are left out: Podman runs them with curl, which the images do not have.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from deploy.rendering import DEPLOY, Object, render

PODMAN = sys.argv[1] if len(sys.argv) > 1 else "podman"
POSTGRES, REDIS = 55921, 56921
VALUES: Object = {
    "image": {"repository": "localhost/paceline", "tag": "latest", "pullPolicy": "Never"},
    "slimImage": {"repository": "localhost/paceline-slim", "tag": "latest", "pullPolicy": "Never"},
    "postgres": {"enabled": True},
    "redis": {"enabled": True},
    "web": {"port": 58921},
    "persistence": {name: {"accessMode": "ReadWriteOnce"} for name in ("data", "logs")},
    "scheduler": {"healthPort": 58922},
    "waiter": {"healthPort": 58923},
    "workers": {name: {"healthPort": port} for name, port in (("default", 58924), ("spark", 58925), ("spark-heavy", 58926))},
}
LEFT_OUT = {"Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pods.yaml"
        servers, migrate, rest = pods()
        try:
            play(file, servers)
            eventually(
                lambda: run("exec", "paceline-postgres-pod-postgres", "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(POSTGRES)),
                120,
            )
            play(file, migrate)
            eventually(lambda: run("wait", "--condition", "exited", "paceline-migrate-migrate"), 120)
            play(file, rest)
            scheduler = "paceline-scheduler-pod-scheduler"
            eventually(lambda: run("exec", scheduler, "paceline", "dags", "show", "flights", "--json"), 180)
            found = run("exec", scheduler, "paceline", "dags", "trigger", "flights", "--wait", "--timeout", "900", "--json")
            states = sorted({task["state"] for task in json.loads(found)["tasks"]})
            names = run("ps", "--format", "{{.Names}}").split()
            print(
                json.dumps(
                    {"ok": states == ["success"], "states": states, "tasks": len(json.loads(found)["tasks"]), "containers": names}
                )
            )
            return 0 if states == ["success"] else 1
        except BaseException:
            for name in run("ps", "-a", "--format", "{{.Names}}").split():
                subprocess.run([PODMAN, "logs", "--tail", "20", name], stdout=sys.stderr, check=False)
            raise
        finally:
            for one in run("pod", "ps", "-q").split():
                run("pod", "rm", "-f", "-t", "20", one)


def pods() -> tuple[list[Object], list[Object], list[Object]]:
    """The servers, the migration, and the rest, as Podman runs them."""
    rendered = [one for one in render(VALUES) if one["kind"] not in LEFT_OUT]
    secrets = json.loads(subprocess.run(
        [sys.executable, str(DEPLOY / "secrets"), "--postgres", f"127.0.0.1:{POSTGRES}", "--redis", f"127.0.0.1:{REDIS}"],
        capture_output=True, text=True, check=True).stdout)["items"]  # fmt: skip
    shared = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": one["metadata"], "data": one["stringData"]} for one in secrets]
    shared += [one for one in rendered if one["kind"] == "ConfigMap"]
    claims = [one for one in rendered if one["kind"] == "PersistentVolumeClaim"]
    servers, migrate, rest = list(shared), list(shared), [*shared, *claims]
    for one in rendered:
        if one["kind"] not in {"Deployment", "StatefulSet", "Job"}:
            continue
        component = one["metadata"]["labels"]["app.kubernetes.io/component"]
        target = migrate if one["kind"] == "Job" else servers if component in {"postgres", "redis"} else rest
        for claim in one["spec"].get("volumeClaimTemplates", []):
            target.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
            one["spec"]["template"]["spec"]["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": "data"}})
        name = "paceline-migrate" if one["kind"] == "Job" else f"{one['metadata']['name']}-pod"
        target.append(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": for_podman(one["spec"]["template"]["spec"])}
        )
    return servers, migrate, rest


def for_podman(spec: Object) -> Object:
    spec["hostNetwork"] = True
    spec.pop("topologySpreadConstraints", None)
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container.pop(probe, None)
        for source in container.get("envFrom", []):
            source["configMapRef"] = source.pop("secretRef")
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                variable["valueFrom"]["configMapKeyRef"] = variable["valueFrom"].pop("secretKeyRef")
        if container["name"] == "postgres":
            container["args"] = ["-p", str(POSTGRES)]
        if container["name"] == "redis":
            container["command"][2] = container["command"][2].replace("redis-server -", f"redis-server - --port {REDIS}")
    return spec


def play(file: Path, objects: list[Any]) -> None:
    file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    subprocess.run([PODMAN, "kube", "play", "--network=host", str(file)], check=True, stdout=sys.stderr)


def run(*arguments: str) -> str:
    done = subprocess.run([PODMAN, *arguments], capture_output=True, text=True, check=False, env=os.environ)
    return done.stdout.strip() or "done" if done.returncode == 0 else ""


def eventually(found: Any, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not found():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
