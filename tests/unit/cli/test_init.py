"""`paceline init`, and the error for a foreign distribution that has the same module."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from scheduler import cli
from scheduler.cli import init, paceline


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(paceline, arguments)

    return run


def test_a_project_passes_its_own_tests(call, tmp_path: Path) -> None:
    done = call("init", "sales")

    assert done.exit_code == 0, done.output
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=tmp_path / "sales", check=False,
                           capture_output=True, text=True)  # fmt: skip
    assert tests.returncode == 0, tests.stdout + tests.stderr
    assert "4 passed" in tests.stdout


def test_the_next_steps_name_the_folder(call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f" in {tmp_path / 'sales'}. Continue with:\n  cd sales\n" in call("init", "sales").output
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    output = call("init", ".").output

    assert f" in {tmp_path / 'here'}. Continue with:\n  paceline dags test hello\n" in output


def test_every_file_is_valid_and_the_passwords_are_private(call, tmp_path: Path) -> None:
    call("init", "sales")

    project = tmp_path / "sales"
    files = {str(path.relative_to(project)): path for path in project.rglob("*") if path.is_file()}
    assert not [name for name, path in files.items() if "@NAME@" in path.read_text() or "@VERSION@" in path.read_text()]
    assert files[".env"].stat().st_mode & 0o777 == 0o600
    assert ".env" in files[".gitignore"].read_text().splitlines()
    for name, path in files.items():
        if name.endswith(".py"):
            ast.parse(path.read_text())
        elif name.endswith(".toml"):
            tomllib.loads(path.read_text())
        elif name.endswith(".yml"):
            yaml.safe_load(path.read_text())
    services = yaml.safe_load(files["compose.yml"].read_text())["services"]
    assert set(services) == {"postgres", "redis", "migrate", "scheduler", "worker", "waiter", "web"}
    # Redis accepts no connection from another container without a password, unless its image turns this off.
    assert "requirepass $$PACELINE_REDIS_PASSWORD" in services["redis"]["command"][-1]
    required = re.findall(r"\$\{(\w+):\?", files["compose.yml"].read_text())
    assert set(required) == {line.partition("=")[0] for line in files[".env"].read_text().splitlines()}


@pytest.mark.parametrize(
    ("name", "words"), [("1st", "letters, digits and _.- only"), ("has space", "letters, digits"), ("full", "not an empty folder")]
)
def test_wrong_names(call, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    done = call("init", name)

    assert done.exit_code == 2
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_distribution_scheduler_is_detected(tmp_path: Path) -> None:
    cli.refuse_clash(tmp_path)
    shutil.copytree(cli.FOLDER / "scheduler", tmp_path / "scheduler", ignore=shutil.ignore_patterns("__pycache__", "static"))
    (tmp_path / "scheduler-0.8.8.dist-info").mkdir()

    command = [sys.executable, "-P", "-c", "from scheduler.cli import main; main(['version'])"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 1
    assert "scheduler-0.8.8 is installed next to Paceline" in done.stderr


def test_distributions_with_similar_names_are_allowed(tmp_path: Path) -> None:
    for name in ("paceline-0.2.0.dist-info", "scheduler_other-1.dist-info", "apscheduler-3.dist-info"):
        (tmp_path / name).mkdir()
    cli.refuse_clash(tmp_path)

    (tmp_path / "scheduler-0.8.8.dist-info").mkdir()
    with pytest.raises(cli.ClashError, match=r"^The package scheduler-0\.8\.8 is installed"):
        cli.refuse_clash(tmp_path)


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        ({}, "paceline[standalone]==1.2.3"),
        ({"url": "file:///src/paceline", "dir_info": {"editable": True}}, "paceline[standalone] @ file:///src/paceline"),
        ({"url": "https://files.example/paceline-1.2.3-py3-none-any.whl", "archive_info": {}},
         "paceline[standalone] @ https://files.example/paceline-1.2.3-py3-none-any.whl"),
        ({"url": "https://git.example/paceline", "vcs_info": {"vcs": "git", "commit_id": "abc123"}},
         "paceline[standalone] @ git+https://git.example/paceline@abc123"),
    ],
)  # fmt: skip
def test_a_project_requires_paceline_from_where_it_was_installed(origin: dict[str, Any], requirement: str) -> None:
    assert init._requirement("1.2.3", origin) == (requirement, None)


def test_a_project_keeps_the_wheel_that_no_index_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "a b" / "paceline-1.2.3-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"wheel")
    installed = tmp_path / "site" / "paceline-1.2.3.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: paceline\nVersion: 1.2.3\n")
    (installed / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    monkeypatch.syspath_prepend(str(installed.parent))
    importlib.invalidate_caches()

    done = CliRunner().invoke(init.init, [str(tmp_path / "sales")])

    assert done.exit_code == 0, done.output
    requirements = (tmp_path / "sales" / "requirements.txt").read_text().splitlines()
    assert requirements[0] == "./wheels/paceline-1.2.3-py3-none-any.whl[standalone]"
    assert (tmp_path / "sales" / "wheels" / wheel.name).read_bytes() == b"wheel"
