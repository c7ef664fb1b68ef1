"""Every command of docs/tutorial.md works, in the order of the page, on the stack that it starts."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.standalone import STOP_S, ask, environment_of, standalone

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
#: A block of commands, or the content of a file with its path.
STEP = re.compile(r"Save this as `(?P<path>[^`]+)`:\n\n```python\n(?P<text>.*?)```|```sh\n(?P<commands>.*?)```", re.DOTALL)
STACK = "paceline standalone"
FAILS = "# fails"
COMMAND_S = 240


def test_every_command_of_the_tutorial_works(short_folder: Path) -> None:
    first = short_folder / "first"
    environment = environment_of(first / "home", Path("dags"))
    del environment["PACELINE_HOME"], environment["PACELINE_DAGS_FOLDER"]
    # COLUMNS as in a terminal whose shell exports it.
    environment |= {"COLUMNS": "80", "HOME": str(short_folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    steps = list(STEP.finditer(PAGE.read_text(encoding="utf-8")))
    start = next(number for number, step in enumerate(steps) if step["commands"] == f"{STACK}\n")
    shell = Shell(short_folder, environment)

    for step in steps[:start]:
        shell.do(step)
    with standalone(shell.environment | {"PACELINE_DAGS_FOLDER": str(first / "dags")}) as stack:
        for step in steps[start + 1 :]:
            shell.do(step)
        runs = json.loads(ask(shell.environment, "runs", "list", "--dag", "weather", "--json"))
        stack.send_signal(signal.SIGINT)
        assert stack.wait(STOP_S) == 0

    states = {run["run_id"]: run["state"] for run in runs}
    assert states["first"] == states["second"] == "success"
    assert any("mean of 3 cities is 16.8" in text for text in shell.outputs)
    assert any("KeyError" in text and "Lima" in text for text in shell.outputs)
    assert any("mean of 4 cities" in text for text in shell.outputs)


class Shell:
    """The reader's first terminal: its folder and its variables stay from block to block."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.outputs: list[str] = []

    def do(self, step: "re.Match[str]") -> None:
        """Save the file of a step, or run its commands; one that is marked must fail, and the others must not."""
        if step["path"]:
            (self.folder / step["path"]).write_text(step["text"], encoding="utf-8")
            return
        for line in step["commands"].splitlines():
            command = line.removesuffix(FAILS).rstrip()
            kept = self.folder / ".kept"
            script = f"{command}\ncode=$?\n{{ pwd; env -0; }} > {shlex.quote(str(kept))}\nexit $code"
            # A command that hangs ends with what it has printed.
            done = subprocess.run(
                ["timeout", str(COMMAND_S), "bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True,
                text=True, check=False,
            )  # fmt: skip
            self.outputs.append(done.stdout + done.stderr)
            assert (done.returncode != 0) == line.endswith(FAILS), f"{command}: {done.stdout}{done.stderr}"
            where, _, variables = kept.read_text().partition("\n")
            self.folder = Path(where)
            self.environment = dict(entry.split("=", 1) for entry in variables.split("\0") if "=" in entry)
