#!/usr/bin/env python3
"""`make test-kubernetes`: a cluster of two nodes on this machine, in which the chart and the kustomize folders are used.

usage: run.py [chart] [deploys] [kills] [drain] [upgrade] [scaling] [policies] [kustomize]. Without arguments, all of them.
Each part but the last needs the release that the first one installs. The first run compiles Kubernetes; KUBERNETES_KEPT names the
folder in which programs and images stay. Whatever happens, no process, mount or network of the cluster is left; the last line on
stdout is one JSON object. A machine that cannot run a cluster gets one sentence that begins with NOT RUN.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import disturbances
import machine
import policies
import scaling
from cluster import Cluster, Object, remove_cgroups
from compose.stack import CHECKOUT, CheckError, expect, say
from release import DEPLOY, Release

#: In the environment of the process that is inside the namespaces of the cluster.
INSIDE = "KUBERNETES_TEST_INSIDE"
NAMESPACE, NODES = "pipelines", 2
#: The whole test ends after this time, whatever it waits for.
LONGEST_S = int(os.environ.get("KUBERNETES_LONGEST_S", "5400"))
FLIGHTS_WITHIN_S = 2400


def main() -> int:
    if INSIDE in os.environ:
        return inside(sys.argv[1:] or list(PARTS))
    try:
        expect(set(sys.argv[1:]) <= PARTS.keys(), f"{sys.argv[1:]}: the parts are {', '.join(PARTS)}.")
        machine.require()
        machine.build_images(machine.compile_programs())
    except (machine.NotRunError, CheckError) as error:
        say(f"NOT RUN: {error}" if isinstance(error, machine.NotRunError) else str(error))
        return 2
    # When `unshare` ends, the kernel ends every process of the new PID namespace.
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    tested = subprocess.Popen([*unshare, sys.executable, __file__, *sys.argv[1:]], env=os.environ | {INSIDE: "1"})
    signal.signal(signal.SIGTERM, lambda *_: tested.kill())
    try:
        return tested.wait(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        say(f"FAILED: not within {LONGEST_S} s")
        return 1
    finally:
        tested.kill()
        tested.wait()
        remove_cgroups()
        shutil.rmtree(folder(), ignore_errors=True)


def folder() -> Path:
    return machine.KEPT / "cluster"


def inside(parts: list[str]) -> int:
    """The test itself: the first process in the namespaces."""
    started = time.monotonic()
    result: dict[str, Any] = {"ok": False}
    shutil.rmtree(folder(), ignore_errors=True)
    folder().mkdir(parents=True)
    cluster = Cluster(folder(), machine.KEPT / "bin", NODES)
    try:
        cluster.start(machine.KEPT / "images.tar")
        result["version"] = json.loads(cluster.kubectl("version", "-o", "json"))["serverVersion"]["gitVersion"]
        release = Release(cluster, NAMESPACE)
        for part in parts:
            say(f"== {part}")
            began = time.monotonic()
            result[part] = PARTS[part](release) | {"seconds": round(time.monotonic() - began)}
        result["ok"] = True
    except Exception as error:
        if not isinstance(error, CheckError):
            traceback.print_exc()
        say(f"FAILED: {error}")
        result["error"] = str(error)
        explain(cluster)
    print(json.dumps(result | {"seconds": round(time.monotonic() - started)}), flush=True)
    return 0 if result["ok"] else 1


def explain(cluster: Cluster) -> None:
    """Print what the cluster shows after a failure, as far as it still answers."""
    for program in sorted(file.stem for file in folder().glob("*.log")):
        say(f"== {program}\n{cluster.last_lines(program, 8)}")
    try:
        cluster.describe(NAMESPACE)
    except (CheckError, json.JSONDecodeError) as error:
        say(f"The cluster does not answer: {error}")


# The parts that are neither disturbances nor policies ------------------------------------------------------------------


def install_chart(release: Release) -> dict[str, Any]:
    """The chart with its servers, and a run of flights, deployed by REST."""
    release.prepare()
    release.upgrade()
    printed = release.deploy(CHECKOUT / "dags", "default")
    run = release.paceline("dags", "trigger", "flights", "--wait", "--timeout", str(FLIGHTS_WITHIN_S), failing=True)
    states = {task["task_id"]: task["state"] for task in run["tasks"]}
    # This release has no warehouse, so the run publishes no tables.
    wanted = {task: "skipped" if task == "publish" else "success" for task in states}
    expect(run["state"] == "success" and states == wanted, f"the run of flights is {run['state']}: {states}")
    carriers = len(release.written(f"flights/{run['run_id']}/carrier_delays.csv"))
    expect(carriers == 17, f"carrier_delays.csv has {carriers} lines, not a header and 16 carriers")
    kinds = ("deployments", "statefulsets", "jobs", "services", "networkpolicies", "poddisruptionbudgets", "persistentvolumeclaims")
    return {"printed": printed, "tasks": len(run["tasks"]), "workers": len({task["worker"] for task in run["tasks"]}),
            "objects": {kind: len(release.get(kind)) for kind in kinds}}  # fmt: skip


def kustomize(release: Release) -> dict[str, Any]:
    """The chart is uninstalled, and leaves its data. All kustomize folders pass the API server; the one with servers runs."""
    if release.get("deployments"):
        release.uninstall()
    scaling.define_kind(release.cluster)
    other = Release(release.cluster, "kustomized")
    other.prepare()
    for name in ("base", "trial", "autoscaling"):
        other.kubectl("apply", "-k", str(DEPLOY / "kustomize" / name), "--dry-run=server", "--validate=strict")
    other.kustomize("trial")
    disturbances.deploy(other, "one")
    tasks: list[Object] = disturbances.end(other, disturbances.started(other))
    other.delete_namespace()
    return {"tasks": len(tasks)}


PARTS: dict[str, Callable[[Release], dict[str, Any]]] = {
    "chart": install_chart,
    "deploys": disturbances.deploys,
    "kills": disturbances.kills,
    "drain": disturbances.drain,
    "upgrade": disturbances.upgrade,
    "scaling": scaling.check,
    "policies": policies.check,
    "kustomize": kustomize,
}

if __name__ == "__main__":
    sys.exit(main())
