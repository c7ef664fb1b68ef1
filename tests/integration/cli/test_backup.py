"""`paceline db backup` and `db restore` with external servers, which the guide on external servers sets up."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import commands
from support.servers import PostgresServer

pytestmark = pytest.mark.long

ROLES = {
    "DATABASE_OWNER": "keeper",
    "DATABASE": "keeper_scheduler",
    "WORKER_DATABASE": "keeper_worker",
    "WEB_DATABASE": "keeper_web",
}


@pytest.fixture
def databases(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    """The environments of two installations, whose databases belong to a role that may create roles and is no superuser."""
    postgres_server.execute("create role keeper login createrole")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    with contextlib.ExitStack() as ending:
        for role in ROLES.values():
            ending.callback(postgres_server.execute, f"drop role if exists {role}")
        made = []
        for name in ("old", "new"):
            url = ending.enter_context(postgres_server.new_database(migrated=False))
            postgres_server.execute(f"alter database {url.partition('@/')[2].partition('?')[0]} owner to keeper")
            urls = {f"PACELINE_{key}_URL": url.replace("postgres@", f"{role}:pass@") for key, role in ROLES.items()}
            made.append(clean | urls | {"PACELINE_HOME": str(tmp_path / name), "PACELINE_BROKER_URL": "redis://127.0.0.1:1/0"})
        yield made


def paceline(environment: dict[str, str], *arguments: str, ok: int = 0) -> str:
    done = commands.run(arguments, env=environment, timeout=60)
    assert done.returncode == ok, done.stderr
    return done.stdout + done.stderr


def test_a_backup_is_restored_into_an_empty_database_and_into_no_other(databases: list[dict[str, str]], tmp_path: Path) -> None:
    old, new = databases
    file = tmp_path / "backup"
    paceline(old, "db", "migrate")
    paceline(old, "pools", "set", "small", "3")

    paceline(old, "db", "backup", str(file))
    paceline(new, "db", "restore", str(file))

    assert "restore into an empty database" in paceline(new, "db", "restore", str(file), ok=1)
    pools = {pool["name"]: pool["slots"] for pool in json.loads(paceline(new, "pools", "list", "--json"))}
    assert pools == {"default_pool": 128, "small": 3}
    # The role of workers has its rights in the new database, and no others.
    as_worker = new | {"PACELINE_DATABASE_URL": new["PACELINE_WORKER_DATABASE_URL"]}
    assert "small" in paceline(as_worker, "pools", "list")
    assert "permission denied" in paceline(as_worker, "pools", "set", "small", "9", ok=4)


def test_a_file_that_is_not_a_backup_is_refused_and_leaves_the_database_empty(
    databases: list[dict[str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "backup"
    file.write_text("no backup")

    assert "pg_restore failed" in paceline(databases[0], "db", "restore", str(file), ok=1)
    as_owner = databases[0] | {"PACELINE_DATABASE_URL": databases[0]["PACELINE_DATABASE_OWNER_URL"]}
    assert "has no Paceline tables" in paceline(as_owner, "db", "check", ok=4)


def test_a_backup_that_cannot_be_written_leaves_the_file_as_it_was(databases: list[dict[str, str]], tmp_path: Path) -> None:
    paceline(databases[0], "db", "migrate")

    assert "cannot be written" in paceline(databases[0], "db", "backup", str(tmp_path / "missing" / "backup"), ok=1)
