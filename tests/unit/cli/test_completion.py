"""Shells complete commands and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from scheduler.cli import COMMANDS, COMPLETION_VARIABLE, paceline


def complete(*words: str) -> list[str]:
    """The completions of bash for the last word."""
    environment = {
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": " ".join(["paceline", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = CliRunner().invoke(paceline, prog_name="paceline", complete_var=COMPLETION_VARIABLE, env=environment)
    assert done.exit_code == 0, done.output
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), list(COMMANDS)),
        (("po",), ["pools"]),
        (("--d",), ["--debug"]),
        (("pools", "l"), ["list"]),
        (("pools", "set", "--i"), ["--include-deferred"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("nothing", ""), list(COMMANDS)),
    ],
)
def test_words_are_completed(words: tuple[str, ...], offered: list[str]) -> None:
    assert complete(*words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_valid_in_its_shell(shell: str) -> None:
    done = CliRunner().invoke(paceline, ["completion", shell])

    assert done.exit_code == 0
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in done.stdout
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=done.stdout, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("po",), ["pools"]),
        (("dags", "tr"), ["trigger"]),
        (("dags", "trigger", "--part"), ["--partition"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes_after_the_line_of_its_startup_file(words: tuple[str, ...], offered: list[str]) -> None:
    """The shell finds the function by the name of the program, as it does when Tab is pressed."""
    script = r"""
        eval "$(paceline completion bash)" || exit 1
        [[ $(complete -p paceline) =~ -F\ ([^ ]+)\ paceline ]] || exit 2
        COMP_WORDS=(paceline "$@") COMP_CWORD=$#
        "${BASH_REMATCH[1]}" paceline "${@: -1}"
        printf '%s\n' "${COMPREPLY[@]}"
    """
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        env={"PATH": programs},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == offered


def test_completing_a_command_imports_no_command() -> None:
    code = (
        "import sys; from scheduler.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "own = {name for name in sys.modules if name.startswith('scheduler.cli.')}\n"
        "assert own == {'scheduler.cli.lazy'}"
    )
    environment = {"PATH": os.environ["PATH"], COMPLETION_VARIABLE: "bash_complete", "COMP_WORDS": "paceline d", "COMP_CWORD": "1"}

    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "plain,dags" in done.stdout
