"""The environment of user code, its output, and traces of it that must not stay behind."""

import re
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.own_program


def test_all_output_of_a_task_is_in_its_log_in_order(shared_bench: Any) -> None:
    shared_bench.run("""
        import logging, os, subprocess, sys
        @dag(schedule=None)
        def d():
            @task
            def t():
                print("to stdout")
                print("to stderr", file=sys.stderr)
                logging.getLogger("mine").info("to logging")
                subprocess.run(["echo", "from a subprocess"])
                os.write(1, b"to the descriptor\\n")
                print("bad \\ud800 character")
                sys.stdout.write("no end of line")
                raise ValueError("boom")
            t()
        d()
    """)

    lines = shared_bench.log("t").splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO d\.t, run r1, try 1 of 1, worker w0@[\w.-]+#\w+, dispatch [\w-]+", lines[0])
    assert lines[1:3] == ["to stdout", "to stderr"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z INFO mine: to logging", lines[3])
    assert lines[4:7] == ["from a subprocess", "to the descriptor", "bad \\ud800 character"]
    traceback = lines[7:-1]
    assert traceback[0] == "no end of lineTraceback (most recent call last):"
    assert "example.py" in traceback[1]
    assert not any("workers/" in line or "scheduler/" in line or "paceline/" in line for line in traceback)
    assert lines[-1].endswith("ERROR failed: ValueError: boom")


@pytest.mark.long
def test_a_task_may_print_100_mb(bench: Any) -> None:
    worker = bench.worker()
    bench.dag("""
        @dag(schedule=None)
        def d():
            @task
            def t():
                for number in range(1_000_000):
                    print("x" * 104)
            t()
        d()
    """)

    bench.wait(bench.scenario.trigger("d", run_id="r1"))

    assert bench.scenario.states() == {"t": "success"}
    assert bench.log_path("t").stat().st_size > 100_000_000
    children = psutil.Process(worker.process.pid).children()
    assert max(sum(process.cpu_times()[:2]) for process in children) < 30
    memory = [process.memory_info().rss for process in children]
    assert max(memory) < 200_000_000


def test_a_task_leaves_the_process_as_it_found_it(shared_bench: Any) -> None:
    shared_bench.run("""
        import logging, os, signal, sys
        def state():
            return {
                "cwd": os.getcwd(), "env": dict(os.environ), "level": logging.root.level, "handlers": len(logging.root.handlers),
                "mine": logging.getLogger("mine").level, "disabled": logging.root.manager.disable,
                "usr2": str(signal.getsignal(signal.SIGUSR2)), "umask": os.umask(0o22), "pid": os.getpid(),
            }
        @dag(schedule=None)
        def d():
            @task
            def before():
                logging.getLogger("mine")
                return state()
            @task
            def spoil(value):
                os.chdir("/"); os.environ["NEW"] = "1"; del os.environ["PATH"]; os.umask(0)
                logging.root.setLevel(50); logging.root.handlers.clear(); logging.disable(50); logging.getLogger("mine").setLevel(1)
                signal.signal(signal.SIGUSR2, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)
                sys.stdout.close(); os.close(1); sys.stderr = None
            @task
            def after(value, none):
                print("still heard")
                assert state() == value, (state(), value)
            value = before()
            after(value, spoil(value))
        d()
    """)

    assert shared_bench.scenario.states() == {"before": "success", "spoil": "success", "after": "success"}, shared_bench.log(
        "after"
    )
    assert "still heard" in shared_bench.log("after")


def test_user_code_sees_its_home_and_no_passwords(shared_bench: Any) -> None:
    shared_bench.run("""
        import os
        @dag(schedule=None)
        def d():
            @task
            def t(ti, run_id, dag_run, params, conf):
                from paceline import get_current_context
                assert get_current_context()["ti"] is ti
                return [os.environ["PACELINE_HOME"], [name for name in os.environ if name.endswith("_URL")], run_id, ti.try_number]
            t()
        d()
    """)

    value = shared_bench.scenario.rows("select value from xcom")[0][0]
    assert value == [str(shared_bench.settings.home), [], "r1", 1]


def test_a_fork_that_user_code_leaves_behind_reports_nothing(shared_bench: Any) -> None:
    shared_bench.run("""
        import os
        @dag(schedule=None)
        def d():
            @task
            def t():
                child = os.fork()
                if child:
                    os.waitpid(child, 0)
                    return "parent"
                return "child"
            t()
        d()
    """)

    assert shared_bench.scenario.rows("select value from xcom") == [("parent",)]


def test_modules_in_the_dags_folder_do_not_shadow_those_of_the_worker(bench: Any) -> None:
    folder = bench.settings.dags_folder
    for name in ("workers", "config", "json", "celery", "scheduler", "paceline"):
        (folder / f"{name}.py").write_text("raise RuntimeError('shadowed')")
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    bench.folder.joinpath("workers.py").write_text("raise RuntimeError('shadowed')")
    bench.worker()

    bench.run("""
        with DAG("d", schedule=None):
            PythonOperator(task_id="t", python_callable=lambda: 1)
    """)

    assert bench.scenario.states() == {"t": "success"}


def test_tasks_run_side_by_side_in_as_many_children_as_configured(bench: Any) -> None:
    bench.worker(concurrency=2)

    bench.run(f"""
        import os, time
        def meet(mine, other):
            open({str(bench.folder)!r} + "/" + mine, "w")
            for _ in range(600):
                if os.path.exists({str(bench.folder)!r} + "/" + other):
                    return
                time.sleep(0.05)
            raise TimeoutError
        with DAG("d", schedule=None):
            PythonOperator(task_id="a", python_callable=meet, op_args=["a", "b"])
            PythonOperator(task_id="b", python_callable=meet, op_args=["b", "a"])
    """)

    assert bench.scenario.states() == {"a": "success", "b": "success"}


def test_a_chain_is_followed_by_the_worker_alone(bench: Any) -> None:
    bench.worker(concurrency=2)
    bench.dag("""
        from paceline import chain
        with DAG("d", schedule=None):
            chain(*[PythonOperator(task_id=f"t{number:02}", python_callable=int) for number in range(20)])
    """)

    bench.wait(bench.scenario.trigger("d", run_id="r1"))

    queued_by = [row[0] for row in bench.scenario.rows("select queued_by from task_instance order by id")]
    assert [name.split("@")[0] for name in queued_by[1:]] == ["w0"] * 19
    assert bench.log_path("t19").exists()


def test_the_working_folder_of_a_worker_may_be_deleted(bench: Any) -> None:
    gone = bench.folder / "gone"
    gone.mkdir()
    bench.worker(folder=gone)
    gone.rmdir()

    run = bench.run("""
        import os
        with DAG("d", schedule=None):
            python = PythonOperator(task_id="python", python_callable=os.getcwd)
            bash = BashOperator(task_id="bash", bash_command="pwd -P", cwd="{{ ti.xcom_pull('python') }}")
            python >> bash
    """)

    assert bench.scenario.states(run) == {"python": "success", "bash": "success"}, bench.output
    assert "its tasks start in / from now on" in bench.output


def test_a_pool_process_shares_most_of_its_memory_with_its_worker(bench: Any) -> None:
    """Even after a garbage collection, which writes to each object that it visits."""
    bench.worker()
    bench.run("""
        import gc
        with DAG("d", schedule=None):
            @task
            def t():
                gc.collect()
                with open("/proc/self/smaps_rollup") as file:
                    rows = [line.split() for line in file if line.endswith("kB\\n")]
                return {row[0]: int(row[1]) for row in rows}
            t()
    """)

    memory = bench.scenario.rows("select value from xcom where key = 'return_value'")[0][0]
    private = memory["Private_Dirty:"] + memory["Private_Clean:"]
    assert private < 0.45 * memory["Rss:"], memory


def test_a_thread_of_a_task_that_timed_out_ends_with_its_process_and_other_processes_stay(shared_bench: Any) -> None:
    shared_bench.run("""
        import os, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from datetime import timedelta
        POOL = ThreadPoolExecutor(1)
        def leak():
            while True:
                print("leaked", flush=True)
                time.sleep(0.01)
        @dag(schedule=None)
        def d():
            @task(execution_timeout=timedelta(seconds=1))
            def slow():
                print("pid", os.getpid())
                threading.Thread(target=leak).start()
                time.sleep(60)
            @task(trigger_rule="all_done")
            def after(before=None):
                time.sleep(0.5)
                print("pid", os.getpid(), POOL.submit(abs, -1).result())
            @task(trigger_rule="all_done")
            def last(before=None):
                time.sleep(0.5)
                print("pid", os.getpid())
            last(after(slow()))
        d()
    """)

    def pid(task_id: str) -> str:
        return str(re.search(r"^pid (\d+)", shared_bench.log(task_id), re.MULTILINE)[1])  # type: ignore[index]

    assert shared_bench.scenario.states() == {"slow": "failed", "after": "success", "last": "success"}
    assert "threads of this task still run: Thread-" in shared_bench.log("slow")
    assert "leaked" in shared_bench.log("slow")
    assert "leaked" not in shared_bench.log("after") + shared_bench.log("last")
    assert pid("slow") != pid("after") == pid("last")
    assert not psutil.pid_exists(int(pid("slow")))
