"""Programs of the tests' fork server end with the test session, even if nothing can clean up after it."""

import subprocess
import sys
from pathlib import Path

import psutil
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
