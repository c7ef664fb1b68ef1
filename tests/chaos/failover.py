"""A failover: a streaming replica of the server is created, the primary is killed, and the replica is promoted in its place."""

import contextlib
import shutil
import signal
import subprocess
import time

from support.servers import DURABLE
from support.waiting import eventually

from chaos.cluster import Cluster, wait_until_up
from chaos.fault_context import FaultContext
from chaos.recovery import Recovery
from scheduler.embedded import home
from scheduler.embedded.servers import SUPERUSER, EmbeddedPostgres, programs_of

START_S = 60.0
STREAMS = "select exists (select from pg_stat_replication where state = 'streaming' and sync_state = 'sync')"


def standby_promoted(context: FaultContext) -> Recovery:
    """Commits that wait for the disk wait for the replica, so it has them; claims, which do not wait, may be lost."""
    cluster = context.cluster
    with cluster.postgres_lock:
        primary, standby = cluster.postgres, _replica(cluster)
        try:
            _ask(primary, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
            eventually(lambda: _ask(primary, STREAMS), timeout=START_S)
            # From here on every commit waits for it; it must also have all earlier commits.
            written = _ask(primary, "select pg_current_wal_lsn()")
            eventually(
                lambda: _ask(primary, f"select bool_and(flush_lsn >= '{written}') from pg_stat_replication"), timeout=START_S
            )
            time.sleep(context.rng.choice((0.0, 0.5)))
        except BaseException:
            _ask(primary, "alter system reset synchronous_standby_names", "select pg_reload_conf()")
            cluster.servers.stop(standby.name)
            raise
        with cluster.history.outage():
            cluster.signal_server(primary.name, signal.SIGQUIT)
            cluster.servers.stop(primary.name)  # it would be started again
            _ask(standby, "select pg_promote()")
            cluster.move_to(standby)
            shutil.rmtree(primary.data, ignore_errors=True)
            up = wait_until_up(cluster.settings.database_url)
    return Recovery("postgres", [context.meter.first_move(up)])


def _replica(cluster: Cluster) -> EmbeddedPostgres:
    """A replica that streams from the server in charge."""
    primary = cluster.postgres
    cluster.replicas += 1
    name = f"postgres-{cluster.replicas}"
    standby = EmbeddedPostgres(
        data=cluster.folder / f"{name}-data",
        run_folder=cluster.folder / name,
        supervisor=cluster.servers,
        options=DURABLE | primary.options | {"hot_standby": "on"},
        name=name,
    )
    identity = home.server_identity(primary.data)
    home.private_folder(standby.data, identity)
    uid, gid = identity or (None, None)
    program = programs_of(primary.data) / "pg_basebackup"
    command = [program, "-h", primary.run_folder, "-U", SUPERUSER, "-D", standby.data]
    command += ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
    groups = None if identity is None else []
    done = subprocess.run(
        command, user=uid, group=gid, extra_groups=groups, cwd=standby.data, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"pg_basebackup: {done.stderr}")
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
