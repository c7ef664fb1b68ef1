"""The threads of the product: one that its process needs for all of its life ends the process when it ends with an error."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Threads that are no VitalThread, by file, with the reason.
OTHERS = {
    "scheduler/process/health.py": "the class itself",
    "scheduler/process/masked_output.py": "lives as long as the log of a try; its end closes the pipe",
    "scheduler/process/health_server.py": "a server that does not answer is what the service manager looks for",
    "scheduler/process/service_manager.py": "a message that does not come is what systemd looks for",
    "scheduler/embedded/supervisor.py": "lives in the command of a person, which shows its errors",
    "paceline/operators/spark.py": "lives as long as a task",
    "scheduler/store/worker/hot_path.py": "closes one idle connection",
    "workers/waiter/waiter.py": "only names the trigger that blocks the event loop",
    "workers/process/progress.py": "lives as long as a task, whose progress it shows",
    "workers/spark/frames.py": "reads one count",
    "workers/spark/clusters/connect.py": "sends one interrupt",
    "workers/spark/sessions/session_pool.py": "closes one server",
    "workers/spark/sessions/session.py": "cancels one job",
    "workers/spark/sessions/jvm.py": "reads the output of one JVM until its end",
}


def plain_threads(tree: ast.AST) -> Iterator[int]:
    """The lines that create or derive from `threading.Thread`."""
    for node in ast.walk(tree):
        made = node.func if isinstance(node, ast.Call) else None
        if any(
            ast.unparse(base) == "threading.Thread"
            for base in (made, *(node.bases if isinstance(node, ast.ClassDef) else ()))
            if base
        ):
            yield node.lineno  # type: ignore[attr-defined]


def test_every_thread_is_vital_or_has_a_reason_not_to_be() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in ("paceline", "scheduler", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if list(plain_threads(ast.parse(path.read_text())))
    }
    assert found == set(OTHERS)


ENDS = """
import time
from scheduler.process.health import VitalThread

class Duty(VitalThread):
    def work(self):
        raise RuntimeError("a fault")

Duty(name="duty", daemon=True).start()
time.sleep(60)
"""


def test_the_error_of_a_vital_thread_ends_its_process() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS], cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)

    assert ended.returncode == 1
    assert "The thread duty ended with an error, so this process ends." in ended.stderr
    assert "RuntimeError: a fault" in ended.stderr
