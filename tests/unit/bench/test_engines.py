"""The comparison with other engines: what is installed, how a program answers, and the report of the trials."""

import ast
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from argparse import ArgumentTypeError
from multiprocessing.connection import Client, Connection
from pathlib import Path

import pytest
from support.waiting import eventually

from bench import goals
from bench.peers import command, install
from bench.peers.engines import alternation, report
from bench.peers.engines.alternation import Pairs
from bench.peers.engines.catalog import BY_NAME, ENGINES, Engine
from bench.peers.engines.programs import protocol
from bench.peers.engines.session import Trial

MACHINE = {"cpus": 2, "cpu": "x", "memory_gb": 8, "system": "s", "python": "3", "commit": "abc"}


def trial(seconds: float, cpu_s: float, steps: int = 100) -> Trial:
    return Trial(steps=steps, seconds=seconds, cpu_s=cpu_s, calibration_ms=4.0)


def pairs(*trials: tuple[Trial, Trial]) -> Pairs:
    return Pairs(BY_NAME["absurd"], alternation.tasks()["chain"].paceline, list(trials))


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_each_engine_has_exact_versions_and_a_program(engine: Engine) -> None:
    pinned = engine.pins.read_text(encoding="utf-8").splitlines()

    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned), "a pin that is no name and version, or names a host"
    assert all(re.fullmatch(r"@[\w-]+/[\w-]+@[\d.]+", package) for package in engine.npm_packages)
    names = {line.partition("==")[0].lower() for line in pinned}
    assert {package.partition("[")[0].lower() for package in engine.packages} <= names
    assert re.fullmatch(r"\d+\.\d+\.\d+", engine.version) and engine.folder.name == f"{engine.name}-{engine.version}"
    assert set(engine.without) <= set(alternation.tasks())
    assert importlib.util.find_spec(engine.module)


def test_programs_import_nothing_that_the_environment_of_an_engine_lacks() -> None:
    for path in Path(protocol.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        own = {name for name in modules if name.split(".")[0] in ("bench", "paceline", "scheduler", "workers")}
        assert own <= {protocol.__name__}, path.name


def test_both_run_as_many_steps() -> None:
    for small in (True, False):
        for name, task in alternation.tasks(small=small).items():
            chain, many, wide = (lambda count: count), (lambda runs, count: runs * count), (lambda count: count + 2)
            steps = {"chain": chain, "many": many, "wide": wide}[task.name](*task.sizes)
            assert (name, steps) == (task.paceline.name, task.paceline.tasks)


def _connected(socket: Path) -> Connection | None:
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        return Client(str(socket), "AF_UNIX")
    return None


def test_a_program_answers_with_the_time_and_the_steps_of_a_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(protocol.SOCKET, str(tmp_path / "socket"))
    done: list[int] = []

    def shape(*sizes: int) -> float:
        done.extend(range(sizes[-1]))
        return 2e9

    serving = threading.Thread(target=protocol.serve, args=(dict.fromkeys(("many", "wide"), shape), lambda: len(done)))
    serving.start()
    # The socket is there a moment before the program listens on it.
    with eventually(lambda: _connected(tmp_path / "socket")) as bench:
        for name, sizes, steps in (("wide", (7,), 7), ("many", (1, 3), 3)):
            bench.send((name, sizes))
            seconds, counted = bench.recv()
            assert (seconds > 0, counted) == (True, steps)
    serving.join(60)

    assert not serving.is_alive(), "the program goes on when the bench has hung up"


def test_waiting_ends_with_what_it_waited_for() -> None:
    with pytest.raises(TimeoutError, match="0 s were too short for all jobs to end"):
        protocol.wait_until(lambda: False, "all jobs to end", 0)


def test_figures_are_medians_of_ratios_of_a_turn() -> None:
    row = report.figures(
        [(trial(0.1, 0.2), trial(0.2, 0.3)), (trial(0.4, 0.2), trial(0.4, 0.2)), (trial(0.1, 0.1), trial(0.3, 0.2))]
    )

    assert (row["tasks"], row["turns"]) == (100, 3)
    assert row["ms_per_task"] == {"engine": 1.0, "paceline": 3.0}
    assert (row["time_over"], row["time_over_range"]) == (2.0, [1.0, 3.0])
    assert row["cpu_ms_per_task"] == {"engine": 2.0, "paceline": 2.0}
    assert row["cpu_over"] == 1.5


def test_cpu_below_a_clock_tick_has_no_ratio() -> None:
    low = report.figures([(trial(0.1, 0.0), trial(0.1, 0.2))])
    assert low["cpu_over"] is None
    assert report.figures([(trial(0.1, 0.0), trial(0.1, 0.2)), (trial(0.1, 0.1), trial(0.1, 0.2))])["cpu_over"] == 2.0
    piece = report.piece(BY_NAME["absurd"], []) | {"shapes": {"chain": low}}
    assert "| 0.00 | 2.00 |  | 4.0 / 4.0 |" in report.table({"absurd": piece})


def test_the_summary_has_a_row_for_each_engine_with_paceline_first() -> None:
    pieces = {name: report.piece(BY_NAME[name], [pairs((trial(0.1, 0.2), trial(0.2, 0.3)))]) for name in ("absurd", "dbos")}
    lines = report.summary(pieces).splitlines()

    assert lines[0] == "| engine | `chain` | CPU ms a task | a step that has ended is durable |"
    version = BY_NAME["absurd"].version
    assert lines[2] == (
        f"| absurd {version} | 2.00 (2.00-2.00): 2.00 / 1.00 ms | 3.00 / 2.00 | PostgreSQL with fsync, a commit for each step |"
    )
    assert lines[3].startswith("| dbos ") and lines[5].startswith("* absurd: 4 processes with a task each")


def peers(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", "peers", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ | variables)


def test_a_system_that_fails_keeps_no_other_from_being_measured(tmp_path: Path) -> None:
    cache = tmp_path / ".cache" / "paceline"
    cache.parent.mkdir()
    cache.write_text("a file where environments belong")
    done = peers("--small", "--engines", "absurd,airflow,dbos", "--airflow", cache / "airflow", HOME=str(tmp_path))

    failed = json.loads(done.stdout)["failed"]
    assert (done.returncode, list(failed)) == (1, ["absurd", "airflow", "dbos"])
    assert all(why.startswith("which cannot be installed here: ") for why in failed.values()), failed


def test_the_tables_of_an_earlier_result_need_no_measurement(tmp_path: Path) -> None:
    result = {"machine": MACHINE, "engines": {"dbos": report.piece(BY_NAME["dbos"], [pairs((trial(0.1, 0.2), trial(0.2, 0.3)))])}}
    result |= {"failed": {"absurd": "which failed: it broke"}}
    file = tmp_path / "result.json"
    file.write_text("text\n" + json.dumps(result))
    done = peers("--result", file)

    assert (done.returncode, json.loads(done.stdout)) == (1, result)
    assert "Not measured: absurd, which failed: it broke" in done.stderr and "| dbos " in done.stderr


def test_the_goals_are_of_paceline_over_the_engine() -> None:
    result = {"engines": {"absurd": report.piece(BY_NAME["absurd"], [pairs((trial(0.1, 0.2), trial(0.09, 0.3)))])}}

    assert goals.verdicts(result) == [("`chain`: time, over that of absurd", "0.9", "at most 1", "met")]


def test_the_table_says_how_each_engine_ran_and_what_it_survives() -> None:
    engine = BY_NAME["absurd"]
    text = report.table({engine.name: report.piece(engine, [pairs((trial(0.1, 0.2), trial(0.2, 0.3)))])})

    assert "| absurd | `chain` | 1.00 | 2.00 | 2.00 (2.00-2.00) | 2.00 | 3.00 | 1.50 | 4.0 / 4.0 |" in text
    assert f"* absurd {engine.version}: 4 processes with a task each, which poll every 10 ms" in text
    assert "Durable: PostgreSQL with fsync, a commit for each step." in text


def test_the_readme_keeps_the_table_and_names_what_was_not_measured(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- engines: begin -->\nold\n<!-- engines: end -->\nafter\n")
    engines = {"absurd": report.piece(BY_NAME["absurd"], [pairs((trial(0.1, 0.2), trial(0.2, 0.3)))])}

    report.keep(MACHINE, engines, {"dbos": "which cannot be installed here: ERROR: no wheel"}, readme)

    text = readme.read_text()
    assert text.startswith("before\n<!-- engines: begin -->\n") and text.endswith("\n<!-- engines: end -->\nafter\n")
    assert "Paceline at abc." in text and "old" not in text
    assert "Not measured: dbos, which cannot be installed here: ERROR: no wheel" in text
    report.keep(MACHINE, engines, {"dbos": "which cannot be installed here: ERROR: no wheel"}, readme)
    assert readme.read_text() == text


def test_the_readme_has_a_place_for_the_table() -> None:
    text = report.README.read_text(encoding="utf-8")

    assert all(text.count(mark) == 1 for mark in report.MARKS)


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("Looking\nERROR: No matching distribution for x==1\n\nnotice: a new pip\n", "ERROR: No matching distribution for x==1"),
        ("npm error code E404\nnpm error 404 Not Found\n", "npm error 404 Not Found"),
        ("something else\n", "something else"),
        ("", "exit code 3"),
    ],
)
def test_the_error_of_an_installation_is_one_line(printed: str, reason: str) -> None:
    assert install.reason(subprocess.CalledProcessError(3, "pip", "", printed)) == reason


def test_an_environment_counts_when_it_is_complete_and_has_these_pins(tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("x==1\n")
    assert not install.is_installed(tmp_path, "1", pins)
    (tmp_path / ".installed").write_text("1\nx==1\n")
    assert install.is_installed(tmp_path, "1", pins)
    assert not install.is_installed(tmp_path, "2", pins)
    pins.write_text("x==2\n")
    assert not install.is_installed(tmp_path, "1", pins)


def test_engines_are_chosen_by_name() -> None:
    assert command.names("absurd,dbos,absurd") == ("absurd", "dbos")
    assert command.names("all") == ("airflow", *BY_NAME)
    with pytest.raises(ArgumentTypeError, match=r"no engine is named redis; there are airflow, absurd, "):
        command.names("absurd,redis")
