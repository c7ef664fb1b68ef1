"""The stored data of DAG files: versions, activity, owners of a dag_id, and the files that schedulers claim."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine, event

from scheduler.dagfiles.supervise import DagFileManager

from .conftest import MINUTE, NOW, Files, source


def test_an_unchanged_file_has_one_version_and_an_edited_file_two(files: Files) -> None:
    files.write("d.py", source())
    manager = files.manager(settled_file_process_interval=30)
    files.read_all(manager, now=NOW)
    turns = files.read_all(manager, now=NOW + MINUTE)
    assert [turn.stored for turn in turns if turn.stored] == [("d.py",)]
    assert files.dags() == {"d": ("d.py", True, 1)}

    files.write("d.py", source(task_id="two"))
    turns = files.turn_until(manager, lambda: files.dags() == {"d": ("d.py", True, 2)}, now=NOW + MINUTE)
    assert turns[-1].new_versions == ("d",)

    files.write("d.py", source())
    files.turn_until(manager, lambda: files.dags() == {"d": ("d.py", True, 1)}, now=NOW + MINUTE)
    assert files.rows("select number from dag_version order by 1") == [(1,), (2,)]


def test_a_version_is_the_same_in_any_process(files: Files) -> None:
    lines = "\n".join(f"    t{i} = EmptyOperator(task_id='t{i}')" for i in range(20))
    files.write(
        "d.py",
        "from paceline import DAG, task\nfrom paceline.operators import EmptyOperator\n"
        f"with DAG('d', schedule='@daily', tags=set('abcdefgh')):\n{lines}\n    {{t1, t2, t3}} and [t1, t2, t3, t4] >> t5\n",
    )
    script = (
        "import sys, json\nfrom pathlib import Path\nfrom scheduler.dagfiles.fork_server import Work, parse\n"
        "from scheduler.settings import Core, Scheduler\n"
        "print(parse('d.py', Work(Path(sys.argv[1]), Core(), Scheduler()))['dags'][0]['content_hash'])"
    )

    found = {
        subprocess.run(
            [sys.executable, "-P", "-c", script, str(files.settings.dags_folder)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }

    assert len(found) == 1


def test_a_removed_file_makes_its_dags_inactive_and_a_file_that_comes_back_active(files: Files) -> None:
    files.write("d.py", source())
    files.write("other.py", source("other"))
    manager = files.manager()
    files.read_all(manager)
    path = files.settings.dags_folder / "d.py"

    path.rename(path.with_suffix(".off"))
    turns = files.turn_until(manager, lambda: not files.dags()["d"][1])
    assert turns[-1].removed == ("d",)
    assert files.dags() == {"d": ("d.py", False, 1), "other": ("other.py", True, 1)}
    assert files.rows("select count(*) from dag_version where dag_id = 'd'") == [(1,)]

    path.with_suffix(".off").rename(path)
    files.turn_until(manager, lambda: files.dags()["d"] == ("d.py", True, 1))


def test_a_dag_that_leaves_its_file_becomes_inactive_and_a_dag_that_moves_does_not(files: Files) -> None:
    files.write("d.py", source("stays") + source("leaves"))
    manager = files.manager()
    files.read_all(manager)

    files.write("d.py", source("stays"))
    files.turn_until(manager, lambda: not files.dags()["leaves"][1])
    (files.settings.dags_folder / "d.py").rename(files.settings.dags_folder / "moved.py")
    files.turn_until(manager, lambda: files.dags()["stays"][:2] == ("moved.py", True))

    assert files.errors() == {}


def test_an_error_keeps_the_former_versions_of_the_whole_file_active(files: Files) -> None:
    files.write("d.py", source("a") + source("b"))
    manager = files.manager()
    files.read_all(manager)
    before = files.dags()

    files.write("d.py", source("a", task_id="new") + "raise ValueError('no')\n")
    files.turn_until(manager, files.errors)
    assert files.dags() == before

    files.write("d.py", source("a") + source("b"))
    files.turn_until(manager, lambda: not files.errors())
    assert files.dags() == before


def test_one_dag_id_in_two_files_is_an_error_naming_both_until_one_of_them_goes(files: Files) -> None:
    files.write("first.py", source("same"))
    manager = files.manager()
    files.read_all(manager)

    files.write("second.py", source("same", task_id="other") + source("else"))
    files.turn_until(manager, files.errors)
    assert files.errors().keys() == {"second.py"}
    assert files.errors()["second.py"][1].startswith("DAG 'same' is in first.py and in second.py; first.py keeps it")
    assert files.dags() == {"same": ("first.py", True, 1)}

    (files.settings.dags_folder / "first.py").unlink()
    files.turn_until(manager, lambda: not files.dags()["same"][1])
    now = datetime.now(UTC) + MINUTE
    files.turn_until(manager, lambda: files.dags().get("same", ("", 0, 0))[0] == "second.py", now=now)
    assert files.errors() == {}
    assert files.dags() == {"same": ("second.py", True, 2), "else": ("second.py", True, 1)}


def test_500_dags_in_one_file_are_stored_in_a_few_statements(files: Files) -> None:
    files.write(
        "many.py",
        "from paceline import DAG\nfrom paceline.operators import EmptyOperator\n"
        "for i in range(500):\n    with DAG(f'd{i}', schedule='@daily'):\n"
        "        EmptyOperator(task_id='a') >> EmptyOperator(task_id='b')\n",
    )
    files.write("good.py", source("good"))
    statements: list[str] = []
    engine = create_engine("postgresql+psycopg2://", creator=files.engine.pool._creator)

    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    manager = DagFileManager(engine, files.settings, lambda: "a")
    files.managers.append(manager)

    turns = files.read_all(manager)

    assert len(files.dags()) == 501 and all(active for _, active, _ in files.dags().values())
    assert files.rows("select count(*) from dag_schedule") == [(501,)]
    assert len(statements) < 30 + 2 * len(turns)
    engine.dispose()


@pytest.mark.parametrize(
    ("own", "setting", "expected"), [(None, False, False), (None, True, True), (True, False, True), (False, True, False)]
)
def test_a_new_dag_starts_paused_by_its_argument_or_the_setting_and_keeps_a_change_by_a_person(
    own: bool | None, setting: bool, expected: bool, files: Files
) -> None:
    files.write("d.py", source(paused=own))
    core = files.settings.core.model_copy(update={"dags_are_paused_at_creation": setting})
    manager = DagFileManager(files.engine, files.settings.model_copy(update={"core": core}), lambda: "a")
    files.managers.append(manager)
    files.read_all(manager)
    assert files.rows("select is_paused from dag_schedule") == [(expected,)]

    with files.engine.begin() as connection:
        connection.exec_driver_sql("update dag_schedule set is_paused = not is_paused")
    files.write("d.py", source(task_id="two", paused=own))
    files.turn_until(manager, lambda: files.dags()["d"][2] == 2)
    assert files.rows("select is_paused from dag_schedule") == [(not expected,)]


def test_a_schedule_without_a_zone_is_in_the_default_timezone(files: Files) -> None:
    files.settings = files.settings.model_copy(
        update={"core": files.settings.core.model_copy(update={"default_timezone": "Europe/Berlin"})}
    )
    files.write("d.py", source())

    files.read_all(files.manager(), now=NOW)

    assert files.rows("select data->'schedule'->>'timezone' from dag_version") == [("Europe/Berlin",)]
