"""Over thirty ways to use the chart."""

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4
SCALED = {"min": 0, "max": 10, "drainTime": 300, "cooldown": 30}
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi", "cpu": 2}}


def worker(**more: Any) -> dict[str, Any]:
    return {"queues": ["q"], "concurrency": 2, "replicas": 1, "healthPort": 8975, "graceSeconds": 60, "resources": RESOURCES} | more


VALUE_SETS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "trial": {"postgres": {"enabled": True}, "redis": {"enabled": True}},
    "autoscaling": {"autoscaler": {"enabled": True}, "workers": {name: {"autoscaling": SCALED} for name in ("default", "spark")}},
    "autoscaling never to zero": {"autoscaler": {"enabled": True}, "workers": {"default": {"autoscaling": SCALED | {"min": 2}}}},
    "autoscaling of several queues": {
        "autoscaler": {"enabled": True}, "workers": {"both": worker(queues=["a", "b"], autoscaling=SCALED)},
    },
    "autoscaling set, autoscaler off": {"workers": {"default": {"autoscaling": SCALED}}},
    "flower": {"flower": {"enabled": True, "hosts": "flower.example.org"}},
    "one image": {"slimImage": {"repository": ""}},
    "digests": {"image": {"repository": "registry.example.org/paceline", "digest": DIGEST}, "slimImage": {"digest": DIGEST}},
    "private registry": {"image": {"repository": "r.example.org/p", "tag": "1.2.3", "pullPolicy": "Always"},
                         "imagePullSecrets": [{"name": "registry"}]},
    "git": {"dags": {"source": "git", "git": {"repository": "https://git.example.org/dags.git"}}},
    "private git": {"dags": {"source": "git", "git": {"repository": "https://git.example.org/d.git", "secret": "git", "ref": "v1",
                                                      "subPath": "", "periodSeconds": 5}}},
    "git over SSH": {"dags": {"source": "git", "git": {"repository": "ssh://git@git.example.org/d.git", "secret": "git",
                                                       "bundle": "sales"}}},
    "claim of DAG files": {"dags": {"source": "claim", "claim": "dags"}},
    "existing claims": {"persistence": {"data": {"claim": "shared-data"}, "logs": {"claim": "shared-logs"}}},
    "storage classes": {"persistence": {"data": {"storageClass": "nfs", "size": "1Ti"}, "logs": {"storageClass": "nfs"}}},
    "no volumes": {"persistence": {"data": {"enabled": False}, "logs": {"enabled": False}}},
    "one node": {"persistence": {name: {"accessMode": "ReadWriteOnce"} for name in ("data", "logs")},
                 "scheduler": {"replicas": 1}, "web": {"replicas": 1}},
    "ingress with TLS": {"web": {"ingress": {"enabled": True, "host": "paceline.example.org", "tlsSecret": "tls",
                                             "className": "nginx",
                                             "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "off"}}}},
    "ingress without a host": {"web": {"ingress": {"enabled": True}}},
    "load balancer": {"web": {"service": {"type": "LoadBalancer", "annotations": {"example.org/internal": "true"}}}},
    "without pages": {"web": {"enabled": False}, "waiter": {"enabled": False}},
    "without policies": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
    "narrow policies": {"networkPolicy": {"webFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
                                          "healthFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}},
    "many workers": {"workers": {f"w{n}": worker(queues=[f"q{n}"]) for n in range(12)}},
    "long tasks": {"workers": {"default": {"graceSeconds": 86400, "replicas": 20}}},
    "GPU nodes": {"workers": {"gpu": worker(
        nodeSelector={"accelerator": "gpu"}, tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        resources={"requests": {"cpu": 4, "memory": "16Gi"}, "limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}},
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}})}},
    "settings": {"config": "[core]\nparallelism = 512\n", "env": [{"name": "PACELINE_SPARK_WARM", "value": "false"},
                 {"name": "PACELINE_SMTP_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "smtp", "key": "password"}}}]},
    "metrics": {"metrics": {"enabled": True}, "scheduler": {"podAnnotations": {"example.org/team": "data"}}},
    "other secrets": {"secrets": {"scheduler": "s", "worker": "w", "web": "x", "flower": "f", "migrate": "m"},
                      "flower": {"enabled": True}},
    "existing account": {"serviceAccount": {"create": False, "name": "pipelines"}, "migrate": {"enabled": False}},
    "everything": {"postgres": {"enabled": True}, "redis": {"enabled": True}, "flower": {"enabled": True},
                   "autoscaler": {"enabled": True}, "workers": {"default": {"autoscaling": SCALED}},
                   "web": {"ingress": {"enabled": True, "host": "p.example.org"}},
                   "dags": {"source": "git", "git": {"repository": "https://git.example.org/dags.git"}}},
}  # fmt: skip

#: Mistakes, each with a part of the error.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"schedulers": {"replicas": 3}}, "schedulers"),
    "misspelled key": ({"scheduler": {"replica": 3}}, "replica"),
    "no scheduler": ({"scheduler": {"replicas": 0}}, "replicas"),
    "text as number": ({"web": {"port": "8080"}}, "port"),
    "git without repository": ({"dags": {"source": "git"}}, "dags.git.repository is required"),
    "git over SSH, short": ({"dags": {"source": "git", "git": {"repository": "git@git.example.org:dags.git"}}}, "repository"),
    "claim without name": ({"dags": {"source": "claim"}}, "dags.claim is required"),
    "worker without queues": ({"workers": {"x": {"concurrency": 1}}}, "queues"),
    "name of a worker": ({"workers": {"Spark_1": worker()}}, "Spark_1"),
    "digest": ({"image": {"digest": "sha256:short"}}, "digest"),
}
