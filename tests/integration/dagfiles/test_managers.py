"""Managers of DAG files: which manager reads which file at what time, and how they survive an unreachable database."""

import logging
from collections import Counter
from datetime import timedelta

import pytest
from support.waiting import eventually

from scheduler.dagfiles.supervise import DagFileManager
from scheduler.messaging.wakeups import Wakeups
from scheduler.settings.sections import Bundles

from .conftest import MINUTE, NOW, Files, source


def test_a_file_that_looks_at_more_than_code_is_read_again_sooner(files: Files) -> None:
    files.write("tables.txt", "one")
    files.write("code.py", source("code"))
    files.write("reads.py", source("reads") + "from pathlib import Path\nPath(__file__).with_name('tables.txt').read_text()\n")
    files.write("lists.py", source("lists") + "import os\nos.listdir(os.path.dirname(__file__))\n")
    files.write("asks.py", source("asks") + "import subprocess\nsubprocess.run(['true'])\n")
    files.write("wrong.py", "import paceline\ndag = 1 / 0\n")
    manager = files.manager()
    files.read_all(manager, now=NOW)

    turns = files.read_all(manager, now=NOW + MINUTE)
    assert {path for turn in turns for path in turn.stored} == {"reads.py", "lists.py", "asks.py", "wrong.py"}

    turns = files.read_all(manager, now=NOW + timedelta(hours=2))
    assert "code.py" in {path for turn in turns for path in turn.stored}


def test_a_file_is_read_again_when_a_module_that_it_imports_changes(files: Files) -> None:
    files.write("team/names.py", "NAME = 'one'\n")
    files.write("imports.py", "from team.names import NAME\n" + source("imports"))
    files.write("other.py", source("other"))
    # In a folder that is pinned, every file is code of every DAG.
    files.settings = files.settings.model_copy(update={"bundles": Bundles(pin_dags_folder=False)})
    manager = files.manager()
    files.read_all(manager, now=NOW)
    assert files.rows("select path, modules from dag_file order by 1") == [("imports.py", ["team/names.py"]), ("other.py", [])]

    files.write("team/names.py", "NAME = 'two'\n")
    turns = files.turn_until(
        manager, lambda: files.rows("select 1 from dag_file where parsed_at > %(now)s", now=NOW), now=NOW + MINUTE
    )
    assert [turn.stored for turn in turns if turn.stored] == [("imports.py",)]

    # No manager watched when it changed again.
    manager.stop()
    files.write("team/names.py", "NAME = 'three'\n")
    later = NOW + 2 * MINUTE
    turns = files.turn_until(
        files.manager("b"), lambda: files.rows("select 1 from dag_file where parsed_at >= %(now)s", now=later), now=later
    )
    assert [turn.stored for turn in turns if turn.stored] == [("imports.py",)]


def test_a_file_written_while_it_is_read_is_read_again_even_if_its_time_stays_the_same(files: Files) -> None:
    files.write("d.py", source())
    manager = files.manager()
    files.turn_until(manager, lambda: manager._claimed, now=NOW)
    manager._stale.add("d.py")  # as in a listing

    turns = files.turn_until(manager, lambda: not manager._claimed and files.dags(), now=NOW)

    assert [turn.stored for turn in turns if turn.stored] == [("d.py",)] and not manager._stale


def test_two_managers_read_each_file_once_per_interval(files: Files) -> None:
    for number in range(12):
        files.write(f"d{number}.py", source(f"d{number}"))
    managers = [files.manager(name, settled_file_process_interval=30) for name in "ab"]
    reads: Counter[str] = Counter()

    for interval in (1, 2):
        files.clock.freeze(NOW + interval * MINUTE)

        def everything_read(interval: int = interval) -> bool:
            for manager in managers:
                reads.update(manager.run_once().stored)
            return reads.total() >= 12 * interval and not files.rows("select 1 from dag_file where claimed_by is not null")

        eventually(everything_read, timeout=60)
        assert set(reads.values()) == {interval} and len(reads) == 12
    assert len(files.dags()) == 12


def test_managers_in_threads_notice_a_change_at_once_and_wake_a_scheduler(files: Files) -> None:
    wakeups = Wakeups(files.settings)
    # Neither a listing nor an interval finds the changes.
    never = {"dag_dir_list_interval": 3600.0, "min_file_process_interval": 3600.0}
    settings = files.settings.model_copy(update={"scheduler": files.settings.scheduler.model_copy(update=never)})
    managers = [DagFileManager(files.engine, settings, lambda name=name: name, wakeups) for name in "ab"]
    files.managers += managers
    for manager in managers:
        manager.start()
    eventually(lambda: files.rows("select 1") and all(manager._watch.fileno() for manager in managers))

    files.write("d.py", source())
    eventually(lambda: files.dags().get("d") == ("d.py", True, 1))
    assert eventually(lambda: wakeups.wait(0.1)) == {"plan"}

    files.write("d.py", source(task_id="two"))
    eventually(lambda: files.dags()["d"][2] == 2)
    wakeups.close()


def test_a_manager_outlives_its_database_connections(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    manager = files.manager(scheduler_idle_sleep_time=0.05)
    manager.start()
    files.write("d.py", source())
    eventually(lambda: files.dags())

    with files.engine.connect() as connection:
        connection.exec_driver_sql(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()"
        )
    files.write("e.py", source("e"))

    eventually(lambda: "e" in files.dags())
