"""BashOperator and @task.bash, with real processes."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes import is_running
from support.waiting import eventually

from paceline import DAG, task
from paceline.exceptions import PacelineError, SkipTask, TaskTimeout
from paceline.operators import BashOperator
from paceline.operators.bash import BashError

CONTEXT = {"run_id": "r1", "ti": SimpleNamespace(dag_id="d", task_id="t", try_number=2), "map_index": -1}


def bash(command: str, **arguments: Any) -> Any:
    return BashOperator(task_id="t", bash_command=command, dag=DAG("d"), **arguments).execute(CONTEXT)


def number_in(path: Path) -> int:
    eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


def test_the_last_line_is_the_result_and_all_lines_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bash("echo one; echo two >&2; echo three ") == "three"
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("command", "arguments", "result"),
    [
        ("true", {}, ""),
        ("printf x", {}, "x"),
        ("printf '\\377'", {}, "\\xff"),
        ("echo short; head -c 200000 /dev/zero | tr '\\0' x", {}, "x" * 200_000),  # longer than a chunk
        ("echo 5", {"output_processor": int}, 5),
    ],
)
def test_the_result_of_odd_output(command: str, arguments: dict[str, Any], result: object) -> None:
    assert bash(command, **arguments) == result


@pytest.mark.parametrize(
    ("command", "arguments", "ends", "words", "status"),
    [
        ("exit 99", {}, SkipTask, "exited with 99", None),
        ("exit 4", {"skip_on_exit_code": [3, 4]}, SkipTask, "exited with 4", None),
        ("exit 99", {"skip_on_exit_code": None}, BashError, "exit code 99", 99),
        ("exit 3", {}, BashError, "exit code 3.", 3),
        ("kill -9 $$", {}, BashError, r"exit code -9 \(SIGKILL\)", -9),
        ("sh -c 'kill -TERM $$'; exit $?", {}, BashError, r"exit code 143 \(SIGTERM\)", 143),
    ],
)
def test_an_exit_code_skips_or_fails_with_its_signal_named(
    command: str, arguments: dict[str, Any], ends: type[Exception], words: str, status: int | None
) -> None:
    with pytest.raises(ends, match=words) as caught:
        bash(command, **arguments)
    assert getattr(caught.value, "exit_status", None) == status


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "yes")
    show = 'echo "$FROM_OUTSIDE $OWN $PACELINE_CTX_DAG_ID $PACELINE_CTX_RUN_ID $PACELINE_CTX_TRY_NUMBER"'

    assert bash(show) == "yes  d r1 2"
    assert bash(show, env={"OWN": "own"}) == " own d r1 2"
    assert bash(show, env={"OWN": "own"}, append_env=True) == "yes own d r1 2"
    assert bash('echo "$AIRFLOW_CTX_DAG_ID $AIRFLOW_CTX_DAG_RUN_ID $AIRFLOW_CTX_TRY_NUMBER"') == "d r1 2"


def test_the_folder(tmp_path: Path) -> None:
    assert bash("pwd", cwd=str(tmp_path)) == str(tmp_path)
    temporary = Path(bash("pwd"))
    assert temporary != Path.cwd()
    assert not temporary.exists()
    with pytest.raises(BashError, match="is not a folder on this machine"):
        bash("pwd", cwd=str(tmp_path / "none"))


def test_a_function_returns_the_command_which_is_a_template() -> None:
    @task.bash(env={"X": "{{ run_id }}"}, append_env=True)
    def show(n: int, run_id: str) -> str:
        return f"echo {n} {run_id} {{{{ run_id }}}} $X"

    with DAG("d") as dag:
        show(3)

    assert dag.tasks[0].render(CONTEXT).execute(CONTEXT) == "3 r1 r1 r1"


def test_a_function_that_returns_no_command_fails() -> None:
    with DAG("d") as dag:
        task.bash(task_id="t")(lambda: 5)()

    with pytest.raises(PacelineError, match="must return the command as a non-empty str, not 5"):
        dag.tasks[0].execute({})


def test_an_interrupted_command_is_ended_with_all_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pidfile = tmp_path / "pid"

    class Output(io.StringIO):
        """Interrupts at the first line: a signal while Popen still starts the command would leave a ResourceWarning."""

        def write(self, text: str) -> int:
            signal.raise_signal(signal.SIGALRM)
            return len(text)

    def interrupt(*_: Any) -> None:
        raise TaskTimeout

    before = signal.signal(signal.SIGALRM, interrupt)
    monkeypatch.setattr(sys, "stdout", Output())
    try:
        with pytest.raises(TaskTimeout):
            bash(f"sleep 300 & echo $! > {pidfile}; echo started; wait")
    finally:
        signal.signal(signal.SIGALRM, before)

    child = number_in(pidfile)
    eventually(lambda: not is_running(child))


def test_a_command_is_ended_when_the_interruption_comes_before_its_start_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pidfile = tmp_path / "pid"

    class Interrupted(subprocess.Popen[bytes]):
        """Starts the command, and is interrupted in its very last line."""

        def __init__(self, command: list[str], **arguments: Any) -> None:
            super().__init__(command, **arguments)
            if command[0] == "bash":
                number_in(pidfile)
                # As Popen does itself when it is interrupted inside.
                self.stdout.close()  # type: ignore[union-attr]
                self._child_created = False
                raise TaskTimeout

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(TaskTimeout):
        bash(f"echo $$ > {pidfile}; sleep 300")

    child = number_in(pidfile)
    eventually(lambda: not is_running(child))


def test_a_command_dies_with_a_killed_worker(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    code = f"from paceline.operators import process; process.run(['bash', '-c', 'echo $$ > {pidfile}; sleep 300'], env={dict(os.environ)!r}, cwd='/')"  # noqa: E501
    worker = subprocess.Popen([sys.executable, "-c", code])
    command = number_in(pidfile)

    worker.kill()
    worker.wait()

    eventually(lambda: not is_running(command))
