"""The tests' fork server runs programs like subprocess, and they end with the test session, even if nothing can clean up."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.fork_server import running_fork_server
from support.waiting import eventually

ROOT = Path(__file__).parents[3]
#: A test session that starts a program which never ends, and prints its process ID.
SESSION = """
import os, sys, time
from pathlib import Path
from support.fork_server import running_fork_server
with running_fork_server() as server:
    program = server.start("import time; time.sleep(600)", [], env=os.environ, cwd=Path.cwd(), output=Path(os.devnull))
    print(program.pid, flush=True)
    time.sleep(600)
"""


def test_programs_end_when_the_test_session_is_killed() -> None:
    command = [sys.executable, "-c", f"import sys; sys.path.append({str(ROOT / 'tests')!r})\n{SESSION}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        try:
            program = psutil.Process(int(session.stdout.readline()))
            server = program.parent()
        finally:
            session.kill()

    assert server is not None and server.pid != session.pid
    try:
        eventually(lambda: not program.is_running() and not server.is_running())
    finally:
        if program.is_running():
            program.kill()


def test_a_program_has_its_own_environment_and_arguments_and_its_outputs_are_apart() -> None:
    source = "import os, sys; print(sys.argv, os.environ); print('no', file=sys.stderr); sys.exit(3)"

    with running_fork_server() as server:
        done = server.run(source, ["a", "b"], env={"MINE": "1"}, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (3, "['-c', 'a', 'b'] environ({'MINE': '1'})\n", "no\n")


def test_a_program_that_takes_too_long_is_killed() -> None:
    with running_fork_server() as server:
        with pytest.raises(subprocess.TimeoutExpired):
            server.run("import time; time.sleep(600)", [], env=dict(os.environ), timeout=0.1)

        assert server.run("print(1)", [], env={}, timeout=60).stdout == "1\n"
