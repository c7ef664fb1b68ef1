"""The paths of logs, and the parts that are cut from a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.exceptions import TaskTimeout
from paceline.operators import PythonOperator
from scheduler.settings import log_paths
from workers.process import logs
from workers.spark.conf import check_master

FOLDER = Path("/logs")


def path(dag_id: str = "d", run_id: str = "r", task_id: str = "t", map_index: int = -1) -> str:
    return log_paths.try_path(FOLDER, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index, try_number=2)


def test_ordinary_ids_are_readable_in_the_path() -> None:
    assert path("flights", "manual__2026-01-02T00:00:00+00:00", "group.task") == (
        "/logs/flights/manual__2026-01-02T00:00:00+00:00/group.task/try-2.log"
    )


def test_a_mapped_task_has_a_folder_for_each_index() -> None:
    assert path(map_index=3) == "/logs/d/r/t/3/try-2.log"


@pytest.mark.parametrize(
    "name", ["..", ".", "../../etc/passwd", "a/b", "nul\0", "line\nbreak", "", "x" * 5000, "é" * 300, "\ud800"]
)
def test_no_id_leaves_the_folder_or_breaks_the_file_system(name: str) -> None:
    parts = Path(path(run_id=name)).parts

    assert parts[:3] == ("/", "logs", "d")
    assert parts[4:] == ("t", "try-2.log")
    assert parts[3].isprintable()
    assert not parts[3].startswith(".")
    assert len(parts[3].encode()) <= 255


@given(st.text(max_size=400), st.text(max_size=400))
def test_two_ids_never_share_a_path(one: str, other: str) -> None:
    assert (log_paths.component(one) == log_paths.component(other)) == (one == other)


def test_only_the_user_and_its_group_read_a_log(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = log_paths.try_path(tmp_path / "logs", dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
        os.close(log_paths.append(log))
        os.close(log_paths.append(log.replace("try-1", "try-2")))
    finally:
        os.umask(before)

    folders = [tmp_path / "logs", *(tmp_path / "logs").rglob("*")]
    assert {(place.is_dir(), oct(place.stat().st_mode & 0o777)) for place in folders} == {(True, "0o750"), (False, "0o640")}


def test_a_traceback_begins_at_the_authors_frames() -> None:
    def authors() -> None:
        raise ValueError

    task = PythonOperator(task_id="t", python_callable=authors)

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        task.execute({})

    trace = caught.value.__traceback__
    assert trace is not None
    ours = logs.trim(trace.tb_next)
    assert ours is not None
    assert ours.tb_frame.f_code.co_name == "authors"


def raised(by: Callable[[], object]) -> BaseException:
    """The traceback of an operator of ours that calls `by`, from the operator's frames on."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        PythonOperator(task_id="t", python_callable=by).execute({})
    error = caught.value
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def test_an_error_of_ours_shows_its_traceback_only_if_code_of_the_author_came_to_it() -> None:
    authors = raised(lambda: check_master("spark://nohost", timeout_s=0, correct="it"))
    ours = raised(partial(check_master, "spark://nohost", timeout_s=0, correct="it"))
    repeated = raised(partial(check_master, "spark://127.0.0.1:1", timeout_s=0, correct="it"))
    unforeseen = raised(partial(check_master, None, timeout_s=0, correct="it"))  # type: ignore[arg-type]

    assert "Traceback" in logs.shown(authors)
    assert logs.shown(ours) == logs.shown(repeated) == ""
    assert "Traceback" in logs.shown(unforeseen)


#: A log whose disk fills up after its first line; then the first secret is read.
FILLS_UP = """
import os, sys
from paceline.secrets_masker import mask_secret
from workers.process import logs
log = logs.TryLog()
log.open(sys.argv[1], "header")
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1), os.dup2(full, 2)
before = log.lost
mask_secret("hunter2")
print("this is hunter2")
log.line("footer")
after = log.lost
log.close()
print(before, after, sep="\\n")
"""


def test_lines_that_are_lost_behind_the_masking_pipe_are_noted(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FILLS_UP, tmp_path / "log"], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["None", "No space left on device"], done.stderr


def test_an_object_that_cannot_be_shown_is_kept_by_the_name_of_its_class(tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("not shown")

    class Late:
        def __str__(self) -> str:
            raise TaskTimeout("it takes too long")

    log = str(tmp_path / "try-1.log")
    logs.keep_rendered(log, {"when": "today", "what": Odd()})

    assert json.loads(Path(log_paths.rendered_path(log)).read_text()) == {"when": "today", "what": "<Odd>"}
    with pytest.raises(TaskTimeout):
        logs.keep_rendered(log, {"what": Late()})


JSON_LINES = """
import json, logging, sys
from types import SimpleNamespace
from workers.process import logs
closed = []
log = logs.TryLog(json_lines=True, closed=closed.append)
claim = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=2, try_number=3, dispatch_id="x")
log.open(sys.argv[1], "header", claim)
logging.getLogger("mine").warning("careful")
print("plain")
try:
    raise ValueError("one" + chr(10) + "two \\" quoted")
except ValueError as error:
    logging.getLogger("mine").exception("it failed")
    log.error(error)
log.line("footer", "ERROR")
log.close()
logs.append_reason(sys.argv[1], "its process was killed")
print(json.dumps(closed))
"""


def test_the_reason_of_a_killed_process_is_text_in_a_log_of_text_and_harms_no_other_file(tmp_path: Path) -> None:
    text, secret, link = tmp_path / "text", tmp_path / "secret", tmp_path / "link"
    text.write_text("2026-01-01T00:00:00.000Z INFO header\n")
    secret.write_text("{}\n")
    link.symlink_to(secret)
    for path in (text, link):
        logs.append_reason(str(path), "it was killed")

    assert text.read_text().splitlines()[1].endswith("Z ERROR it was killed")
    assert secret.read_text() == "{}\n"


def test_lines_of_paceline_and_records_are_json_with_their_task_instance(tmp_path: Path) -> None:
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-P", "-c", JSON_LINES, path], capture_output=True, text=True, check=True)
    header, record, plain, recorded, raised, footer, reason = path.read_text().splitlines()
    about = {"dag": "d", "run": "r", "task": "t", "map_index": 2, "try": 3, "dispatch": "x"}

    assert plain == "plain"
    for line, level, message in (
        (header, "INFO", "header"), (record, "WARNING", "careful"), (recorded, "ERROR", "it failed"),
        (raised, "ERROR", 'ValueError: one\ntwo " quoted'), (footer, "ERROR", "footer"),
        (reason, "ERROR", "its process was killed"),
    ):  # fmt: skip
        found = json.loads(line)
        trace = found.pop("error", None)
        assert found.pop("at").endswith("Z") and found.pop("logger", "mine") == "mine"
        assert found == about | {"level": level, "message": message}
        assert (trace is not None) == (line in (recorded, raised))
        assert trace is None or trace.endswith('ValueError: one\ntwo " quoted' + ("\n" if line == raised else ""))
    assert json.loads(done.stdout) == [str(path)]


OF_OPERATORS = """
import importlib, sys
from workers.process import logs
logs.to_stderr("text")
log = logs.TryLog()
log.open(sys.argv[1], "header")
for name in ("operators.hitl", "sensors.base", "quality.report", "authoring.retry_policy"):
    importlib.import_module(f"paceline.{name}").log.warning(name)
log.close()
"""


def test_records_of_operators_are_in_the_log_of_the_try_and_not_in_that_of_the_worker(tmp_path: Path) -> None:
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-P", "-c", OF_OPERATORS, path], capture_output=True, text=True, check=True)

    modules = [line.rpartition(" ")[2] for line in path.read_text().splitlines()]
    assert modules == ["header", "operators.hitl", "sensors.base", "quality.report", "authoring.retry_policy"]
    assert done.stderr == ""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.with_name("secret"))


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("leave", [fifo, link, folder])
def test_what_a_task_leaves_in_place_of_a_log_is_neither_waited_for_nor_written_through(
    tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    secret, log = tmp_path / "secret", tmp_path / "try-1.log"
    secret.write_text("untouched")
    leave(log)
    leave(Path(log_paths.rendered_path(str(log))))

    logs.append_reason(str(log), "it was killed")
    logs.keep_rendered(str(log), {"sql": "select 1"})
    with pytest.raises(OSError, match=r"try-1\.log"):
        log_paths.append(str(log))

    assert secret.read_text() == "untouched"


def test_a_first_line_that_nests_too_deep_is_text(tmp_path: Path) -> None:
    log = tmp_path / "try-1.log"
    log.write_text("[" * 50_000 + "\n")

    logs.append_reason(str(log), "it was killed")

    assert log.read_text().endswith(" ERROR it was killed\n")
