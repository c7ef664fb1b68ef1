"""Processes that a DAG file starts always end with it, and its processes, open files and output are limited."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.processes import is_running
from support.waiting import eventually

from scheduler.dagfiles import process_tree

from .conftest import Files
from .test_bad_files import GOOD, MARK

#: Leaves its group, its session and its parents, and opts out of being killed with them.
ESCAPES = """
import ctypes, os, signal, time
def escape(path):
    def run():
        ctypes.CDLL(None).prctl(1, 0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)
        time.sleep(600)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                run()
        os._exit(0)
    while not os.path.exists(path):
        time.sleep(0.01)
"""
KILLS_PARENT = "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)\n"
KILLS_TEMPLATE = """
template = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
keeper = os.getppid()
os.kill(template, signal.SIGKILL)
os.kill(keeper, signal.SIGKILL)
time.sleep(600)
"""
#: The steps of a scheduler before it reads files.
READER = """
import sys, time
from scheduler.dagfiles import process_tree
from scheduler.dagfiles.parser import Parser
from scheduler.settings import Settings
process_tree.become_reaper()
parser = Parser(Settings.model_validate_json(sys.argv[1]))
parser.submit(sys.argv[2:])
answers = []
while len(answers) < len(sys.argv[2:]):
    answers += parser.collect()
    time.sleep(0.02)
print(*(f"{answer.file}: {answer.problem and answer.problem.message}" for answer in answers), sep="\\n", flush=True)
sys.stdin.read()
parser.stop()
"""


def is_gone(path: Path) -> bool:
    return not is_running(int(path.read_text()))


@pytest.mark.parametrize("then", ["", KILLS_PARENT], ids=["it is read", "it kills its keeper"])
def test_a_process_that_leaves_its_group_and_session_ends_with_the_file(files: Files, tmp_path: Path, then: str) -> None:
    pid = tmp_path / "pid"
    files.write("escapes.py", f"{MARK}{ESCAPES}escape({str(pid)!r})\n{then}")
    files.write("good.py", GOOD)

    files.read_all(files.manager())

    eventually(lambda: is_gone(pid))
    assert files.dags() == {"good": ("good.py", True, 1)}
    assert files.errors().keys() == ({"escapes.py"} if then else set())


def test_the_scheduler_ends_the_children_of_a_killed_template_process(files: Files, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    files.write("escapes.py", f"{MARK}{ESCAPES}escape({str(pid)!r})\n{KILLS_TEMPLATE}")
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, files.settings.model_dump_json(), "escapes.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None

    assert "ended the process that reads all files (SIGKILL)" in reader.stdout.readline()

    assert is_gone(pid)
    assert psutil.Process(reader.pid).children() == []
    reader.communicate("", timeout=60)


def test_a_file_may_not_open_or_write_without_end(files: Files, tmp_path: Path) -> None:
    files.write("opens.py", MARK + "kept = [open('/dev/null') for _ in range(5000)]\n")
    files.write(
        "writes.py", MARK + f"import os\nos.truncate(os.open({str(tmp_path / 'large')!r}, os.O_CREAT | os.O_RDWR), 1 << 30)\n"
    )
    files.write("good.py", GOOD)

    files.read_all(files.manager())

    messages = {file: message for file, (_, message, _) in files.errors().items()}
    assert messages == {"opens.py": messages["opens.py"], "writes.py": messages["writes.py"]}
    assert "Too many open files" in messages["opens.py"]
    assert "File too large" in messages["writes.py"]
    assert files.dags() == {"good": ("good.py", True, 1)}


def test_a_user_may_start_only_so_many_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "MAX_PROCESSES", 20)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.getuid() == 0:  # the kernel does not limit root
                os.setgid(65534)
                os.setuid(65534)
            process_tree.confine(memory_mb=4096, file_mb=1, processes=process_tree.ProcessCount().limit())
            children = []
            try:
                for _ in range(200):
                    child = os.fork()
                    if child == 0:
                        signal.pause()
                    children.append(child)
            except BlockingIOError:
                code = 0 if len(children) <= 20 else 2
            for child in children:
                os.kill(child, 9)
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
