"""Kubernetes: submitted to by spark-submit, the driver's pod found by a label, asked and ended with `kubectl`."""

import json
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from workers.spark.clusters import limits
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Run
from workers.spark.clusters.status import Ids, Phase, Status, UnreachableError

CALL_S = 30.0
LABEL = "paceline-try"
#: The container of a driver's pod that decides, whatever sidecars it has.
DRIVER_CONTAINER = "spark-kubernetes-driver"
PHASES = {"Pending": Phase.SUBMITTED, "Running": Phase.RUNNING, "Failed": Phase.FAILED, "Succeeded": Phase.FINISHED}
_DEPLOYED = re.compile(r"application ID (\S+) and submission ID (?:[^\s:]+:)?(\S+) into Kubernetes")
_POD = re.compile(r"pod name: (\S+-driver)\b")
_SELECTOR = re.compile(r"spark-app-selector -> ([^,\s]+)")


class Kubernetes:
    """`reach` may name `namespace` and `kubectl` (the command)."""

    def __init__(self, address: str, reach: Mapping[str, str]) -> None:
        self._server = address.removeprefix("k8s://")
        self._namespace = reach.get("namespace", "default")
        self._command = reach.get("kubectl", "kubectl")

    def tagged(self, made: Submission) -> Submission:
        """The driver's pod carries the tag as a label; spark-submit in cluster mode leaves as soon as the pod is made."""
        more = {f"spark.kubernetes.driver.label.{LABEL}": made.tag}
        if self._namespace != "default":
            more["spark.kubernetes.namespace"] = self._namespace
        if made.target.is_cluster_mode:
            more["spark.kubernetes.submission.waitAppCompletion"] = "false"
        return made.with_conf({**more, **{key: value for key, value in made.conf.items() if key in more}})

    def submit(self, made: Submission, run: Run) -> Ids:
        return submitted(run(made))

    def find(self, tag: str, since: datetime) -> Ids | None:
        return found(self._call("get", "pods", "-l", f"{LABEL}={tag}", "-o", "json"))

    def status(self, ids: Ids, tag: str) -> Status:
        if ids.driver_id is None:
            return Status(Phase.UNKNOWN, "the name of its pod is not known", ids)
        return of_pod(self._call("get", "pod", ids.driver_id, "-o", "json", "--ignore-not-found"), ids)

    def kill(self, ids: Ids) -> None:
        if ids.driver_id is not None:
            self._run("delete", "pod", ids.driver_id, "--ignore-not-found", "--wait=false")

    def gone(self, ids: Ids, tag: str) -> bool | None:
        phase = self.status(ids, tag).phase
        # Its API server reads from a quorum: a pod that it gave a name to, and does not have, is deleted.
        return phase is Phase.NOT_FOUND or phase.is_end

    def driver_host(self, ids: Ids) -> str | None:
        return None

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        if ids.driver_id is None:
            return ""
        text = self._run("logs", ids.driver_id, "-c", DRIVER_CONTAINER)
        new, seen["log"] = text[seen.get("log", 0) :], len(text)
        return new

    def _call(self, *arguments: str) -> Mapping[str, Any]:
        said = self._run(*arguments)
        try:
            answer: Mapping[str, Any] = json.loads(said) if said.strip() else {}
        except ValueError:
            raise UnreachableError(f"kubectl {' '.join(arguments)} answered no JSON") from None
        return answer

    def _run(self, *arguments: str) -> str:
        command = [self._command, "--server", self._server, "--namespace", self._namespace, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limits.left(CALL_S), check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnreachableError(f"kubectl {' '.join(arguments)} gave no answer ({error})") from None
        if done.returncode != 0:
            raise UnreachableError(f"kubectl {' '.join(arguments)} failed: {done.stderr[-300:].strip()}")
        return done.stdout


# Pure: what the answers mean -----------------------------------------------------------------------------------------


def submitted(output: str) -> Ids:
    """The driver's pod and the application that spark-submit printed; it prints none if its log level is too high."""
    if match := _DEPLOYED.search(output):
        return Ids(driver_id=match[2], application_id=match[1])
    pod, selector = _POD.search(output), _SELECTOR.search(output)
    return Ids() if pod is None else Ids(driver_id=pod[1], application_id=selector[1] if selector else None)


def of_pod(pod: Mapping[str, Any], ids: Ids) -> Status:
    """A pod as kubectl shows it; one that is gone says nothing about how its driver ended."""
    if not pod:
        return Status(Phase.NOT_FOUND, "its pod is gone", ids)
    state = pod.get("status", {})
    said = str(state.get("phase", ""))
    ended = _ended(state)
    code = None if ended is None else ended.get("exitCode")
    detail = f"pod {said}" + ("" if code is None else f", exit code {code}")
    if ended is not None and ended.get("reason") not in {None, "Completed", "Error"}:
        detail += f" ({ended['reason']})"
    phase = PHASES.get(said, Phase.UNKNOWN)
    if code is not None and phase in {Phase.RUNNING, Phase.FINISHED}:
        # A sidecar may keep the pod up, and a pod may count as succeeded by its other containers.
        phase = Phase.FINISHED if code == 0 else Phase.FAILED
    return Status(phase, detail, ids)


def found(listed: Mapping[str, Any]) -> Ids | None:
    """The newest of the pods that carry a tag; UnreachableError for what is no list."""
    if not isinstance(listed.get("items"), list):
        raise UnreachableError(f"kubectl gives no list of pods but {str(listed)[:200]!r}")
    pods = listed["items"]
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    if newest is None:
        return None
    labels = newest["metadata"].get("labels", {})
    return Ids(driver_id=newest["metadata"]["name"], application_id=labels.get("spark-app-selector"))


def _ended(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How the driver's container ended, if it did."""
    for container in state.get("containerStatuses", ()):
        if container.get("name") == DRIVER_CONTAINER or len(state["containerStatuses"]) == 1:
            ended = container.get("state", {}).get("terminated")
            return ended if isinstance(ended, Mapping) else None
    return None
