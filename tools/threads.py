"""The threads of the product: one that its process needs for all of its life ends the process when it ends with an error."""

import ast
from collections.abc import Iterator

from tools.sources import PRODUCT, check, differences, modules

#: Threads that are no VitalThread, by file, with the reason.
OTHERS = {
    "scheduler/api/comparisons.py": "ends when nothing is left to compare; the next request that asks starts another one",
    "workers/supervision/connection_tests.py": "tests one connection, whose answer the web process waits for",
    "scheduler/process/masked_output.py": "lives as long as the log of a try; its end closes the pipe",
    "scheduler/process/health.py": "the class itself, and a server that does not answer is what the service manager looks for",
    "scheduler/process/role.py": "a message that does not come is what systemd looks for",
    "scheduler/dagfiles/bundles.py": "installs the requirements of one version, and hands its error to the thread that waits",
    "scheduler/embedded/supervisor.py": "lives in the command of a person, which shows its errors",
    "paceline/operators/spark.py": "lives as long as a task",
    "scheduler/store/worker/hot_path.py": "closes one idle connection",
    "workers/waiter/waiter.py": "only names the trigger that blocks the event loop",
    "workers/process/progress.py": "lives as long as a task, whose progress it shows",
    "workers/spark/clusters/connect.py": "sends one interrupt",
    "workers/spark/sessions/session_pool.py": "closes one server",
    "workers/spark/sessions/session.py": "cancels one job",
    "workers/spark/sessions/jvm.py": "reads the output of one JVM until its end",
}


def plain_threads(tree: ast.AST) -> Iterator[ast.AST]:
    """The calls and classes that create or derive from `threading.Thread`."""
    for node in ast.walk(tree):
        made = [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []
        if any(ast.unparse(one) == "threading.Thread" for one in made):
            yield node


@check
def threads_are_vital_or_have_a_reason_not_to_be() -> Iterator[str]:
    """Each file with a plain thread is in OTHERS."""
    found = {path for path, tree in modules(*PRODUCT).items() if any(plain_threads(tree))}
    yield from differences(found, set(OTHERS), "derive its thread from VitalThread, or give the reason in tools/threads.py")
