"""The part `code`: shapes in the DAGs folder, in a bundle with one version and in one with many, and the memory of versions."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench import measure as measuring
from bench import shapes
from bench.measure import Measured
from bench.options import Options, Piece
from bench.shapes import Shape
from bench.stack import Stack
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db.database import transact

SHAPES = ("chain", "wide", "many")
#: The kinds of code that are compared: `folder` is the DAGs folder without pinning, the others bundles with so many versions.
SIDES = {"folder": 0, "one": 1, "fifty": 50}
#: Versions of the memory part, and modules of each.
LOADED, MODULES = 10, 100
LIVE_S = 120.0
LIVE = "select version_id is not null and version_id = wanted_id from bundle where name = %s"
#: A module of 2 kB, as source.
MODULE = "".join(f"def function_{number}(value):\n    return value + {number} * VERSION\n\n" for number in range(25))
IMPORTS = """
import importlib, sys
import psutil
sys.path.insert(0, {folder!r})
before = psutil.Process().memory_info().rss
for name in {names!r}:
    importlib.import_module(name)
print(psutil.Process().memory_info().rss - before)
"""


def measure(options: Options) -> Piece:
    """`code`: CPU per task and makespan of bundles over those of the DAGs folder, and the memory of ten versions in a process."""
    return {"code": {"shapes": _shapes(options), "memory": _memory(options)}}


def _shapes(options: Options) -> dict[str, Any]:
    known = shapes.small() if options.small else shapes.full()
    versions = {side: min(count, 3) if options.small else count for side, count in SIDES.items()}
    sides = {name: {side: _renamed(known[name], side) for side in SIDES} for name in SHAPES}
    found: dict[str, Any] = {}
    environment = {"PACELINE_BUNDLES_KEEP_VERSIONS": "100", "PACELINE_BUNDLES_PIN_DAGS_FOLDER": "false"}
    with Stack(shapes.files_of(of["folder"] for of in sides.values()), environment=environment) as stack:
        for side, count in versions.items():
            for number in range(count):
                _deploy(stack, side, shapes.files_of(of[side] for of in sides.values()) | {"lib.py": f"VERSION = {number}"})
                # A run of it, so that workers have it in their cache and pool processes loaded.
                stack.wait_closed(stack.trigger(sides["many"][side].dag_ids[:4]))
        for name in SHAPES:
            for shape in sides[name].values():
                # Warm-up: enough runs at once that each pool process loads the files. A chain stays in one process.
                stack.wait_closed(stack.trigger(shape.dag_ids * (8 if name == "chain" else 1)))
            rounds = []
            for iteration in range(options.iterations):
                order = list(SIDES) if iteration % 2 == 0 else list(reversed(SIDES))
                rounds.append({side: measuring.run(stack, sides[name][side]) for side in order})
                options.say(f"{name}: " + ", ".join(f"{side} {rounds[-1][side].makespan_s:.3f} s" for side in SIDES))
            found[name] = {side: _over(rounds, side) for side in SIDES if side != "folder"}
            found[name]["cpu_s_per_task"] = {side: round(median(_cpu(one[side]) for one in rounds), 6) for side in SIDES}
            found[name]["succeeded"] = all(one[side].succeeded == one[side].tasks for one in rounds for side in SIDES)
    return found


def _over(rounds: list[dict[str, Measured]], side: str) -> dict[str, float]:
    """The medians of the ratios to the DAGs folder in the same round."""
    return {
        "makespan_over_folder": round(median(one[side].makespan_s / one["folder"].makespan_s for one in rounds), 4),
        "cpu_over_folder": round(median(_cpu(one[side]) / _cpu(one["folder"]) for one in rounds), 4),
    }


def _cpu(measured: Measured) -> float:
    return measured.cpu_s_per_task["total"] - measured.cpu_s_per_task["client"]


def _renamed(shape: Shape, side: str) -> Shape:
    """The shape with DAG IDs of a side. In a bundle, its files import a module."""
    names = {dag_id: f"{side}_{dag_id}" for dag_id in shape.dag_ids}
    head = "" if side == "folder" else "import lib\n"
    files = {
        f"{side}_{name}": head + text.replace(f'DAG("{name.removesuffix(".py")}"', f'DAG("{names[name.removesuffix(".py")]}"')
        for name, text in shape.files.items()
    }
    return replace(shape, files=files, dag_ids=tuple(names[dag_id] for dag_id in shape.dag_ids))


def _deploy(stack: Stack, bundle: str, files: Mapping[str, str]) -> None:
    contents = {name: BundleFile(text.encode()) for name, text in files.items()}
    transact(stack.engine, bundles.publish, bundle, contents, by="bench")
    stack.wakeups.wake_parsers()
    stack.wait(lambda: bool(stack.rows(LIVE, (bundle,))[0][0]), LIVE_S, f"bundle {bundle} to be live")


def _memory(options: Options) -> dict[str, float]:
    """MB of a pool process after its first version and after LOADED versions of MODULES modules, and of the modules alone."""
    loaded, modules = (2, 5) if options.small else (LOADED, MODULES)
    dag = "import importlib\nfrom paceline import DAG, task\n\nwith DAG('memory', schedule=None):\n    @task\n    def load():\n"
    dag += f"        for number in range({modules}):\n            importlib.import_module(f'm{{number:03}}')\n    load()\n"

    def files(version: int) -> dict[str, str]:
        return {f"m{number:03}.py": f"VERSION = {version}\n{MODULE}" for number in range(modules)}

    with Stack(shapes.chain(2).files, concurrency=1) as stack:
        stack.wait_closed(stack.trigger(["chain"]))
        used = [_pool_mb(stack)]
        for version in range(loaded):
            _deploy(stack, "memory", {"memory.py": dag} | files(version))
            stack.wait_closed(stack.trigger(["memory"]))
            used.append(_pool_mb(stack))
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        names = [f"v{version}_{file.removesuffix('.py')}" for version in range(loaded) for file in files(version)]
        for version in range(loaded):
            for file, text in files(version).items():
                (Path(name) / f"v{version}_{file}").write_text(text)
        own = float(subprocess.check_output([sys.executable, "-c", IMPORTS.format(folder=name, names=names)])) / 1e6
    found = {"before": used[0], "after_one": used[1], "after_all": used[-1], "modules_alone": own}
    options.say(", ".join(f"{key} {value:.1f} MB" for key, value in found.items()))
    return {name: round(value, 1) for name, value in found.items()} | {"over_allowed": round(used[-1] / (used[0] * 1.15 + own), 3)}


def _pool_mb(stack: Stack) -> float:
    """The memory of the largest child of the worker, which is its pool process."""
    return max(one["rss"] for one in stack.memory_mb()["worker_children"])
