"""The settings of the measured Airflow: those for CeleryExecutor, its defaults, and the best known for each kind of shape."""

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A set of settings by `section.key`; all others are Airflow's defaults. `pool_slots` are those of default_pool."""

    name: str
    meaning: str
    settings: Mapping[str, object] = field(default_factory=dict)
    pool_slots: int = 128


#: Files are rarely parsed again, and no limit of the scheduler is reached.
ROOMY = {
    "dag_processor.min_file_process_interval": 3600,
    "dag_processor.refresh_interval": 3600,
    "scheduler.max_tis_per_query": 512,
    "scheduler.max_dagruns_to_create_per_loop": 100,
    "scheduler.max_dagruns_per_loop_to_schedule": 100,
    "core.parallelism": 512,
    "core.max_active_tasks_per_dag": 512,
    "core.max_active_runs_per_dag": 512,
    # The default, 16, is too many for two cores.
    "celery.worker_concurrency": 8,
    # A slot becomes free when the supervisor of its task wakes, after at most this many seconds instead of 5.
    "workers.min_heartbeat_interval": 1,
}
DEFAULTS = Profile(name="defaults", meaning="Airflow as it comes")
BEST_CHAIN = Profile(
    name="best for chains",
    meaning="no pause between two turns of the scheduler",
    settings=ROOMY | {"scheduler.scheduler_idle_sleep_time": 0},
    pool_slots=512,
)
BEST_WIDE = Profile(
    name="best for wide",
    meaning="0.1 s between two turns of the scheduler, which leaves the workers more of the machine",
    settings=ROOMY | {"scheduler.scheduler_idle_sleep_time": 0.1},
    pool_slots=512,
)


def environment(profile: Profile, *, home: Path, database_url: str, broker_url: str, port: int) -> dict[str, str]:
    """The environment of every process of an Airflow with this profile. `port` is that of its API server."""
    sqlalchemy_url = f"postgresql+psycopg2://{database_url.split('://', 1)[1]}"
    base = {
        "core.dags_folder": home / "dags",
        "core.executor": "CeleryExecutor",
        "core.load_examples": False,
        "core.dags_are_paused_at_creation": False,
        "core.fernet_key": base64.urlsafe_b64encode(os.urandom(32)).decode(),
        "core.simple_auth_manager_all_admins": True,
        "core.execution_api_server_url": f"http://127.0.0.1:{port}/execution/",
        "api.host": "127.0.0.1",
        "api.port": port,
        "api.secret_key": secrets.token_hex(32),
        "api_auth.jwt_secret": secrets.token_hex(48),
        "database.sql_alchemy_conn": sqlalchemy_url,
        "celery.broker_url": broker_url,
        "celery.result_backend": f"db+{sqlalchemy_url}",
        "usage_data_collection.enabled": False,
    }
    # Without bytecode files, every task would compile its imports.
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    settings = base | dict(profile.settings)
    return inherited | {"AIRFLOW_HOME": str(home)} | {variable(key): str(value) for key, value in settings.items()}


def variable(key: str) -> str:
    """The environment variable of a `section.key`."""
    section, name = key.upper().split(".")
    return f"AIRFLOW__{section}__{name}"
