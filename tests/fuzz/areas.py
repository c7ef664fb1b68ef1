"""The areas of the fuzzer: the code that receives each case, and the failures that must not occur."""

import base64
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
from click.testing import CliRunner
from hypothesis import strategies as st
from pydantic import ValidationError
from support.scenario import Scenario, dag
from support.waiting import eventually

from fuzz import strategies
from paceline.authoring.dag import DAG
from paceline.exceptions import PacelineError, SettingsError
from paceline.operators import EmptyOperator
from scheduler.cli import COMMANDS, paceline
from scheduler.dagfiles import problem
from scheduler.dagfiles.answers import Called, DagCheck, MalformedDagError, Reading, fault
from scheduler.dagfiles.parser import CallbackHost, ChildEnded
from scheduler.dagfiles.supervise import DagFileManager
from scheduler.messaging import wakeups
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings, log_paths
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs
from workers.celery_worker import message_filter, remote_control

LONGEST_SENTENCE = 3000
#: Commands that run until they are stopped, start a JVM for half a minute, or are tested here in other ways.
ENDLESS = {"demo", "standalone", "scheduler", "worker", "waiter", "flower", "web", "completion", "archive", "autoscale", "init"}
#: Options that make a command wait.
WAITING = {"--wait", "-f", "--follow", "--timeout"}
FILES_AT_ONCE = 40


CALLBACKS = """
import os, pathlib, stat
from paceline import DAG
from paceline.operators import EmptyOperator
def hostile(context):
    data = (pathlib.Path(__file__).parent / "said").read_bytes()
    for fd in range(3, 30):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, data)
        except OSError:
            pass
with DAG("callbacks", schedule=None):
    EmptyOperator(task_id="hostile", on_success_callback=hostile)
    EmptyOperator(task_id="good", on_success_callback=lambda context: None)
"""


@dataclass(frozen=True)
class Area:
    """A kind of cases: how many of `make fuzz`'s 10,000 it gets, the strategy that makes one, and its check."""

    name: str
    share: float
    strategy: st.SearchStrategy[Any]
    check: Callable[["Ground", Any], None]


class Ground:
    """A database and broker with one DAG, a folder of DAG files and its managers."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.scenario = Scenario(settings)
        self.scenario.add(dag("fuzzed", {"first": [], "second": ["first"]}))
        self.engine = self.scenario.engine
        self.environment = {
            "PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
            "PACELINE_DATABASE_URL": settings.database_url, "PACELINE_BROKER_URL": settings.broker_url,
        }  # fmt: skip
        self.commands = list(_commands(paceline, []))
        self.wakeups = wakeups.Wakeups(settings)
        self.dag_check = DagCheck()
        self.host = CallbackHost(settings)
        (settings.dags_folder / "callbacks.py").write_text(CALLBACKS)
        self._parsed = 0

    def close(self) -> None:
        self.host.kill()
        self.scenario.close()

    def cli(self, arguments: Sequence[str], *, given: str = "") -> None:
        """Run a command in this process; only sentences and exit codes of ours may come of it."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(
                paceline,
                [_argument(argument) for argument in arguments],
                env=self.environment,
                input=given.encode("utf-8", "surrogatepass"),
            )
        assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
        assert 0 <= done.exit_code <= 5, done.exit_code
        assert "Traceback" not in done.stderr, done.stderr
        assert "Error: Unexpected " not in done.stderr, done.stderr

    def read_files(self, files: dict[str, bytes]) -> dict[str, str]:
        """Let a scheduler's DAG files thread read these, and return the import errors; the thread survives them."""
        folder = self.folder / f"dags-{self._parsed}"
        self._parsed += 1
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        quick = self.settings.scheduler.model_copy(update={"dag_file_processor_timeout": 5.0, "parsing_processes": 4})
        paths = self.settings.paths.model_copy(update={"dags_folder": folder})
        manager = DagFileManager(self.engine, self.settings.model_copy(update={"paths": paths, "scheduler": quick}), lambda: "s#1")
        pending = set(files)

        def all_read() -> bool:
            turn = manager.run_once()
            pending.difference_update(turn.stored)
            return not pending

        try:
            manager.run_once()
            pending.intersection_update(self._known(folder))
            eventually(all_read, timeout=120, message=lambda: f"not read: {sorted(pending)}")
            with self.engine.connect() as connection:
                return dict(map(tuple, connection.exec_driver_sql("select file, message from import_error")))
        finally:
            manager.stop()
            shutil.rmtree(folder)

    def _known(self, folder: Path) -> set[str]:
        with self.engine.connect() as connection:
            return set(connection.exec_driver_sql("select path from dag_file").scalars())


def sentence(error: BaseException | str) -> None:
    """The message for a person is short and has no stack."""
    text = str(error)
    assert text.strip(), "nothing is said"
    assert len(text) < LONGEST_SENTENCE, f"{len(text)} characters: {text[:200]}"
    assert "Traceback (most recent" not in text, text[:500]
    assert ":Sesame-1@" not in text, f"a password is shown: {text}"


def _argument(text: str) -> str:
    """A valid argument of a process: no NUL, and bytes that are no UTF-8 in place of half surrogates."""
    return os.fsdecode(text.replace("\0", "").encode("utf-8", "surrogatepass"))


def check_id(ground: Ground, case: tuple[str, str, str]) -> None:
    """A path of a log stays below the folder and belongs to these ids alone; DAGs, tasks and runs take the ids or refuse them."""
    dag_id, run_id, task_id = case
    folder = Path("/logs")
    path = log_paths.try_path(folder, dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=-1, try_number=1)
    parts = Path(path).relative_to(folder).parts
    assert len(parts) == 4 and Path(os.path.normpath(path)) == Path(path), path
    assert all(len(os.fsencode(part)) <= 255 and "\0" not in part for part in parts)
    assert [_decoded(part) for part in parts[:3]] == [one if len(_component(one)) <= 200 else None for one in case]
    with contextlib.suppress(PacelineError):
        with DAG(dag_id, schedule=None):
            EmptyOperator(task_id=task_id)
    try:
        run = transact(ground.engine, manual_runs.trigger, "fuzzed", run_id=run_id)
    except PacelineError as error:
        sentence(error)
    else:
        assert not run_id or run.run_id == run_id
        folder = Path("/data") / run.run_id
        assert Path(os.path.normpath(folder)).parent == Path("/data"), "a run id that leaves a folder named after it"


def _call(task_id: str) -> dict[str, Any]:
    """The request for the callback of a task, as services/delivery creates it."""
    moment = "2025-01-01T00:00:00+00:00"
    known = {"task_id": task_id, "map_index": -1, "try_number": 1, "max_tries": 1, "state": "success"}
    run = {
        "logical_date": moment, "data_interval_start": moment, "data_interval_end": moment, "run_after": moment, "conf": {},
        "run_type": "manual", "start_date": moment, "end_date": None, "state": "running",
    }  # fmt: skip
    return {
        "kind": "on_success", "about": task_id, "at": moment, "dag_id": "callbacks", "run_id": "r", "run": run, "ti": known,
        "reason": None, "data": {}, "blocking": [], "conf_overrides": False, "index": 0, "attempt": 1, "is_rerun": False,
        "log": os.devnull, "log_url": os.devnull,
    }  # fmt: skip


def _component(name: str) -> str:
    return log_paths.component(name) if "%~" not in log_paths.component(name) else "x" * 201


def _decoded(part: str) -> str | None:
    """The source of `component`, if it was not cut."""
    if "%~" in part:
        return None
    data = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), part.encode("utf-8", "surrogatepass"))
    return "" if part == "%" else data.decode("utf-8", "surrogatepass")


def check_conf(ground: Ground, conf: str) -> None:
    ground.cli(["dags", "trigger", "fuzzed", "--conf", conf])


def check_message(_: Ground, item: bytes) -> None:
    """It is refused. `make fuzz` sends accepted messages to a real worker."""
    try:
        message = json.loads(item)
    except (ValueError, RecursionError):
        return
    complaint = message_filter.envelope_fault(message) or message_filter.dispatch_fault(message)
    if complaint is not None:
        sentence(complaint)
        return
    (ti_id, dispatch_id), _kwargs, _embedded = json.loads(base64.b64decode(message["body"]))
    assert type(ti_id) is int and 0 < ti_id < 2**63 and message_filter.UUID.fullmatch(dispatch_id)


def check_wakeups(ground: "Ground", members: list[bytes]) -> None:
    """The tokens that are left are valid for a scheduler."""
    ground.scenario.broker.zadd(wakeups.KEY, dict.fromkeys(members, 0))
    heard = ground.wakeups.wait(0)
    assert heard is not None
    ground.scenario.schedulers[0].wake(heard)
    while heard:
        heard = ground.wakeups.wait(0)


def check_answer(ground: "Ground", data: bytes) -> None:
    """It is refused in a sentence, or its DAGs are such as a scheduler reads."""
    try:
        reading = Reading.model_validate_json(data)
    except ValidationError as error:
        sentence(problem.of_answer(fault(error)).message)
        return
    for row in reading.dags:
        try:
            ground.dag_check.check(row, "f.py")
        except MalformedDagError as error:
            sentence(error)
        else:
            dag = SerializedDag.from_json(row.data)
            assert (len(dag.upstream), len(dag.leaves) > 0) == (len(dag.tasks), bool(dag.tasks))


def check_call(ground: "Ground", data: bytes) -> None:
    """A callback that writes this gives an answer of the right type or counts as ended; the next one is called."""
    data_path = ground.settings.dags_folder / "said"
    data_path.write_bytes(data + b"\n")
    for task_id in ("hostile", "good"):
        outcome: Called | None = None
        reason = ""
        try:
            assert ground.host.open("callbacks.py", os.devnull) is None
            outcome = ground.host.call(_call(task_id))
        except ChildEnded as ended:
            sentence(ended)
            reason = str(ended)
        else:
            ground.host.close()
        assert "together with" not in reason, "the answer ended the process that runs callbacks"
        assert task_id == "hostile" or outcome == Called(count=1, error=None), outcome


def check_command(_: "Ground", item: bytes) -> None:
    """It is refused, or a command that a worker answers."""
    try:
        message = json.loads(item)
    except (ValueError, RecursionError):
        return
    complaint = message_filter.envelope_fault(message) or remote_control.fault(message)
    if complaint is not None:
        sentence(complaint)
        return
    method = json.loads(base64.b64decode(message["body"]))["method"]
    assert method in remote_control.FOLLOWED or remote_control.refusal(method)


def check_files(ground: Ground, files: dict[str, bytes]) -> None:
    for message in ground.read_files(files).values():
        sentence(message)


def check_environment(ground: Ground, environment: dict[str, str]) -> None:
    with contextlib.chdir(ground.folder):
        try:
            Settings.load(environment)
        except SettingsError as error:
            sentence(error)


def check_toml(ground: Ground, text: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=ground.folder, suffix=".toml") as file:
        file.write(text)
        file.flush()
        check_environment(ground, {"PACELINE_CONFIG": file.name})


def check_arguments(ground: Ground, case: tuple[int, list[Any], list[str]]) -> None:
    number, chosen, given = case
    path, command = ground.commands[number % len(ground.commands)]
    arguments = list(path)
    for parameter, text in zip(_parameters(command, chosen), given + [""] * 10, strict=False):
        if isinstance(parameter, click.Option):
            arguments.append(parameter.opts[0])
            if parameter.is_flag:
                continue
        arguments.append(text)
    with mock.patch.dict(os.environ, {"EDITOR": "true"}):
        ground.cli(arguments, given="\n".join(given))


def _parameters(command: click.Command, chosen: list[Any]) -> list[click.Parameter]:
    """Its arguments, nearly always all of them, and some of its options."""
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    options = [param for param in command.params if isinstance(param, click.Option) and not WAITING & set(param.opts)]
    picked = [options[number % len(options)] for number in chosen if options]
    return [*(arguments if len(chosen) != 3 else arguments[:-1]), *picked]


def _commands(group: click.Command, path: list[str]) -> Any:
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for name in group.list_commands(context) if path else COMMANDS:
        if name not in ENDLESS and name not in {"watch", "downgrade"}:  # the last one would end all areas that follow
            found = group.get_command(context, name)
            assert found is not None
            yield from _commands(found, [*path, name])


_near = st.sampled_from(["fuzzed", "first", "r", "default_pool", "success", "failed", "1", "2025-01-01", "{}", "-"])
AREAS = (
    Area("ids", 0.1, st.tuples(strategies.texts, strategies.texts, strategies.texts), check_id),
    Area("conf", 0.06, strategies.confs, check_conf),
    Area("messages", 0.1, strategies.messages, check_message),
    Area("wake-ups", 0.1, strategies.wakeups, check_wakeups),
    Area("answers", 0.15, strategies.answers, check_answer),
    Area("callbacks", 0.01, strategies.call_answers, check_call),
    Area("remote control", 0.1, strategies.commands, check_command),
    Area("environments", 0.1, strategies.environments, check_environment),
    Area("toml", 0.1, strategies.tomls, check_toml),
    Area(
        "arguments",
        0.1,
        st.tuples(
            st.integers(0, 200), st.lists(st.integers(0, 20), max_size=3), st.lists(st.one_of(_near, strategies.texts), max_size=6)
        ),
        check_arguments,
    ),
    Area(
        "files", 0.1, st.dictionaries(strategies.file_names, strategies.sources, min_size=10, max_size=FILES_AT_ONCE), check_files
    ),
)
