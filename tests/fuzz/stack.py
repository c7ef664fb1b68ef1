"""The last part: a real scheduler, worker and waiter over a folder of hostile files and a broker full of garbage."""

import os
import random
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from support import hostile
from support.stacks import StackFactory
from support.waiting import eventually

from fuzz import broker as broker_rounds
from fuzz import strategies
from fuzz.areas import Ground
from fuzz.run import Result
from scheduler.messaging.brokers import client

GOOD = """
from paceline import DAG
from paceline.operators import BashOperator
with DAG("good", schedule=None):
    BashOperator(task_id="t", bash_command="true")
"""
FILES, MESSAGES = 150, 400


def samples(strategy: Any, count: int) -> list[Any]:
    """So many examples of a strategy, outside of a test."""
    found: list[Any] = []

    @hypothesis_settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(strategy)
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found


def hostile_folder(folder: Path, *, seed: int) -> int:
    """Create files of every kind, hostile names, loops of links, unreadable files; the number of files."""
    sources = samples(strategies.sources, FILES)
    random.Random(seed).shuffle(sources)
    for number, source in enumerate(sources):
        (folder / f"file_{number}.py").write_bytes(source)
    nested = folder / "a" / "b"
    nested.mkdir(parents=True)
    (nested / "loop").symlink_to(folder)
    (folder / "self.py").symlink_to("self.py")
    (folder / "gone.py").symlink_to("nowhere.py")
    (folder / "dev.py").symlink_to("/dev/zero")
    (folder / "folder.py").mkdir()
    os.mkfifo(folder / "pipe.py")
    names = ["with blank.py", "new\nline.py", "--help.py", "$(id).py", "'quote\".py", "ünï.py", "💥.py", "%s.py", "a" * 250 + ".py"]
    for name in [*names, os.fsdecode(b"latin\xff.py")]:
        (folder / name).write_bytes(b"# scheduler DAG\nraise ValueError('\\0\\ud800')\n")
    return len(sources) + len(names) + 7


def real_processes(on: Ground, *, seed: int, result: Result) -> int:
    """No process dies or prints a stack trace, and a good DAG runs among all that; the number of cases."""
    settings = on.settings
    count = hostile_folder(settings.dags_folder, seed=seed)
    (settings.dags_folder / "good.py").write_text(GOOD)
    items = [*hostile.items("/nonexistent/bomb").values(), *samples(strategies.messages, MESSAGES)]
    broker: Any = client(settings.broker_url)
    for item in items:
        broker.lpush("default", item)
    try:
        with StackFactory(settings) as factory:
            stack = factory(
                schedulers=1, workers=[("default", 2)], waiters=1, env={"PACELINE_SCHEDULER_DAG_FILE_PROCESSOR_TIMEOUT": "5"}
            )
            pids = {name: stack.pid(name) for name in stack.supervisor.names()}
            eventually(lambda: "good" in [one["dag_id"] for one in stack.json("dags", "list")], timeout=120, message=stack.logs)
            run = stack.json("dags", "trigger", "good", "--run-id", "r", "--wait", "--timeout", "60")
            assert run["state"] == "success", stack.logs()
            eventually(lambda: broker.llen("default") == 0, timeout=60)
            for arguments in (["dags", "errors"], ["dags", "errors", "--json"], ["dags", "list"], ["doctor"]):
                done = stack.cli(*arguments)
                assert "Traceback" not in done.stderr, done.stderr
            broker_rounds.check_processes(stack, pids)
            count += broker_rounds.rounds(
                stack,
                seed=seed,
                garbage=[member for members in samples(strategies.wakeups, 200) for member in members] + items[:200],
                commands=samples(strategies.commands, 400),
                kinds=[*broker_rounds.KINDS, None, None],
            )
    except AssertionError as error:
        result.failures["stack"] = str(error)
    finally:
        broker.close()
    return count + len(items)
