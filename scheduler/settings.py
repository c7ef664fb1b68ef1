"""One frozen, validated object with every setting: environment, then file, then default.

`PACELINE_<SECTION>_<KEY>` beats `$PACELINE_CONFIG` or `config/paceline.toml`, which beats the defaults below. The short names
PACELINE_HOME, PACELINE_DATABASE_URL, PACELINE_BROKER_URL and PACELINE_DAGS_FOLDER are the keys people set most.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scheduler.exceptions import SettingsError

PREFIX = "PACELINE_"
#: Environment names that are not PACELINE_<SECTION>_<KEY> of a setting below.
SHORT_NAMES = {"PACELINE_HOME": ("paths", "home"), "PACELINE_DAGS_FOLDER": ("paths", "dags_folder")}
#: Read elsewhere: which file to read, and the name the compose file gives a worker.
OTHER_NAMES = frozenset({"PACELINE_CONFIG"})

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A section of the file: unknown keys are refused, nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class Paths(Section):
    home: Path = Path("~/.paceline")
    """Folder that holds everything the embedded stack writes: database, sockets, logs, data."""
    dags_folder: Path = Path("dags")
    """Folder that is searched for DAG files."""
    logs_folder: Path | None = None
    """Where task logs go; unset means <home>/logs."""


class Core(Section):
    parallelism: Count = 256
    """Task instances queued or running at once, over all pools and schedulers."""
    default_timezone: str = "UTC"
    """IANA time zone of a schedule whose start_date names none."""
    default_queue: str = "default"
    """Queue of a task that names none and whose pool names none."""
    default_spark_queue: str = "spark"
    """Queue of a PySpark task that names none."""
    default_pool_task_slot_count: Count = 128
    """Slots of default_pool when the database is made."""
    max_active_tasks_per_dag: Count = 16
    """Task instances of one DAG run queued or running at once, unless the DAG says otherwise."""
    max_active_runs_per_dag: Count = 16
    """Running DAG runs of one DAG, unless the DAG says otherwise."""
    default_task_retries: Annotated[int, Field(ge=0)] = 0
    """Retries of a task that does not say."""
    default_task_retry_delay: Seconds = 300
    """Seconds before a retry, for a task that does not say."""
    max_task_retry_delay: Seconds = 86400
    """Longest wait before a retry, in seconds, whatever the backoff asks for."""
    dags_are_paused_at_creation: bool = False
    """A new DAG starts paused."""
    max_xcom_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Largest return value, in bytes of JSON; larger data belongs into files whose path is returned."""


class Scheduler(Section):
    scheduler_idle_sleep_time: Seconds = 1
    """Seconds between two looks at the database when no doorbell rings."""
    scheduler_heartbeat_sec: Seconds = 2
    """Seconds between two signs of life of a scheduler."""
    scheduler_health_check_threshold: Seconds = 15
    """Seconds without a sign of life after which a scheduler counts as dead."""
    num_runs: Annotated[int, Field(ge=-1)] = -1
    """Turns of the loop before the scheduler stops; -1 is no limit."""
    run_duration: Annotated[float, Field(ge=-1)] = -1
    """Seconds before the scheduler stops; -1 is no limit."""
    max_tis_per_query: Count = 256
    """Task instances queued in one transaction."""
    max_dagruns_to_create_per_loop: Count = 10
    """DAGs that get new runs in one turn."""
    max_dagruns_per_loop_to_schedule: Count = 20
    """DAG runs examined in one turn."""
    catchup_by_default: bool = False
    """A DAG that does not say makes runs for every interval since its start_date."""
    schedule_after_task_execution: bool = True
    """Fast-follow: a worker queues the next ready task of the run itself."""
    queue_headroom: Annotated[int, Field(ge=1)] = 32
    """Messages a Celery queue may hold beyond the free slots of its workers."""
    orphaned_tasks_check_interval: Seconds = 2
    """Seconds between two searches for lost messages and dead workers."""
    task_queued_timeout: Seconds = 5
    """Seconds after which a queued task instance without a message in the broker is published again."""
    dag_dir_list_interval: Seconds = 300
    """Seconds between two listings of the DAGs folder; changes are also noticed at once (inotify)."""
    min_file_process_interval: Seconds = 30
    """Seconds before an unchanged DAG file is read again."""
    parsing_processes: Count = 2
    """Parser children of one scheduler at the same time."""
    file_parsing_sort_mode: Literal["modified_time", "random_seeded_by_host", "alphabetical"] = "modified_time"
    """Which DAG file comes first when many wait."""
    dag_file_processor_timeout: Seconds = 50
    """Seconds a parser child may take for one file before it is killed."""
    dag_file_memory_limit_mb: Annotated[int, Field(ge=128)] = 1024
    """Address space a parser child may use, in MiB."""


class Worker(Section):
    concurrency: Count = 16
    """Pool children of a worker that is started without -c."""
    heartbeat_sec: Seconds = 2
    """Seconds between two signs of life of a worker."""
    heartbeat_timeout: Seconds = 10
    """Seconds without a sign of life after which a worker counts as dead and its tasks are tried again."""
    grace_sec: Seconds = 30
    """Seconds a worker that was told to stop lets its running tasks go on."""
    max_tasks_per_child: Annotated[int, Field(ge=0)] = 0
    """Tasks after which a pool child is replaced; 0 is never."""


class Database(Section):
    url: str | None = None
    """postgresql://user:password@host:port/name; unset means the embedded PostgreSQL."""
    pool_size: Count = 4
    """Connections one scheduler or web process keeps open."""
    connect_timeout: Count = 5
    """Seconds one attempt to connect may take."""


class Broker(Section):
    url: str | None = None
    """redis://:password@host:port/db (or rediss://); unset means the embedded Redis."""


class Flower(Section):
    address: str = "127.0.0.1"
    """Address Flower listens on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 5555
    """Port Flower listens on; standalone takes the next free one, 0 is any."""


class Settings(Section):
    """All sections. Make it once at the edge (`Settings.load()`) and hand it down."""

    paths: Paths = Paths()
    core: Core = Core()
    scheduler: Scheduler = Scheduler()
    worker: Worker = Worker()
    database: Database = Database()
    broker: Broker = Broker()
    flower: Flower = Flower()

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read environment and file; SettingsError names the key, the value and what is allowed."""
        environ = os.environ if environ is None else environ
        values = _file_values(environ)
        for section, keys in _environment_values(environ).items():
            values.setdefault(section, {}).update(keys)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_sentence(error)) from None

    @property
    def home(self) -> Path:
        return self.paths.home.expanduser().absolute()

    @property
    def dags_folder(self) -> Path:
        return self.paths.dags_folder.expanduser().absolute()

    @property
    def logs_folder(self) -> Path:
        return (self.paths.logs_folder or self.home / "logs").expanduser().absolute()

    @property
    def run_folder(self) -> Path:
        """Where the embedded servers keep their sockets."""
        return self.home / "run"

    @property
    def database_url(self) -> str:
        """The configured URL, else that of the embedded PostgreSQL under `home`."""
        return self.database.url or f"postgresql://postgres@/paceline?host={self.run_folder}"

    @property
    def broker_url(self) -> str:
        """The configured URL, else that of the embedded Redis under `home`."""
        return self.broker.url or f"redis+socket://{self.run_folder}/redis.sock"


def _file_values(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    named = environ.get("PACELINE_CONFIG")
    path = Path(named or "config/paceline.toml").expanduser()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise SettingsError(f"PACELINE_CONFIG names {path}, which does not exist.") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as TOML: {error}.") from None


def _environment_values(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    known = environment_names()
    values: dict[str, dict[str, str]] = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in OTHER_NAMES:
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "; `paceline config show` lists every key."
            raise SettingsError(f"The environment variable {name} is not a setting{hint}")
        section, key = known[name]
        values.setdefault(section, {})[key] = value
    return values


def environment_names() -> dict[str, tuple[str, str]]:
    """Every environment variable that is a setting, with the section and key it sets."""
    names = {
        f"{PREFIX}{section}_{key}".upper(): (section, key)
        for section, field in Settings.model_fields.items()
        for key in field.annotation.model_fields  # type: ignore[union-attr]
    }
    return names | SHORT_NAMES


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section, _, name = key.rpartition(".")
        fields = Settings.model_fields
        keys = list(fields[section].annotation.model_fields) if section in fields else list(fields)  # type: ignore[union-attr]
        near = difflib.get_close_matches(name, keys, 1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(keys)}."
        return f"{key} is not a setting; {hint}"
    return f"{key} cannot be {first['input']!r}: {first['msg']}."
