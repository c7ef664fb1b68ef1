"""Paceline in the cluster: installed from the chart or from a kustomize folder, with folders on the disk that all nodes share."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from cluster import Cluster, Object, is_true
from compose.stack import CHECKOUT, CheckError, eventually, expect, free_port, say
from machine import POSTGRES, REDIS, TAGS

DEPLOY = CHECKOUT / "deploy"
HELM = os.environ.get("HELM", "helm")
#: Users of the images, who must own the folders of the volumes: to folders of a node, the kubelet applies no fsGroup.
USER, SERVER_USER = 10001, 999
#: For a machine with two cores, which several nodes share.
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "4Gi"}}
INSTALLED_WITHIN_S = 900
ROLLED_WITHIN_S = 900


def values(tag: str) -> Object:
    """The values of the release: the images of this machine, small requests, and short times to stop."""
    worker = {"resources": SMALL}
    return {
        "image": {"repository": "paceline", "tag": tag, "pullPolicy": "Never"},
        "slimImage": {"repository": "paceline-slim", "tag": tag, "pullPolicy": "Never"},
        "postgres": {"enabled": True, "image": POSTGRES, "size": "1Gi", "resources": SMALL},
        "redis": {"enabled": True, "image": REDIS, "resources": SMALL},
        "workers": {"default": {**worker, "graceSeconds": 20}, "spark": {**worker, "graceSeconds": 60},
                    "spark-heavy": {**worker, "graceSeconds": 60}},
        **{role: {"resources": SMALL} for role in ("scheduler", "waiter", "web", "migrate", "autoscaler")},
    }  # fmt: skip


class Release:
    """One installation, in a namespace that enforces the restricted Pod Security Standard."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self._folder = cluster.folder / namespace
        self._token = ""

    # Installing ------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """The namespace, the Secrets and the volumes."""
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": levels}}
        claims = [("paceline-data", USER, "ReadWriteMany"), ("paceline-logs", USER, "ReadWriteMany"),
                  ("data-paceline-postgres-0", SERVER_USER, "ReadWriteOnce")]  # fmt: skip
        self.cluster.apply(namespace, *(self._volume(*claim) for claim in claims))
        secrets = subprocess.run(
            [sys.executable, str(DEPLOY / "secrets"), "--namespace", self.namespace],
            capture_output=True,
            text=True,
            check=True,
            env=self.cluster.environment,
        ).stdout
        self.kubectl("apply", "-f", "-", given=secrets)

    def _volume(self, claim: str, owner: int, mode: str) -> Object:
        folder = self._folder / claim
        folder.mkdir(parents=True)
        os.chown(folder, owner, owner)
        return {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"{self.namespace}-{claim}"},
            "spec": {"capacity": {"storage": "20Gi"}, "accessModes": [mode], "hostPath": {"path": str(folder)},
                     "claimRef": {"namespace": self.namespace, "name": claim}},
        }  # fmt: skip

    def upgrade(self, tag: str = TAGS[0], **more: Any) -> None:
        """Install or upgrade the chart, and wait until it is rolled out."""
        say(f"helm upgrade --install to {tag} {more or ''}")
        self._helm("upgrade", "--install", "paceline", str(DEPLOY / "chart"), "--values", "-", given=json.dumps(values(tag) | more))
        self.wait()

    def roll_back(self) -> None:
        say("helm rollback")
        self._helm("rollback", "paceline")
        self.wait()

    def uninstall(self) -> None:
        self._helm("uninstall", "paceline")
        eventually("all pods are gone", lambda: not self.get("pods", "scheduler") and not self.get("deployments"), within_s=300)
        kept = {one["metadata"]["name"] for one in self.get("persistentvolumeclaims")}
        expect(kept >= {"paceline-data", "paceline-logs"}, f"of the claims, {kept} are left")
        self.delete_namespace()

    def delete_namespace(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.namespace, "--timeout=300s")

    def _helm(self, *arguments: str, given: str | None = None) -> None:
        done = subprocess.run([HELM, *arguments, "--namespace", self.namespace], input=given, capture_output=True, text=True,
                              env=self.cluster.environment, check=False)  # fmt: skip
        expect(done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr.strip()}")
        warnings = [
            line for line in done.stderr.splitlines() if "would violate" in line or "deprecated" in line or "unknown field" in line
        ]
        expect(not warnings, f"the API server warns: {warnings}")

    def kustomize(self, folder: str) -> None:
        """Apply a kustomize folder by an overlay that names the images of this machine and asks for few resources."""
        overlay = self._folder / "overlay"
        overlay.mkdir(parents=True, exist_ok=True)
        image = [{"name": name, "newName": name, "newTag": TAGS[0]} for name in ("paceline", "paceline-slim")]
        servers = [{"name": name, "newName": new.split(":")[0], "newTag": new.split(":")[1]}
                   for name, new in (("postgres", POSTGRES), ("redis", REDIS))]  # fmt: skip
        small = json.dumps([{"op": "replace", "path": "/spec/template/spec/containers/0/resources", "value": SMALL}])
        initial = json.dumps([{"op": "replace", "path": "/spec/template/spec/initContainers/0/resources", "value": SMALL}])
        patches = [{"target": {"kind": kind}, "patch": small} for kind in ("Deployment", "StatefulSet", "Job")]
        patches.append({"target": {"kind": "Deployment", "name": "paceline-(scheduler|waiter|web|worker.*)"}, "patch": initial})
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": self.namespace,
            "resources": [os.path.relpath(DEPLOY / "kustomize" / folder, overlay.resolve())],
            "images": [*image, *servers],
            "patches": patches,
        }
        (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
        self.kubectl("apply", "-k", str(overlay))
        self.wait()

    # Looking ---------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until each Deployment and StatefulSet has all its pods, of its newest form alone, and no older pod is left."""
        eventually("Paceline is rolled out", self._is_rolled_out, within_s=INSTALLED_WITHIN_S)

    def _is_rolled_out(self) -> bool:
        for job in self.get("jobs"):
            expect(not is_true(job, "Failed"), f"{job['metadata']['name']} failed")
        for kind in ("deployments", "statefulsets"):
            for one in self.get(kind):
                status, wanted = one.get("status", {}), one["spec"].get("replicas", 1)
                numbers = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "readyReplicas")]
                if status.get("observedGeneration") != one["metadata"]["generation"] or numbers != [wanted] * 3:
                    return False
        return not [pod for pod in self.get("pods") if "deletionTimestamp" in pod["metadata"]]

    def kubectl(self, *arguments: str, failing: bool = False, given: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, failing=failing, given=given)

    def get(self, kind: str, component: str = "") -> list[Object]:
        return self.cluster.get(kind, self.namespace, f"app.kubernetes.io/component={component}" if component else "")

    def pods(self, component: str) -> list[Object]:
        """The pods of a role that run and are not about to end."""
        return [pod for pod in self.get("pods", component)
                if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]  # fmt: skip

    def paceline(self, *arguments: str, failing: bool = False) -> Any:
        """The JSON output of the CLI in a ready scheduler. With `failing`, the output of a failed command too."""
        ready = [pod["metadata"]["name"] for pod in self.pods("scheduler") if is_true(pod, "Ready")]
        expect(bool(ready), "no scheduler is ready")
        printed = self.kubectl("exec", ready[-1], "-c", "scheduler", "--", "paceline", *arguments, "--json", failing=failing)
        expect(bool(printed), f"`paceline {' '.join(arguments)}` printed no result")
        return json.loads(printed)

    # Code and runs ---------------------------------------------------------------------------------------------------

    @contextmanager
    def web(self) -> Iterator[str]:
        """The address of the web process on this side of a port-forward of its Service."""
        port = free_port()
        forward = subprocess.Popen([self.cluster.program("kubectl"), "-n", self.namespace, "port-forward", "service/paceline-web",
                                    f"{port}:8080"], env=self.cluster.environment, stdout=subprocess.PIPE, text=True)  # fmt: skip
        try:
            assert forward.stdout is not None
            expect("Forwarding" in forward.stdout.readline(), "kubectl port-forward forwards nothing")
            yield f"http://127.0.0.1:{port}"
        finally:
            forward.terminate()
            forward.wait()

    def deploy(self, folder: Path, bundle: str) -> str:
        """Deploy a folder as from a laptop, by REST with an API token. Returns what the command printed."""
        if not self._token:
            self.paceline("users", "create", "ci", "--role", "admin")
            self._token = str(self.paceline("users", "token", "ci")["token"])
        with self.web() as address:
            command = [
                str(CHECKOUT / ".venv/bin/paceline"),
                "deploy",
                str(folder),
                "--bundle",
                bundle,
                "--url",
                address,
                "--timeout",
                "300",
            ]
            environment = os.environ | {"PACELINE_TOKEN": self._token, "PACELINE_HOME": str(self._folder / "laptop")}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"paceline deploy {folder}: {done.stdout} {done.stderr}")
        return done.stdout.strip().splitlines()[-1]

    def run(self, dag: str, run_id: str | None = None) -> str:
        """Trigger a run, and return its ID."""
        return str(self.paceline("dags", "trigger", dag, *(["--run-id", run_id] if run_id else []))["run_id"])

    def end_of(self, dag: str, run_id: str, within_s: float) -> Object:
        """The run after it has ended with success, with its tasks."""

        def ended() -> bool:
            try:
                return self.paceline("runs", "show", dag, run_id)["state"] not in {"queued", "running"}
            except CheckError:  # the scheduler that answers may be about to stop
                return False

        eventually(f"{run_id} of {dag} ended", ended, within_s=within_s)
        run: Object = self.paceline("runs", "show", dag, run_id)
        failed = {task["task_id"]: task["state"] for task in run["tasks"] if task["state"] != "success"}
        expect(run["state"] == "success" and not failed, f"{run_id} of {dag} is {run['state']}: {failed}")
        return run

    def written(self, name: str) -> list[str]:
        """The lines of a file on the volume of data."""
        file = self._folder / "paceline-data" / name
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def node_of(pod: Object) -> str:
    return str(pod["spec"]["nodeName"])


def image_of(pod: Object) -> str:
    return re.sub(r"^docker.io/library/", "", pod["spec"]["containers"][0]["image"])
