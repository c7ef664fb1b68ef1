"""`paceline standalone` as a child process of a test, and commands to it."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from scheduler.embedded import stack
from support import commands

START_S = 90.0
STOP_S = 60.0


def environment_of(home: Path, dags: Path) -> dict[str, str]:
    """The environment of a small stack with its own home, which detects lost processes quickly."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return clean | {
        "PACELINE_HOME": str(home), "PACELINE_DAGS_FOLDER": str(dags), "PACELINE_WORKER_CONCURRENCY": "2",
        "PACELINE_WORKER_HEARTBEAT_SEC": "0.5", "PACELINE_WORKER_HEARTBEAT_TIMEOUT": "3", "PACELINE_FLOWER_PORT": "0",
        "PACELINE_WEB_PORT": "0",
    }  # fmt: skip


@contextlib.contextmanager
def standalone(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A running `paceline standalone` with its output; killed at the end if the test has not ended it."""
    command = [*stack.PACELINE, "standalone"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("Ready."):
                    break
            else:
                raise AssertionError("".join(lines))
            process.output = "".join(lines)  # type: ignore[attr-defined]
            yield process
        finally:
            process.kill()


def demo(environment: dict[str, str], *, ok: int = 0) -> str:
    """The output of `paceline demo`."""
    done = subprocess.run([*stack.PACELINE, "demo"], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ok, done.stderr
    return done.stdout


def ask(environment: dict[str, str], *arguments: str, ok: Sequence[int] = (0,)) -> str:
    """The output of another `paceline ...`, which starts no process."""
    done = commands.run(arguments, env=environment, timeout=120)
    assert done.returncode in ok, done.stderr
    return done.stdout
