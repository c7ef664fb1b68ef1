"""`import paceline` loads authoring only, and health checks load nothing that the checked process needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("sqlalchemy", "celery", "kombu", "redis", "pyspark", "psycopg2", "pydantic", "jinja2", "croniter", "pendulum")


def test_importing_scheduler_loads_nothing_heavy() -> None:
    code = f"import paceline, sys; print([m for m in {HEAVY} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_health_check_of_a_container_loads_no_database_no_broker_and_no_celery(tmp_path: Path) -> None:
    """Every container runs it every few seconds."""
    heavy = [name for name in HEAVY if name != "pydantic"] + ["alembic"]
    code = (
        "import sys, click; from scheduler.cli import paceline\n"
        "try: paceline(['doctor', '--role', 'worker'], standalone_mode=False)\n"
        "except click.ClickException as error: print(error.format_message())\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    environment = {"PATH": os.environ["PATH"], "PACELINE_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )

    message, loaded = done.stdout.strip().splitlines()
    assert message.startswith("No worker runs on this machine")
    assert loaded == "[]"


def test_help_and_version_load_no_more_than_they_print(tmp_path: Path) -> None:
    """The help runs often, and shells run the command line to complete words."""
    heavy = (*HEAVY, "alembic", "asyncio", "cryptography", "rich", "paceline.authoring.dag")
    code = (
        "import sys; from scheduler.cli import COMMANDS, paceline\n"
        "for words in (['--help'], ['--version'], ['version'], *([noun, '--help'] for noun in COMMANDS)):\n"
        "    try: paceline(words, standalone_mode=False)\n"
        "    except SystemExit: pass\n"
        f"    loaded = [name for name in {heavy} if name in sys.modules]\n"
        "    assert not loaded, (words, loaded)"
    )
    environment = {"PATH": os.environ["PATH"], "PACELINE_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "List, show, pause" in done.stdout


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("scheduler.dagfiles.fork_server", ("sqlalchemy", "asyncio", "celery", "redis", "psycopg2")),
        ("scheduler.services.loop", ("cryptography.fernet", "fastapi", "jinja2", "pandas")),
        ("workers.celery_worker.app", ("cryptography.fernet", "fastapi", "pandas", "pyspark")),
    ],
)
def test_a_process_that_runs_all_the_time_loads_no_package_that_it_does_not_need(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_every_name_that_dag_files_import_is_there() -> None:
    import paceline

    assert {name: getattr(paceline, name) for name in paceline.__all__}.keys() == set(paceline.__all__)
    assert set(paceline.__all__) <= set(dir(paceline))
