"""Who reaches which port. kube-router's firewall enforces the NetworkPolicies of the chart on each node.

The release has Flower and an autoscaler. Without its policies, every port answers: so a closed port is closed by them.
"""

import json
from typing import Any

from cluster import Object
from compose.stack import eventually, say
from disturbances import name_of
from machine import TAGS
from release import USER, Release
from scaling import AUTOSCALED, KEDA

OUTSIDE = "elsewhere"
PORTS = {
    "web": 8080,
    "postgres": 5432,
    "redis": 6379,
    "flower": 5555,
    "autoscaler-default": 8977,
    "scheduler": 8974,
    "waiter": 8976,
    "worker-spark": 8975,
}
SERVERS = {"postgres", "redis"}
OPEN_TO_ALL = PORTS.keys() - SERVERS - {"autoscaler-default"}
#: What the containers of a role may reach, and a pod without a role in three namespaces.
REACHED: dict[str, set[str]] = {
    "scheduler": {*OPEN_TO_ALL, *SERVERS},
    "worker-spark": {*OPEN_TO_ALL, *SERVERS},
    "waiter": {*OPEN_TO_ALL, *SERVERS},
    "web": {*OPEN_TO_ALL, *SERVERS},
    "flower": {*OPEN_TO_ALL, "redis"},
    "autoscaler-default": {*OPEN_TO_ALL, "postgres"},
    "postgres": set(),
    "probe": {*OPEN_TO_ALL},
    OUTSIDE: {*OPEN_TO_ALL},
    KEDA: {*OPEN_TO_ALL, "autoscaler-default"},
}
CONNECT = """
import json, socket, sys
found = {}
for name, (address, port) in json.loads(sys.argv[1]).items():
    try:
        socket.create_connection((address, port), timeout=3).close()
        found[name] = "open"
    except OSError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def check(release: Release) -> dict[str, Any]:
    for namespace in (OUTSIDE, KEDA, release.namespace):
        release.cluster.apply(*probe(namespace, KEDA if namespace == KEDA else OUTSIDE), namespace=namespace)
        release.cluster.kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod/probe", "--timeout=300s")
    tried = sum(len(expect_reached(release, source, reached)) for source, reached in REACHED.items())
    say("Narrowing who may reach the pages and the health ports")
    narrow = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": KEDA}}}]
    release.upgrade(**AUTOSCALED, networkPolicy={"enabled": True, "webFrom": narrow, "healthFrom": narrow})
    expect_reached(release, "probe", set())
    expect_reached(release, KEDA, REACHED[KEDA])
    release.wait()  # the kubelet still reaches the probes
    say("Removing the policies")
    release.upgrade(**AUTOSCALED, networkPolicy={"enabled": False})
    for source in ("probe", OUTSIDE, "flower", "postgres"):
        expect_reached(release, source, set(PORTS))
    release.upgrade(**AUTOSCALED)
    return {"connections_tried": tried}


def expect_reached(release: Release, source: str, reached: set[str]) -> dict[str, str]:
    """The firewall follows a change within seconds; then a source reaches these ports and no others."""
    found: dict[str, str] = {}

    def as_it_should() -> bool:
        found.clear()
        found.update(connected(release, source))
        return {name for name, answer in found.items() if answer == "open"} == reached - {source}

    try:
        eventually(f"{source} reaches {sorted(reached)}", as_it_should, within_s=90)
    except Exception:
        say(f"{source} finds {found}")
        raise
    return found


def connected(release: Release, source: str) -> dict[str, str]:
    """What a container of a role, or the probe of a namespace, finds at the pods' own addresses."""
    targets = {name: (release.pods(name)[0]["status"]["podIP"], port) for name, port in PORTS.items() if name != source}
    if source in {"probe", OUTSIDE, KEDA}:
        namespace, pod = (release.namespace if source == "probe" else source), "probe"
    else:
        namespace, pod = release.namespace, name_of(release.pods(source)[0])
    printed = release.cluster.kubectl("-n", namespace, "exec", pod, "--", "python3", "-c", CONNECT, json.dumps(targets))
    found: dict[str, str] = json.loads(printed)
    return found


def probe(namespace: str, outside: str) -> list[Object]:
    """A pod that waits to be asked, with its namespace unless that is the release's."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
                "runAsUser": USER,
                "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    container = {
        "name": "probe", "image": f"paceline-slim:{TAGS[0]}", "imagePullPolicy": "Never", "args": ["sleep", "infinity"],
        "securityContext": security,
    }  # fmt: skip
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return [home, pod] if namespace == outside else [pod]
