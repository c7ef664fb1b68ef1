"""Kubernetes objects: those that helm renders from the chart, and those of the kustomize folders."""

import copy
import functools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "chart"
HELM = os.environ.get("HELM", "helm")
#: Kubernetes minor versions for which objects must be valid.
VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
#: Labels and annotations that only helm sets.
OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart", "helm.sh/resource-policy")

Object = dict[str, Any]


class RenderError(Exception):
    """helm has rejected the values."""


def render(values: Object, *, release: str = "paceline") -> list[Object]:
    """The objects of the chart with these values."""
    return copy.deepcopy(_rendered(json.dumps(values), release))


@functools.cache
def _rendered(values: str, release: str) -> list[Object]:
    command = [HELM, "template", release, str(CHART), "--namespace", "pipelines", "--kube-version", "1.31.0", "--values", "-"]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(done.stderr.strip())
    return [one for one in yaml.safe_load_all(done.stdout) if one is not None]


def lint(values: Object) -> str:
    """The output of `helm lint --strict`; empty if the chart is fine."""
    done = subprocess.run([HELM, "lint", "--strict", str(CHART), "--values", "-"], input=json.dumps(values), capture_output=True,
                          text=True, check=False)  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def kustomized(folder: Path) -> list[Object]:
    """The objects of a kustomization. It may have resources, and JSON patches that remove a path."""
    found: list[Object] = []
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert kustomization.keys() <= {"apiVersion", "kind", "resources", "patches"}
    for name in kustomization["resources"]:
        path = folder / name
        found += kustomized(path) if path.is_dir() else yaml.safe_load_all(path.read_text(encoding="utf-8"))
    for patch in kustomization.get("patches", []):
        targets = [
            one for one in found if (one["kind"], one["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        ]
        assert targets, patch
        for step in yaml.safe_load(patch["patch"]):
            assert step["op"] == "remove"
            *parents, last = step["path"].strip("/").split("/")
            for target in targets:
                del functools.reduce(lambda value, key: value[key], parents, target)[last]
    return found


def key(one: Object) -> tuple[str, str]:
    """The kind and name of an object. A Job has the hash of its pod in its name; in kustomize it has none."""
    name = one["metadata"]["name"]
    return one["kind"], "paceline-migrate" if one["kind"] == "Job" else name


def plain(one: Object) -> Object:
    """An object without the fields that only helm sets."""
    one = copy.deepcopy(one)
    for part in ("labels", "annotations"):
        values = {name: value for name, value in one["metadata"].get(part, {}).items() if name not in OF_HELM}
        one["metadata"].pop(part, None)
        if values:
            one["metadata"][part] = values
    one["metadata"].pop("namespace", None)
    one["metadata"]["name"] = key(one)[1]
    return one


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """The name and the template of each pod."""
    for resource in objects:
        if resource["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield resource["metadata"]["name"], resource["spec"]["template"]


def containers(template: Object) -> list[Object]:
    """All containers of a pod, those of its start first."""
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
