"""Code is deployed, pods are killed, a node is drained, and the release is upgraded, each while tasks run. No task is lost."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster import Object
from compose.stack import eventually, expect, say
from machine import HERE, TAGS
from release import Release, image_of, node_of

DAG, TASKS, FILE, BUNDLE = "steady", 60, "steady.txt", "steady"
ENDED_WITHIN_S = 900
#: Roles with two pods, of which one must be ready at any time.
TWICE = ("paceline-scheduler", "paceline-web", "paceline-worker-default")


def deploys(release: Release) -> dict[str, Any]:
    """Three versions of a bundle; runs execute the version that they were created with."""
    first = deploy(release, "one")
    run = started(release)
    second = deploy(release, "two")
    end(release, run, version="one")
    end(release, started(release), version="two")
    say("paceline deploy --rollback")
    # From a scheduler's pod, which has the database.
    release.paceline("deploy", "--bundle", BUNDLE, "--rollback")
    end(release, started(release), version="one")
    return {"printed": [first, second]}


def deploy(release: Release, version: str) -> str:
    """Deploy the DAGs beside this file, with another helper module."""
    folder = release.cluster.folder / "deployed"
    shutil.copytree(HERE / "dags", folder, dirs_exist_ok=True)
    (folder / "steady_parts/version.py").write_text(f'VERSION = "{version}"\n', encoding="utf-8")
    printed = release.deploy(folder, BUNDLE)
    say(printed)
    return printed


def kills(release: Release) -> dict[str, Any]:
    """The main processes of a scheduler and a worker are killed, and then two other pods without notice."""
    run = started(release)
    killed = []
    for role in ("scheduler", "worker-default"):
        processes, pods = release.pods(role)[:2]
        say(f"Killing the process of {name_of(processes)}, and the pod {name_of(pods)}")
        kill_process(release, processes)
        release.kubectl("delete", "pod", name_of(pods), "--force", "--grace-period=0")
        killed.append(name_of(processes))
    tasks = end(release, run)
    for name in killed:
        eventually(f"{name} runs again", lambda: restarts(release, name) > 0, within_s=120)  # noqa: B023
    release.wait()
    return {"tried_again": sum(task["try_number"] > 1 for task in tasks)}


def kill_process(release: Release, pod: Object) -> None:
    node = next(one for one in release.cluster.nodes if one.name == node_of(pod))
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    listed = node.output("ctr", "-n", "k8s.io", "tasks", "list")
    os.kill(next(int(line.split()[1]) for line in listed.splitlines() if line.startswith(container)), signal.SIGKILL)


def restarts(release: Release, name: str) -> int:
    found = [pod for pod in release.get("pods") if name_of(pod) == name]
    return int(found[0]["status"]["containerStatuses"][0]["restartCount"]) if found else -1


def drain(release: Release) -> dict[str, Any]:
    """All pods of a node move to the other one, without a pause of any role, and no task needs a second try."""
    servers = node_of(release.pods("postgres")[0])
    node = next(one.name for one in release.cluster.nodes if one.name != servers)
    moved = [name_of(pod) for pod in release.get("pods") if node_of(pod) == node and pod["status"]["phase"] == "Running"]
    expect(bool(moved), f"{node} has no pod to move")
    run = started(release)
    say(f"Draining {node}, which has {len(moved)} pods")
    with always_ready(release):
        release.cluster.kubectl("drain", node, "--delete-emptydir-data", "--force", "--timeout=600s")
        release.wait()
    tasks = end(release, run)
    left = [name_of(pod) for pod in release.pods("") if node_of(pod) == node]
    expect(not left, f"{node} still runs {left}")
    expect_first_tries(tasks)
    release.cluster.kubectl("uncordon", node)
    return {"moved_pods": len(moved)}


def upgrade(release: Release) -> dict[str, Any]:
    """The images change and change back, each during a run, without a pause of any role."""
    for tag, change in ((TAGS[1], lambda: release.upgrade(TAGS[1])), (TAGS[0], release.roll_back)):
        run = started(release)
        with always_ready(release):
            change()
        tasks = end(release, run)
        images = {image_of(pod).partition(":")[2] for pod in release.pods("") if "paceline-test" not in image_of(pod)}
        expect(images == {tag}, f"after the change to {tag}, pods run {images}")
        expect_first_tries(tasks)
    return {"jobs": [name_of(job) for job in release.get("jobs")]}


# Runs ----------------------------------------------------------------------------------------------------------------


def started(release: Release) -> str:
    """A run some of whose tasks have ended."""
    run = release.run(DAG)
    eventually(f"tasks of {run} ended", lambda: bool(lines(release, run)), within_s=300)
    return run


def end(release: Release, run: str, version: str | None = None) -> list[Object]:
    """The tasks of the run. All succeeded, each wrote a line, and all lines are of one version of the code."""
    eventually(
        f"all tasks of {run} wrote", lambda: len({line[1] for line in lines(release, run)}) == TASKS, within_s=ENDED_WITHIN_S
    )
    tasks: list[Object] = release.end_of(DAG, run, ENDED_WITHIN_S)["tasks"]
    found = lines(release, run)
    expect(len(tasks) == TASKS, f"{run} has {len(tasks)} tasks")
    versions = {line[2] for line in found}
    expect(len(versions) == 1 and version in {None, *versions}, f"{run} executed the versions {versions}, not {version}")
    return tasks


def lines(release: Release, run: str) -> list[list[str]]:
    return [line.split() for line in release.written(FILE) if line.startswith(f"{run} ")]


def expect_first_tries(tasks: list[Object]) -> None:
    again = [task["task_id"] for task in tasks if task["try_number"] != 1]
    expect(not again, f"tried again: {again}")


@contextmanager
def always_ready(release: Release) -> Iterator[None]:
    """In each state of a Deployment with two pods that the API server tells, one of them is ready."""
    states = r'jsonpath={.metadata.name} {.status.readyReplicas}{"\n"}'
    watch = subprocess.Popen(
        [release.cluster.program("kubectl"), "-n", release.namespace, "get", "deployments", "--watch", "-o", states],
        env=release.cluster.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield
    finally:
        watch.terminate()
        told = watch.communicate()[0].splitlines()
    seen = [line.split() for line in told if line.split()[0] in TWICE]
    expect({line[0] for line in seen} == set(TWICE), f"of {TWICE}, the API server told {seen}")
    gaps = {line[0] for line in seen if len(line) == 1}
    expect(not gaps, f"no pod was ready of {sorted(gaps)}")


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])
