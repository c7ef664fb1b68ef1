"""Bundles with packages of their own: uv installs them once on a machine, and parsing, tasks and callbacks use them."""

import functools
import io
import json
import re
import textwrap
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.notices import notify
from support.processes import is_running
from support.run_actions import mark_
from support.waiting import eventually

from paceline.states import TaskState
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.bundles import BundleManager
from scheduler.settings import Settings
from scheduler.store.dags import bundles
from scheduler.store.dags.bundle_versions import Live
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db.database import transact
from scheduler.store.runs.selection import Runs

from ..conftest import Bench

WHEEL = "wheels/greet-{version}-py3-none-any.whl"
#: Two tasks in a row, which note the package and the processes that execute them.
FLOW = """
import json, os, pathlib, signal, sys, time
import greet
from paceline import DAG, Variable, task
from paceline.operators import BashOperator

OUT = pathlib.Path({out!r})

def note(where, **more):
    with open(OUT / "told", "a") as file:
        file.write(json.dumps({{"at": where, "greet": greet.VERSION, "prefix": sys.prefix, "pid": os.getpid(), **more}}) + "\\n")

with DAG("d", schedule=None):
    @task(on_success_callback=lambda context: note("callback"))
    def first():
        print("said by the package:", greet.VERSION)
        note("first", worker=os.getppid(), variable=Variable.get("color"))
        return {{"greeting": greet.VERSION}}

    @task
    def second(value):
        note("second", value=value, worker=os.getppid())

    second(first())
"""
ONE = """
import os, pathlib, signal, sys, time
import greet
from datetime import timedelta
from paceline import DAG, task

OUT = pathlib.Path({out!r})

with DAG("d", schedule=None):
    @task(retries=0, {options})
    def first():
        {body}
    first()
"""

SLEEPS = """(OUT / "begun").touch()
        try:
            time.sleep(600)
        finally:
            (OUT / "cleaned").touch()"""


def wheel(version: str) -> bytes:
    """A package `greet`, as its archive."""
    info = f"greet-{version}.dist-info"
    files = {
        "greet/__init__.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: greet\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # always of the same time
    return packed.getvalue()


class Deploys:
    """Deploys to a bench whose schedulers and workers install requirements, without a package index."""

    def __init__(self, bench: Bench, manager: BundleManager, out: Path) -> None:
        self.bench, self.manager, self.out = bench, manager, out

    def deploy(self, flow: str, version: str, requirements: str | None = None, bundle: str = "sales") -> Live:
        files: dict[str, bytes] = {"d.py": textwrap.dedent(flow).encode(), WHEEL.format(version=version): wheel(version)}
        required = f"./{WHEEL.format(version=version)}\n" if requirements is None else requirements
        files["requirements.txt"] = required.encode()
        contents = {path: BundleFile(content) for path, content in files.items()}
        transact(self.bench.scenario.engine, bundles.publish, bundle, contents, by="ada")
        live = self.manager.run_once()
        assert live is not None
        return live

    def one(self, body: str, options: str = "") -> int:
        """A run of one task that has begun."""
        live = self.deploy(ONE.format(out=str(self.out), body=body, options=options), "1.0")
        assert live.is_live, live.problems
        return self.bench.scenario.trigger("d", run_id="r1")

    def told(self) -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in (self.out / "told").read_text().splitlines()]

    @property
    def environments(self) -> list[str]:
        folder = self.bench.settings.home / "environments"
        return [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


@pytest.fixture
def settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    return with_requirements(settings, allowed=True)


def with_requirements(settings: Settings, *, allowed: bool) -> Settings:
    return settings.model_copy(update={"bundles": settings.bundles.model_copy(update={"install_requirements": allowed})})


def manager_of(bench: Bench, settings: Settings) -> BundleManager:
    engine = bench.scenario.engine
    return BundleManager(
        engine,
        settings,
        lambda: "s#1",
        BundleCache.of(settings, StoredContents.over(functools.partial(transact, engine), settings)),
    )


@pytest.fixture
def deploys(bench: Bench, settings: Settings, tmp_path: Path) -> Iterator[Deploys]:
    deploys = Deploys(bench, manager_of(bench, settings), tmp_path)
    yield deploys
    deploys.manager.stop()


@pytest.fixture
def worker(bench: Bench) -> Callable[[], object]:
    return lambda: bench.worker(PACELINE_BUNDLES_INSTALL_REQUIREMENTS="true", UV_NO_INDEX="1", PACELINE_VAR_COLOR="green")


@pytest.mark.long
def test_tasks_and_callbacks_of_a_bundle_use_its_packages_and_continue_in_place(
    deploys: Deploys, bench: Bench, worker: Callable[[], object]
) -> None:
    worker()
    for version in ("1.0", "2.0", "1.0"):
        live = deploys.deploy(FLOW.format(out=str(deploys.out)), version)
        assert live.is_live, live.problems
        bench.wait(bench.scenario.trigger("d"))
        notify(bench.scenario)

    assert bench.scenario.rows("select reason from task_instance where state <> 'success'") == []
    told = deploys.told()
    assert [one["greet"] for one in told] == ["1.0"] * 3 + ["2.0"] * 3 + ["1.0"] * 3
    assert [one["at"] for one in told[:3]] == ["first", "second", "callback"]
    # One process for each environment, which the pool process keeps: it continues with the second task in place.
    tasks = [one for one in told if one["at"] != "callback"]
    assert len({one["pid"] for one in tasks}) == 2 and len({one["worker"] for one in tasks}) == 1
    assert {Path(one["prefix"]).parent for one in told} == {bench.settings.home / "environments"}
    assert told[1]["value"] == {"greeting": "1.0"} and told[0]["variable"] == "green"
    assert len(deploys.environments) == 2
    log = next(bench.settings.logs_folder.rglob("first/try-1.log")).read_text()
    assert "said by the package: " in log and "it runs with " in log and log.count("success after") == 1


def test_requirements_that_cannot_be_installed_keep_the_live_version(deploys: Deploys) -> None:
    assert deploys.deploy(FLOW.format(out=str(deploys.out)), "1.0").is_live

    live = deploys.deploy(FLOW.format(out=str(deploys.out)), "2.0", requirements="greet==3.0\n")

    ((file, problem),) = live.problems
    assert file == "requirements.txt" and problem.message.startswith("requirements.txt of the bundle cannot be installed: ")
    assert "greet" in problem.message and "\n" not in problem.message
    assert len(deploys.environments) == 1


def test_what_paceline_needs_keeps_its_version(deploys: Deploys) -> None:
    live = deploys.deploy(FLOW.format(out=str(deploys.out)), "1.0", requirements="pydantic<2\n")
    ((_, problem),) = live.problems
    assert re.search(r"pydantic\s*[<=]", problem.message), problem.message


def test_nothing_is_installed_without_the_setting(deploys: Deploys, settings: Settings) -> None:
    deploys.manager = manager_of(deploys.bench, with_requirements(settings, allowed=False))

    live = deploys.deploy(FLOW.format(out=str(deploys.out)), "1.0")

    assert "No module named 'greet'" in live.problems[0][1].message and deploys.environments == []


@pytest.mark.parametrize(("options", "reason"), [
    ("", "Marked as failed"),
    pytest.param("execution_timeout=timedelta(seconds=1)", "execution_timeout of 1 s", marks=pytest.mark.long),
])  # fmt: skip
def test_an_interruption_reaches_the_code_and_its_cleanup(
    deploys: Deploys, bench: Bench, worker: Callable[[], object], options: str, reason: str
) -> None:
    worker()
    run = deploys.one(SLEEPS, options)
    eventually(lambda: bench.scenario.turn() or (deploys.out / "begun").exists(), timeout=60, message=lambda: bench.output)
    if not options:
        mark_(bench.scenario, TaskState.FAILED, "first", runs=Runs(dag_id="d"))

    bench.wait(run)

    assert bench.scenario.run_state(run) == "failed"
    eventually(lambda: (deploys.out / "cleaned").exists(), timeout=30)
    if options:
        assert reason in str(bench.column("first", "reason"))


@pytest.mark.long
def test_a_process_that_dies_fails_its_try_alone(deploys: Deploys, bench: Bench, worker: Callable[[], object]) -> None:
    worker()
    run = deploys.one("os.kill(os.getpid(), signal.SIGKILL)")

    bench.wait(run)

    assert "SIGKILL" in str(bench.column("first", "reason"))
    again = deploys.deploy(ONE.format(out=str(deploys.out), body="return greet.VERSION", options=""), "1.0")
    assert again.is_live
    run = bench.scenario.trigger("d", run_id="r2")
    bench.wait(run)
    assert bench.scenario.run_state(run) == "success"


@pytest.mark.long
def test_nothing_of_a_worker_that_is_killed_stays(deploys: Deploys, bench: Bench, worker: Callable[[], object]) -> None:
    worker()
    deploys.one("(OUT / 'pid').write_text(str(os.getpid()))\n        time.sleep(600)")
    told = deploys.out / "pid"
    eventually(lambda: bench.scenario.turn() or (told.exists() and told.read_text()), timeout=60)
    pid = int(told.read_text())

    bench.workers[0].process.kill()

    eventually(lambda: not is_running(pid), timeout=30)
