"""The autoscaler of the chart, with a HorizontalPodAutoscaler as KEDA makes it, from no worker to three and back.

KEDA itself is not there. A pod in its namespace takes its part: it asks the address that the ScaledObject names, and serves the
number to the HorizontalPodAutoscaler as an external metric.
"""

import base64
from pathlib import Path
from typing import Any

from cluster import Cluster, Object, command
from compose.stack import eventually, expect
from disturbances import DAG, ENDED_WITHIN_S, TASKS, expect_first_tries, lines, name_of
from machine import HERE, TAGS
from release import SMALL, Release, values

KEDA = "keda"
LIMITS = {"min": 0, "max": 3, "drainTime": 20, "cooldown": 10}
#: Settings of a release that the policies of its autoscaler and of Flower can be tested with.
AUTOSCALED = {
    "autoscaler": {"enabled": True, "resources": SMALL},
    "flower": {"enabled": True, "resources": SMALL},
    "workers": {name: worker | ({"autoscaling": LIMITS} if name == "default" else {})
                for name, worker in values(TAGS[0])["workers"].items()},
}  # fmt: skip
METRICS = "external.metrics.k8s.io"


def define_kind(cluster: Cluster) -> None:
    cluster.apply(scaled_object_kind())
    cluster.kubectl("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh", "--timeout=60s")


def prepare(cluster: Cluster) -> None:
    """The kind ScaledObject, and the pod that serves metrics."""
    define_kind(cluster)
    key, certificate = cluster.folder / "metrics.key", cluster.folder / "metrics.crt"
    command("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=metrics", "-days", "2", "-keyout", str(key),
            "-out", str(certificate))  # fmt: skip
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KEDA}})
    cluster.apply(*metrics_server(key, certificate), namespace=KEDA)


def check(release: Release) -> dict[str, Any]:
    """Workers come when tasks wait, and all go when none is left. No task needs a second try."""
    prepare(release.cluster)
    release.upgrade(**AUTOSCALED)
    name = "paceline-worker-default"
    release.cluster.apply(autoscaler_of(release.get("scaledobjects")[0]), namespace=release.namespace)

    def number() -> int:
        found = next(one for one in release.get("deployments") if name_of(one) == name)
        return int(found["spec"]["replicas"])

    eventually("no worker is left", lambda: number() == 0 and not release.pods("worker-default"), within_s=300)
    run = release.run(DAG)
    numbers = [0]

    def ended() -> bool:
        if number() != numbers[-1]:
            numbers.append(number())
        return len(lines(release, run)) >= TASKS

    eventually(f"the tasks of {run} ended", ended, within_s=ENDED_WITHIN_S)
    tasks = release.end_of(DAG, run, ENDED_WITHIN_S)["tasks"]
    expect_first_tries(tasks)
    eventually("no worker is left again", lambda: number() == 0 and not release.pods("worker-default"), within_s=300)
    expect(max(numbers) > 1, f"the numbers of workers were {numbers}")
    return {"numbers_of_workers": [*numbers, 0]}


def scaled_object_kind() -> Object:
    """The CustomResourceDefinition of KEDA's ScaledObjects. Their fields are checked by the tests of the chart, not here."""
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    names = {"kind": "ScaledObject", "listKind": "ScaledObjectList", "plural": "scaledobjects", "singular": "scaledobject"}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "scaledobjects.keda.sh"},
        "spec": {"group": "keda.sh", "scope": "Namespaced", "names": names, "versions": [version]},
    }  # fmt: skip


def autoscaler_of(scaled: Object) -> Object:
    """The HorizontalPodAutoscaler that KEDA makes from a ScaledObject."""
    spec, trigger = scaled["spec"], scaled["spec"]["triggers"][0]
    metric = {"name": name_of(scaled), "selector": {"matchLabels": {"scaledobject.keda.sh/name": name_of(scaled)}}}
    target = {"type": trigger["metricType"], "averageValue": trigger["metadata"]["targetValue"]}
    return {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": f"keda-hpa-{name_of(scaled)}"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
            "minReplicas": spec["minReplicaCount"], "maxReplicas": spec["maxReplicaCount"],
            "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
            "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
        },
    }  # fmt: skip


def metrics_server(key: Path, certificate: Path) -> list[Object]:
    """The pod in KEDA's place, its Service, and its entry in the API."""
    labels = {"app": "metrics"}
    files = {"tls.key": key, "tls.crt": certificate, "server.py": HERE / "metrics_server.py"}
    data = {name: base64.b64encode(file.read_bytes()).decode() for name, file in files.items()}
    container = {
        "name": "metrics", "image": f"paceline-slim:{TAGS[0]}", "imagePullPolicy": "Never", "args": ["python", "/files/server.py"],
        "volumeMounts": [{"name": "files", "mountPath": "/files"}],
    }  # fmt: skip
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "metrics"}, "data": data},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "metrics", "labels": labels},
            "spec": {"containers": [container], "volumes": [{"name": "files", "secret": {"secretName": "metrics"}}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "metrics"},
            "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{METRICS}"},
            "spec": {
                "group": METRICS,
                "version": "v1beta1",
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": {"name": "metrics", "namespace": KEDA},
            },
        },
    ]
