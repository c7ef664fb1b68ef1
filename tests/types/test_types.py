"""mypy and pyright in strict mode find the mistakes of DAG authors, and nothing in correct DAGs. `make test-types` runs this."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.annotate import annotated

from bench.peers import install
from scheduler.dagfiles.migrate.folder import rewrite

if not os.environ.get("TYPE_TESTS"):
    pytest.skip("make test-types runs it", allow_module_level=True)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: `a >> b` is an expression. It is the only rule of pyright's strict mode that DAG files cannot keep.
EDGES = {"reportUnusedExpression": False}
#: Example DAGs, most without annotations. They are checked with `Any` in the places of these, see support/annotate.py.
FOLDERS = ("dags", "tests/airflow_style", "tests/browser/dags", "tests/compose/dags")
EXAMPLES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py")) if path.name != "broken.py"]
#: Errors that the checkers rightly find in Airflow's examples, by file.
OF_THEIR_AUTHORS = {
    "example_asset_state_store.py": "uses `or {}` without a type of its entries",
    "example_bash_decorator.py": "compares a str with a WeekDay",
    "example_params_trigger_ui.py": "uses a list without a type of its entries, and __doc__, which may be None",
    "example_params_ui_tutorial.py": "uses __doc__, which may be None",
    "example_python_decorator.py": "uses the variable of a loop after it, and a package without types",
    "example_python_operator.py": "uses the variable of a loop after it, and a package without types",
    "tutorial_objectstorage.py": "uses a package without types",
}


@pytest.fixture(scope="module")
def airflow_examples() -> list[Path]:
    """Airflow's example files that need nothing but their import lines changed, if Airflow is installed for make test-airflow."""
    folder = install.default_folder()
    found = [path for path in sorted(folder.glob("lib/*/site-packages/airflow/**/example_dags/*.py")) if path.name != "__init__.py"]
    if not found:
        pytest.skip(f"There is no Airflow in {folder}; make test-airflow installs it.")
    found = [path for path in found if path.name not in OF_THEIR_AUTHORS]
    return [path for path in found if not (done := rewrite(path.read_bytes())).unsupported and b"from airflow" not in done.content]


def ours(file: Path) -> str:
    """The text of an example with all annotations; one for Airflow with its import lines changed."""
    if file.parent == HERE:
        return file.read_text()
    text = file.read_bytes()
    return annotated((rewrite(text).content if b"airflow" in text else text).decode())


def copy(files: list[Path], folder: Path) -> None:
    """Write the examples and the modules beside them into a folder."""
    for file in files:
        (folder / file.name).write_text(ours(file))
        if (parts := file.with_name(f"{file.stem}_parts")).is_dir():
            shutil.copytree(parts, folder / parts.name, dirs_exist_ok=True)


def of_mypy(folder: Path, files: list[Path], *options: str) -> set[tuple[str, int]]:
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\nplugins = paceline.testing.mypy_plugin\nfollow_imports = silent\nwarn_unused_configs = false\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(folder / "cache"), *options]
    copy(files, folder)
    done = subprocess.run(
        [*command, *(str(folder / file.name) for file in files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode in {0, 1}
    return {(Path(name).name, int(line)) for name, line in re.findall(r"^(.+\.py):(\d+): error: ", done.stdout, re.M)}


def of_pyright(folder: Path, files: list[Path], options: dict[str, bool]) -> set[tuple[str, int]]:
    # It reads only files below its settings.
    copy(files, folder)
    settings = {
        "include": [file.name for file in files],
        "exclude": ["cache"],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT)],
        **options,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        "--outputjson",
        "-p",
        str(folder / "pyrightconfig.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files), found["summary"]
    errors = [diagnostic for diagnostic in found["generalDiagnostics"] if diagnostic["severity"] == "error"]
    for error in errors:
        print(error["file"], error["range"]["start"]["line"] + 1, error["message"], error.get("rule"))
    return {(Path(error["file"]).name, error["range"]["start"]["line"] + 1) for error in errors}


def expected(*, mypy: bool) -> set[tuple[str, int]]:
    lines = (HERE / "wrong.py").read_text().splitlines()
    return {
        ("wrong.py", number)
        for number, line in enumerate(lines, 1)
        if line.endswith("# error") or (mypy and line.endswith("# error mypy"))
    }


def test_mypy_finds_every_mistake(tmp_path: Path) -> None:
    assert of_mypy(tmp_path, [HERE / "wrong.py"], "--strict", "--allow-untyped-decorators") == expected(mypy=True)


def test_pyright_finds_every_mistake_in_arguments(tmp_path: Path) -> None:
    # A decorator with a wrong argument has no type that is known.
    assert of_pyright(tmp_path, [HERE / "wrong.py"], EDGES | {"reportUntypedFunctionDecorator": False}) == expected(mypy=False)


def test_mypy_finds_nothing_in_correct_dags(tmp_path: Path) -> None:
    assert of_mypy(tmp_path, [HERE / "correct.py"], "--strict") == set()


def test_pyright_finds_nothing_in_correct_dags(tmp_path: Path) -> None:
    assert of_pyright(tmp_path, [HERE / "correct.py"], EDGES) == set()


def test_mypy_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    assert len(EXAMPLES) >= 20
    assert of_mypy(tmp_path, EXAMPLES, "--strict") == set()


def test_pyright_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    assert of_pyright(tmp_path, EXAMPLES, EDGES) == set()


def test_mypy_finds_nothing_in_the_examples_of_airflow(airflow_examples: list[Path], tmp_path: Path) -> None:
    assert len(airflow_examples) >= 50
    assert of_mypy(tmp_path, airflow_examples, "--strict") == set()


def test_pyright_finds_nothing_in_the_examples_of_airflow(airflow_examples: list[Path], tmp_path: Path) -> None:
    assert of_pyright(tmp_path, airflow_examples, EDGES) == set()
