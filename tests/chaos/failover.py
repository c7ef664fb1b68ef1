"""A failover: a streaming replica of the server is made, the primary is killed and the replica is promoted in its place."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

from support.servers import DURABLE
from support.waiting import eventually

from chaos.act import Act
from chaos.recovery import Recovery
from chaos.stage import Stage, wait_until_up
from scheduler.cli import home
from scheduler.cli.embedded import SUPERUSER, EmbeddedPostgres, _postgres_programs

START_S = 60.0
SYNCHRONOUS = "select exists (select from pg_stat_replication where state = 'streaming' and sync_state = 'sync')"


def standby_promoted(act: Act) -> Recovery:
    """Commits that waited for their answer wait for the replica, so it has them; claims, which do not wait, may be lost."""
    found = act.stage
    primary = found.postgres
    standby = _replica(found, f"postgres-{found.failovers + 1}")
    found.failovers += 1
    try:
        _ask(primary, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
        eventually(lambda: _ask(primary, SYNCHRONOUS), timeout=START_S)
        time.sleep(act.dice.choice((0.0, 0.5)))
    except BaseException:
        _ask(primary, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
        found.servers.stop(standby.name)
        raise
    with contextlib.suppress(ProcessLookupError):
        os.kill(found.servers.pid(primary.name), signal.SIGQUIT)
    found.servers.stop(primary.name)  # it would be started again
    _ask(standby, "select pg_promote()")
    found.move_to(standby)
    shutil.rmtree(primary.data, ignore_errors=True)
    return Recovery("postgres", [act.meter.first_move(wait_until_up(found.settings.database_url))])


def _replica(found: Stage, name: str) -> EmbeddedPostgres:
    """A replica that streams from the server in charge."""
    primary = found.postgres
    standby = EmbeddedPostgres(
        data=found.folder / f"{name}-data",
        run_folder=found.folder / name,
        supervisor=found.servers,
        options=DURABLE | primary.options | {"hot_standby": "on"},
        name=name,
    )
    identity = home.server_identity(primary.data)
    home.private_folder(standby.data, identity)
    uid, gid = identity or (None, None)
    program = _postgres_programs(primary.data) / "pg_basebackup"
    command = [program, "-h", primary.run_folder, "-U", SUPERUSER, "-D", standby.data]
    command += ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
    groups = None if identity is None else []
    made = subprocess.run(
        command, user=uid, group=gid, extra_groups=groups, cwd=standby.data, capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise RuntimeError(f"pg_basebackup: {made.stderr}")
    standby.start()
    return standby


def _ask(server: EmbeddedPostgres, *statements: str) -> object:
    """The first value of the last statement."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        value = None
        for statement in statements:
            cursor.execute(statement)
            value = cursor.fetchone()[0] if cursor.description else None
        return value
