"""mypy and pyright in strict mode find the mistakes of DAG authors, and nothing in correct DAGs. `make test-types` runs this."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import install
from scheduler.migrate.rewrite import rewrite

if not os.environ.get("TYPE_TESTS"):
    pytest.skip("make test-types runs it", allow_module_level=True)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: What a DAG file cannot do without: `a >> b` is an expression, and a @task function may have parameters without types.
LENIENT = {"reportUnusedExpression": False, "reportMissingParameterType": False, "reportUnknownParameterType": False}
UNTYPED = {
    **LENIENT,
    **dict.fromkeys(
        ("reportUnknownVariableType", "reportUnknownArgumentType", "reportUnknownMemberType", "reportUnknownLambdaType"), False
    ),
    **dict.fromkeys(
        (
            "reportMissingTypeArgument",
            "reportUnusedFunction",
            "reportUnusedVariable",
            "reportMissingTypeStubs",
            "reportOptionalMemberAccess",
            "reportOptionalSubscript",
        ),
        False,
    ),
    **dict.fromkeys(("reportMissingImports", "reportPrivateUsage", "reportUnusedImport"), False),
}
#: Example DAGs without annotations of their own: what is checked is the use of Paceline in them.
FOLDERS = ("dags", "tests/airflow_style", "tests/browser/dags", "tests/compose/dags")
EXAMPLES = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py")) if path.name != "broken.py"]


#: In Airflow's examples, beside these: some are sensors or classes without annotations; two use the variable of a loop after it.
OF_AIRFLOW = UNTYPED | dict.fromkeys(
    ("reportUntypedFunctionDecorator", "reportUntypedBaseClass", "reportAttributeAccessIssue", "reportPossiblyUnboundVariable"),
    False,
)


@pytest.fixture(scope="module")
def airflow_examples() -> list[Path]:
    """Airflow's example files that need nothing but their import lines changed, if Airflow is installed for make test-airflow."""
    folder = install.default_folder()
    found = [path for path in sorted(folder.glob("lib/*/site-packages/airflow/**/example_dags/*.py")) if path.name != "__init__.py"]
    if not found:
        pytest.skip(f"There is no Airflow in {folder}; make test-airflow installs it.")
    return [path for path in found if not (done := rewrite(path.read_bytes())).unsupported and b"from airflow" not in done.content]


def ours(file: Path) -> str:
    """The text of an example; one for Airflow with its import lines changed."""
    text = file.read_bytes()
    return (rewrite(text).content if b"airflow" in text else text).decode()


def of_mypy(folder: Path, files: list[Path], *options: str) -> set[tuple[str, int]]:
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\nplugins = scheduler.testing.mypy_plugin\nfollow_imports = silent\nwarn_unused_configs = false\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(folder / "cache"), *options]
    for file in files:
        (folder / file.name).write_text(ours(file))
    done = subprocess.run(
        [*command, *(str(folder / file.name) for file in files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode in {0, 1}
    return {(Path(name).name, int(line)) for name, line in re.findall(r"^(.+\.py):(\d+): error: ", done.stdout, re.M)}


def of_pyright(folder: Path, files: list[Path], options: dict[str, bool]) -> set[tuple[str, int]]:
    # It reads only files below its settings.
    for file in files:
        (folder / file.name).write_text(ours(file))
    settings = {"include": ["."], "exclude": ["cache"], "typeCheckingMode": "strict", "extraPaths": [str(ROOT)], **options}
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
    errors = [one for one in found["generalDiagnostics"] if one["severity"] == "error"]
    for one in errors:
        print(one["file"], one["range"]["start"]["line"] + 1, one["message"], one.get("rule"))
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in errors}


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
    assert of_pyright(tmp_path, [HERE / "wrong.py"], LENIENT | {"reportUntypedFunctionDecorator": False}) == expected(mypy=False)


def test_mypy_finds_nothing_in_correct_dags(tmp_path: Path) -> None:
    assert of_mypy(tmp_path, [HERE / "correct.py"], "--strict") == set()


def test_pyright_finds_nothing_in_correct_dags(tmp_path: Path) -> None:
    assert of_pyright(tmp_path, [HERE / "correct.py"], {"reportUnusedExpression": False}) == set()


def test_mypy_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    assert of_mypy(tmp_path, EXAMPLES, "--check-untyped-defs", "--ignore-missing-imports") == set()


def test_pyright_finds_nothing_in_the_examples(tmp_path: Path) -> None:
    assert of_pyright(tmp_path, EXAMPLES, UNTYPED) == set()


def test_mypy_finds_nothing_in_the_examples_of_airflow(airflow_examples: list[Path], tmp_path: Path) -> None:
    assert len(airflow_examples) >= 40
    assert of_mypy(tmp_path, airflow_examples, "--check-untyped-defs", "--ignore-missing-imports") == set()


def test_pyright_finds_nothing_in_the_examples_of_airflow(airflow_examples: list[Path], tmp_path: Path) -> None:
    assert of_pyright(tmp_path, airflow_examples, OF_AIRFLOW) == set()
