#!/usr/bin/env python3
"""Run the pods of the chart with Podman, which needs no cluster, and the flights pipeline in them.

usage: check_podman.py [PODMAN]. Needs the images localhost/paceline and localhost/paceline-slim in Podman, with the DAG files of
dags/ in /opt/paceline/dags, localhost/postgres:17 and localhost/redis:7, and helm, or its path in HELM. Prints one JSON object;
exits 1 if the run fails.

Podman runs Pods, ConfigMaps and PersistentVolumeClaims, with one replica of each Deployment; docs/how-to/kubernetes.md names what
it cannot run. So, here:
* pods use the network of the host, and servers are at 127.0.0.1, because there is no DNS of Services; so pods have the name of the
  host, and each worker gets the name of its pod with --name;
* the Secrets of deploy/secrets are ConfigMaps, and the StatefulSet, the Job and the Deployments are Pods;
* probes are left out: Podman runs them with curl, which the images do not have. `paceline doctor` checks the same instead;
* the servers run as root, because the images of this test may have other users than the public ones; a container before
  PostgreSQL gives it its folders.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
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
    "postgres": {"enabled": True, "image": "localhost/postgres:17"},
    "redis": {"enabled": True, "image": "localhost/redis:7"},
    "web": {"port": 58921},
    "scheduler": {"healthPort": 58922},
    "waiter": {"healthPort": 58923},
    "workers": {name: {"healthPort": port} for name, port in (("default", 58924), ("spark", 58925), ("spark-heavy", 58926))},
}
#: Objects that Podman ignores or rejects.
NOT_RUN = {"Service", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"}
POD_OF = {"Deployment", "StatefulSet", "Job"}
SCHEDULER = "paceline-scheduler-pod-scheduler"
RUN_WITHIN_S = 1800


def main() -> int:
    servers, migrate, rest = pods()
    everything = [*servers, *migrate, *rest]
    result: dict[str, Any] = {"ok": False}
    try:
        with tempfile.TemporaryDirectory() as folder:
            result |= run_pods(Path(folder) / "pods.yaml", servers, migrate, rest)
    except BaseException:
        for name in output("ps", "-a", "--format", "{{.Names}}").split():
            print(f"== {name}", file=sys.stderr, flush=True)
            subprocess.run([PODMAN, "logs", "--tail", "20", name], stdout=sys.stderr, check=False)
        raise
    finally:
        print(json.dumps(result), flush=True)
        for name in [one["metadata"]["name"] for one in everything if one["kind"] == "Pod"]:
            output("pod", "rm", "--force", "--time", "20", name)
        for name in volumes_of(everything):
            output("volume", "rm", "--force", name)
    return 0 if result["ok"] else 1


def run_pods(file: Path, servers: list[Object], migrate: list[Object], rest: list[Object]) -> dict[str, Any]:
    play(file, servers)
    postgres = "paceline-postgres-pod-postgres"
    eventually(lambda: succeeds("exec", postgres, "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(POSTGRES)), 300)
    play(file, migrate)
    code = output("wait", "paceline-migrate-migrate")
    if code != "0":
        raise RuntimeError(f"the migration exited with {code}")
    play(file, rest)
    eventually(lambda: succeeds("exec", SCHEDULER, "paceline", "dags", "show", "flights", "--json"), 600)
    print("running flights", file=sys.stderr, flush=True)
    printed = output(
        "exec", SCHEDULER, "paceline", "dags", "trigger", "flights", "--wait", "--timeout", str(RUN_WITHIN_S), "--json"
    )
    run = json.loads(printed)
    healthy = {name: healthy_role(name) for name in running() if not name.startswith(("paceline-postgres", "paceline-redis"))}
    states = Counter(task["state"] for task in run["tasks"])
    return {
        "ok": run["state"] == "success" and set(states) == {"success"} and all(healthy.values()),
        "state": run["state"], "tasks": dict(states), "healthy": healthy, "not_run": sorted(NOT_RUN),
    }  # fmt: skip


def running() -> list[str]:
    """The containers of our pods, without those that hold the pods."""
    names = output("ps", "--format", "{{.Names}}").split()
    return [name for name in names if name.startswith("paceline-") and not name.endswith("-infra")]


def healthy_role(container: str) -> bool:
    """The request of the readiness probe."""
    role = container.rpartition("-")[2]
    if role == "web":
        port = VALUES["web"]["port"]
        code = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/alive', timeout=10)"
        return succeeds("exec", container, "python", "-c", code)
    return succeeds("exec", container, "paceline", "doctor", "--role", role)


def pods() -> tuple[list[Object], list[Object], list[Object]]:
    """The servers, the migration, and the rest, as Podman runs them."""
    rendered = [resource for resource in render(VALUES) if resource["kind"] not in NOT_RUN]
    secrets = json.loads(subprocess.run(
        [sys.executable, str(DEPLOY / "secrets"), "--postgres", f"127.0.0.1:{POSTGRES}", "--redis", f"127.0.0.1:{REDIS}"],
        capture_output=True, text=True, check=True).stdout)["items"]  # fmt: skip
    shared = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": secret(one["metadata"]["name"])}, "data": one["stringData"]}
        for one in secrets
    ]
    shared += [resource for resource in rendered if resource["kind"] == "ConfigMap"]
    claims = [resource for resource in rendered if resource["kind"] == "PersistentVolumeClaim"]
    servers, migrate, rest = list(shared), [*shared, *claims], list(shared)
    for one in rendered:
        if one["kind"] not in POD_OF:
            continue
        component = one["metadata"]["labels"]["app.kubernetes.io/component"]
        target = migrate if one["kind"] == "Job" else servers if component in {"postgres", "redis"} else rest
        name = "paceline-migrate" if one["kind"] == "Job" else f"{one['metadata']['name']}-pod"
        spec = one["spec"]["template"]["spec"]
        for claim in one["spec"].get("volumeClaimTemplates", []):
            claim["metadata"]["name"] = f"{name}-{claim['metadata']['name']}"
            target.append({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
            spec["volumes"].append({"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}})
        # Init containers run before each start of the pod, as in a cluster.
        annotations = {"io.podman.annotations.init.container.type": "always"}
        metadata = {"name": name, "labels": one["metadata"]["labels"], "annotations": annotations}
        target.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": for_podman(name, spec)})
    return servers, migrate, rest


def secret(name: str) -> str:
    """The name of the ConfigMap for a Secret. The servers have Secrets and ConfigMaps of the same names."""
    return f"{name}-secret"


def for_podman(pod: str, spec: Object) -> Object:
    spec["hostNetwork"] = True
    spec.pop("topologySpreadConstraints", None)
    # A JVM starts only if the name of its host has an address. In a cluster, the kubelet sees to that.
    spec["hostname"] = socket.gethostname()
    # With "Always", Podman would start an init container again whenever it has ended.
    spec["restartPolicy"] = "OnFailure"
    owned: list[Object] = []
    # To Podman, an emptyDir is a volume with the name that it has in the pod, and pods would share it.
    own = {volume["name"] for volume in spec["volumes"] if "emptyDir" in volume}
    for volume in spec["volumes"]:
        if volume["name"] in own:
            volume["name"] = f"{pod}-{volume['name']}"
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            container.pop(probe, None)
        # Podman publishes every port, which it cannot on the network of the host.
        container.pop("ports", None)
        for mount in container.get("volumeMounts", []):
            if mount["name"] in own:
                mount["name"] = f"{pod}-{mount['name']}"
        for source in container.get("envFrom", []):
            source["configMapRef"] = {"name": secret(source.pop("secretRef")["name"])}
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                key = variable["valueFrom"].pop("secretKeyRef")
                variable["valueFrom"]["configMapKeyRef"] = {**key, "name": secret(key["name"])}
        if container["name"] == "worker":
            container["args"] += ["--name", pod]
        if container["name"] in {"postgres", "redis"}:
            spec.pop("securityContext", None)
            container.pop("securityContext", None)
        if container["name"] == "postgres":
            container["args"] = ["postgres", "-p", str(POSTGRES)]
            owned = [mount for mount in container["volumeMounts"] if mount["mountPath"] != "/tmp"]
        if container["name"] == "redis":
            container["command"][2] = container["command"][2].replace("redis-server -", f"redis-server - --port {REDIS}")
    if owned:
        spec["initContainers"] = [own_folders(owned)]
    return spec


def own_folders(mounts: list[Object]) -> Object:
    """A container that gives the volumes of PostgreSQL to its user, as fsGroup does in a cluster. In Podman they belong to root."""
    folders = [mount["mountPath"] for mount in mounts]
    command = ["chown", "postgres", *folders]
    return {"name": "own-folders", "image": VALUES["postgres"]["image"], "command": command, "volumeMounts": mounts}


def volumes_of(objects: list[Object]) -> set[str]:
    """The names that Podman gives to the volumes of these objects."""
    found = {resource["metadata"]["name"] for resource in objects if resource["kind"] == "PersistentVolumeClaim"}
    for volume in (volume for resource in objects if resource["kind"] == "Pod" for volume in resource["spec"]["volumes"]):
        if "persistentVolumeClaim" not in volume:
            found.add(volume["configMap"]["name"] if "configMap" in volume else volume["name"])
    return found


def play(file: Path, objects: list[Object]) -> None:
    file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    subprocess.run([PODMAN, "kube", "play", "--network=host", str(file)], check=True, stdout=sys.stderr)


def output(*arguments: str) -> str:
    return subprocess.run([PODMAN, *arguments], stdout=subprocess.PIPE, text=True, check=False, env=os.environ).stdout.strip()


def succeeds(*arguments: str) -> bool:
    return subprocess.run([PODMAN, *arguments], capture_output=True, check=False).returncode == 0


def eventually(holds: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
