"""Children of a supervisor: restarted, stopped in stages, and never alive after their parent."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from support.processes import is_running
from support.waiting import eventually

from scheduler.embedded import supervisor as processes
from scheduler.embedded.supervisor import Command, Supervisor

#: Starts a grandchild in a session of its own (as a daemon would be), writes both ids to argv[1], then sleeps.
PARENT_OF_A_STRAY = """
    import os, subprocess, sys, time, pathlib, signal
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    part = pathlib.Path(sys.argv[1] + ".part")
    part.write_text(f"{os.getpid()} {stray.pid}")
    part.rename(sys.argv[1])
    time.sleep(600)
"""
#: Prints "ready", and appends its name (argv[1]) to the file argv[2] at SIGTERM.
POLITE = """
    import os, signal, sys, time
    def end(*_):
        with open(sys.argv[2], "a") as order:
            order.write(sys.argv[1] + "\\n")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    time.sleep(600)
"""


def python(source: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-c", textwrap.dedent(source), *map(str, arguments))


def pids_in(path: Path) -> list[int]:
    eventually(path.exists)
    return [int(word) for word in path.read_text().split()]


@pytest.fixture
def lines():
    return []


@pytest.fixture
def supervisor(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(processes, "FIRST_PAUSE_S", 0.05)
    with Supervisor(tmp_path / "logs", say=lines.append) as supervisor:
        yield supervisor


def test_a_child_that_fails_is_restarted_and_one_line_states_the_reason(supervisor, lines, tmp_path):
    first = supervisor.start(Command(name="part", argv=python("import time; print('up', flush=True); time.sleep(600)")))

    os.kill(supervisor.pid("part"), signal.SIGKILL)

    eventually(lambda: supervisor.alive("part") and supervisor.pid("part") != first)
    assert lines == [
        f"part was killed by SIGKILL, its log is {tmp_path}/logs/part.log; starting it again in 0 s.",
        "part runs again.",
    ]


def test_pauses_between_restarts_grow(supervisor, lines):
    supervisor.start(Command(name="part", argv=python("raise SystemExit(3)")))

    eventually(lambda: sum("exited with code 3" in line for line in lines) >= 4)

    pauses = [child.failures for child in supervisor._children.values()]
    assert pauses[0] >= 4


def test_a_command_that_does_not_exist_is_named_in_its_log(supervisor):
    supervisor.start(Command(name="part", argv=("/nonexistent/program",)))

    eventually(lambda: "/nonexistent/program cannot be started: [Errno 2] No such file" in supervisor.log_tail("part"))


def test_the_same_name_twice_is_refused(supervisor):
    supervisor.start(Command(name="part", argv=("sleep", "600")))

    with pytest.raises(processes.ChildError, match="part is already started"):
        supervisor.start(Command(name="part", argv=("sleep", "600")))


def test_higher_stages_have_ended_before_lower_stages_get_a_signal(supervisor, tmp_path):
    order = tmp_path / "order"
    for name, stage in (("servers", 0), ("schedulers", 2), ("flower", 1), ("workers", 3)):
        supervisor.start(Command(name=name, argv=python(POLITE, name, order), stage=stage))
        eventually(lambda name=name: "ready" in supervisor.log_tail(name))

    supervisor.close()

    assert order.read_text().split() == ["workers", "schedulers", "flower", "servers"]


def test_an_ended_child_takes_its_descendants_along(supervisor, tmp_path):
    supervisor.start(Command(name="part", argv=python(PARENT_OF_A_STRAY, tmp_path / "pids")))
    pids = pids_in(tmp_path / "pids")

    supervisor.stop("part")

    assert not any(map(is_running, pids))


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace_period(supervisor, tmp_path):
    supervisor.start(Command(name="part", argv=python(PARENT_OF_A_STRAY, tmp_path / "pids", "deaf"), grace_sec=0.2))
    pids = pids_in(tmp_path / "pids")

    supervisor.stop("part")

    assert not any(map(is_running, pids))
    assert supervisor.names() == []


def test_processes_of_a_crashed_child_are_gone_before_it_restarts(supervisor, tmp_path):
    supervisor.start(Command(name="part", argv=python(PARENT_OF_A_STRAY, tmp_path / "pids")))
    parent, stray = pids_in(tmp_path / "pids")

    os.kill(parent, signal.SIGKILL)

    eventually(lambda: supervisor.pid("part") != parent)
    assert not is_running(stray)


def test_nothing_outlives_a_supervisor_killed_with_sigkill(tmp_path):
    source = f"""
        import sys, time
        from pathlib import Path
        from scheduler.embedded.supervisor import Command, Supervisor
        supervisor = Supervisor(Path({str(tmp_path)!r}))
        supervisor.start(Command(name="part", argv=({sys.executable!r}, "-c", sys.argv[1], {str(tmp_path / "pids")!r}, "deaf")))
        time.sleep(600)
    """
    with subprocess.Popen(python(source, textwrap.dedent(PARENT_OF_A_STRAY))) as owner:
        pids = pids_in(tmp_path / "pids")
        owner.kill()

    eventually(lambda: not any(map(is_running, pids)))


def test_a_guardian_killed_with_sigkill_takes_its_command_along(supervisor, tmp_path):
    pid = supervisor.start(Command(name="part", argv=("sleep", "600")))

    psutil.Process(pid).parent().kill()

    eventually(lambda: not is_running(pid))
    eventually(lambda: supervisor.alive("part"))


def test_a_log_that_grew_large_is_set_aside(supervisor, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LARGEST_LOG_BYTES", 10)
    supervisor.log("part").parent.mkdir()
    supervisor.log("part").write_text("of an earlier stack\n")

    supervisor.start(Command(name="part", argv=python("import time; print('new', flush=True); time.sleep(600)")))

    eventually(lambda: supervisor.log_tail("part") == "new\n")
    assert (tmp_path / "logs" / "part.log.1").read_text() == "of an earlier stack\n"
