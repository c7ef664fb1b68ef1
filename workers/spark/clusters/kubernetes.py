"""Kubernetes: applications are submitted with spark-submit, and the pod of the driver is found by label and read with `kubectl`."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from workers.spark.clusters import protocol
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Cluster, ClusterUnreachableError, Ids, Password, Phase, Run, Status

LABEL = "paceline-try"
#: The container of the driver in its pod, which may have sidecars.
DRIVER_CONTAINER = "spark-kubernetes-driver"
PHASES = {"Pending": Phase.SUBMITTED, "Running": Phase.RUNNING, "Failed": Phase.FAILED, "Succeeded": Phase.FINISHED}
_DEPLOYED = re.compile(r"application ID (\S+) and submission ID (?:[^\s:]+:)?(\S+) into Kubernetes")
_POD = re.compile(r"pod name: (\S+-driver)\b")
_SELECTOR = re.compile(r"spark-app-selector -> ([^,\s]+)")


class Kubernetes(Cluster):
    """A Kubernetes cluster. `reach` may have the keys `namespace` and `kubectl` (the command)."""

    masters = re.compile(r"k8s://\S+")
    example = "k8s://https://host:port"
    uploads_files = False
    driver_environment = "spark.kubernetes.driverEnv."

    def __init__(self, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> None:
        self._server = address.removeprefix("k8s://")
        self._namespace = reach.get("namespace", "default")
        self._command = reach.get("kubectl", "kubectl")

    def tagged(self, submission: Submission) -> Submission:
        """Add the tag as a label of the driver's pod. In cluster mode, spark-submit exits as soon as the pod exists."""
        more = {f"spark.kubernetes.driver.label.{LABEL}": submission.tag}
        if self._namespace != "default":
            more["spark.kubernetes.namespace"] = self._namespace
        if submission.target.is_cluster_mode:
            more["spark.kubernetes.submission.waitAppCompletion"] = "false"
        return submission.with_conf({**more, **{key: value for key, value in submission.conf.items() if key in more}})

    def submit(self, submission: Submission, run: Run) -> Ids:
        return submitted(run(submission))

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
        # The API server reads from a quorum, so a named pod that it does not have has been deleted.
        return phase is Phase.NOT_FOUND or phase.is_end

    def output(self, ids: Ids, seen: dict[str, int]) -> str:
        if ids.driver_id is None:
            return ""
        since = seen.get("second")
        limits = () if since is None else (f"--since-time={datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}",)
        return new_lines(self._run("logs", ids.driver_id, "-c", DRIVER_CONTAINER, "--timestamps", *limits), seen)

    def _call(self, *arguments: str) -> Mapping[str, Any]:
        output = self._run(*arguments)
        try:
            answer: Mapping[str, Any] = json.loads(output) if output.strip() else {}
        except (ValueError, RecursionError):
            raise ClusterUnreachableError(f"kubectl {' '.join(arguments)} did not print JSON") from None
        return answer

    def _run(self, *arguments: str) -> str:
        shown = f"kubectl {' '.join(arguments)}"
        done = protocol.run([self._command, "--server", self._server, "--namespace", self._namespace, *arguments], shown)
        if done.returncode != 0:
            raise ClusterUnreachableError(f"{shown} failed: {done.stderr[-300:].strip()}")
        return done.stdout


# Pure: the interpretation of answers ---------------------------------------------------------------------------------


def submitted(output: str) -> Ids:
    """The driver's pod and the application in the output of spark-submit; none if its log level is too high."""
    if match := _DEPLOYED.search(output):
        return Ids(driver_id=match[2], application_id=match[1])
    pod, selector = _POD.search(output), _SELECTOR.search(output)
    return Ids() if pod is None else Ids(driver_id=pod[1], application_id=selector[1] if selector else None)


def of_pod(pod: Mapping[str, Any], ids: Ids) -> Status:
    """The status of a pod in the form of kubectl. A deleted pod does not show how its driver ended."""
    if not pod:
        return Status(Phase.NOT_FOUND, "its pod is gone", ids)
    state = pod.get("status", {})
    pod_phase = str(state.get("phase", ""))
    ended = _ended(state)
    code = None if ended is None else ended.get("exitCode")
    detail = f"pod {pod_phase}" + ("" if code is None else f", exit code {code}")
    if ended is not None and ended.get("reason") not in {None, "Completed", "Error"}:
        detail += f" ({ended['reason']})"
    phase = PHASES.get(pod_phase, Phase.UNKNOWN)
    if code is not None and phase in {Phase.RUNNING, Phase.FINISHED}:
        # A sidecar can keep the pod running, and other containers can make a pod succeed.
        phase = Phase.FINISHED if code == 0 else Phase.FAILED
    return Status(phase, detail, ids)


def found(listed: Mapping[str, Any]) -> Ids | None:
    """The newest pod in a list of pods with a tag; ClusterUnreachableError if the answer is not a list."""
    if not isinstance(listed.get("items"), list):
        raise ClusterUnreachableError(f"kubectl did not print a list of pods but {str(listed)[:200]!r}")
    pods = listed["items"]
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    if newest is None:
        return None
    labels = newest["metadata"].get("labels", {})
    return Ids(driver_id=newest["metadata"]["name"], application_id=labels.get("spark-app-selector"))


def new_lines(text: str, seen: dict[str, int]) -> str:
    """The new part of a log with timestamps, without these, and update `seen`.

    A request starts at a whole second, so lines of the last second come again: `seen` has that second, how many of its lines
    were read, and how much of the last one, which may not have been complete.
    """
    at, count, part = (seen.get(name, 0) for name in ("second", "lines", "part"))
    new: list[str] = []
    passed = 0
    for line in text.splitlines(keepends=True):
        stamp, space, rest = line.partition(" ")
        second = _second(stamp)
        if not space or second is None:
            continue
        if second > at:
            at, count, passed = second, 0, 0
        passed += 1
        if passed > count:
            new.append(rest)
            count, part = passed, len(rest)
        elif passed == count:
            new.append(rest[part:])
            part = max(part, len(rest))
    seen |= {"second": at, "lines": count, "part": part}
    return "".join(new)


def _second(stamp: str) -> int | None:
    """The second of a timestamp such as 2026-01-01T00:00:00.123456789Z."""
    try:
        return int(datetime.fromisoformat(stamp[:19]).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _ended(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The final state of the driver's container, if it has ended."""
    for container in state.get("containerStatuses", ()):
        if container.get("name") == DRIVER_CONTAINER or len(state["containerStatuses"]) == 1:
            ended = container.get("state", {}).get("terminated")
            return ended if isinstance(ended, Mapping) else None
    return None
