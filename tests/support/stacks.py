"""Stacks of real processes: schedulers and workers as child processes, and commands to them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.embedded import stack as stacks
from scheduler.embedded.supervisor import Supervisor
from scheduler.settings import Settings
from support import commands

LOG_LINES = 60
CLI_LIMIT_S = 120.0
#: Short intervals, so that tests of failures take seconds. The `env` of a test overrides them.
QUICK = {
    "PACELINE_SCHEDULER_DAG_DIR_LIST_INTERVAL": "1",
    "PACELINE_SCHEDULER_SCHEDULER_HEARTBEAT_SEC": "0.5",
    "PACELINE_SCHEDULER_ORPHANED_TASKS_CHECK_INTERVAL": "0.5",
    "PACELINE_WORKER_GRACE_SEC": "10",
}


@dataclass
class Stack:
    """A running stack. `env` is the environment of its processes and of `cli`. Its processes are scheduler-1, worker-1, ..."""

    settings: Settings
    env: dict[str, str]
    supervisor: Supervisor
    output: list[str]

    def cli(self, *arguments: str, timeout: float = CLI_LIMIT_S) -> "subprocess.CompletedProcess[str]":
        """Run `paceline ...` to its end; `timeout` is seconds."""
        return commands.run(arguments, env=self.env, timeout=timeout)

    def json(self, *arguments: str, timeout: float = CLI_LIMIT_S) -> Any:
        """The parsed output of `paceline ... --json`, with any exit code."""
        done = self.cli(*arguments, "--json", timeout=timeout)
        assert done.stdout.strip(), f"paceline {' '.join(arguments)} exited with {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def pid(self, name: str) -> int:
        """Process id of a child."""
        return self.supervisor.pid(name)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a child process, by default SIGKILL."""
        os.kill(self.pid(name), number)

    def logs(self) -> str:
        """The end of every child's log."""
        names = sorted(path.stem for path in self.supervisor.logs_folder.glob("*.log"))
        return "\n".join(f"--- {name}\n{self.supervisor.log_tail(name, LOG_LINES)}" for name in names)

    def stop(self) -> None:
        """Shut all processes down cleanly. May be called twice."""
        self.supervisor.close()


@dataclass
class StackFactory:
    """Starts stacks and ends them all. If the test failed, it prints the logs of their processes."""

    settings: Settings
    failed: Callable[[], bool] = lambda: False
    stacks: list[Stack] = field(default_factory=list)

    def __enter__(self) -> "StackFactory":
        return self

    def __exit__(self, *error: object) -> None:
        for stack in self.stacks:
            stack.stop()
        if self.failed() or error[0] is not None:
            for stack in self.stacks:
                print(*stack.output, stack.logs(), sep="\n", file=sys.stderr)

    def __call__(
        self,
        dags: Mapping[str, str] | None = None,
        *,
        schedulers: int = 2,
        workers: Sequence[tuple[str, int]] = (("default", 4),),
        waiters: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> Stack:
        """Write the DAG files and start the processes; workers are (queues, concurrency)."""
        for name, source in (dags or {}).items():
            path = self.settings.dags_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        environment = stacks.environment_for(self.settings) | QUICK | dict(env or {})
        output: list[str] = []
        number = len(self.stacks)
        supervisor = Supervisor(self.settings.home / "logs" / f"stack-{number}", say=output.append)
        stack = Stack(self.settings, environment, supervisor, output)
        self.stacks.append(stack)
        for command in stacks.stack_commands(environment, schedulers=schedulers, workers=workers, waiters=waiters):
            supervisor.start(command)
        return stack
