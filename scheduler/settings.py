"""One frozen, validated object with every setting; settings_sources reads the environment and the file."""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, ValidationError

from scheduler import settings_sources
from scheduler.exceptions import SettingsError
from scheduler.setting_sections import Broker, Database, Flower, Probed, Section, Smtp, Spark
from scheduler.setting_types import Count, DatabaseUrl, DataUrl, Days, FernetKeys, Seconds, ZoneName, in_words
from scheduler.settings_sources import Layout

#: Bytes; the kernel's limit is 107 on Linux and 103 on macOS.
LONGEST_SOCKET_PATH = 100
#: The database roles at the embedded server.
EMBEDDED_OWNER, EMBEDDED_SCHEDULER, EMBEDDED_WORKER = "postgres", "paceline_scheduler", "paceline_worker"
#: Keys whose values hold passwords: never printed whole.
SECRET_URLS = frozenset({"database.url", "database.owner_url", "broker.url", "worker.database_url"})
#: Keys whose values are secrets: never printed.
SECRET_KEYS = frozenset({"core.fernet_key", "smtp.password"})
#: Sections, and keys of others, that decide alike only if every process has the same: limits, defaults of DAGs, timeouts by
#: which one process judges another. Not paths, addresses, and what a process does with itself alone.
MUST_AGREE = ("core", "retention", "worker.heartbeat_timeout", "waiter.heartbeat_timeout", *(f"scheduler.{name}" for name in (
    "scheduler_health_check_threshold", "catchup_by_default", "create_cron_data_intervals", "create_delta_data_intervals",
    "schedule_after_task_execution", "max_tis_per_query", "pool_reservation", "priority_aging", "queue_headroom",
    "task_queued_timeout", "min_file_process_interval", "settled_file_process_interval", "dag_file_processor_timeout",
)))  # fmt: skip
#: The first must be longer than the second, or every healthy process looks dead.
LONGER_THAN = (
    ("scheduler.scheduler_health_check_threshold", "scheduler.scheduler_heartbeat_sec"),
    ("worker.heartbeat_timeout", "worker.heartbeat_sec"),
    ("waiter.heartbeat_timeout", "waiter.heartbeat_sec"),
)


class Paths(Section):
    """Where things lie on this machine."""

    home: Path = Path("~/.paceline")
    """Folder that holds everything the embedded stack writes: database, sockets, logs, data."""
    dags_folder: Path = Path("dags")
    """Folder that is searched for DAG files."""
    logs_folder: Path | None = Field(default=None, examples=["~/.paceline/logs"])
    """Where task logs go; unset means <home>/logs."""
    data_url: DataUrl | None = Field(default=None, examples=["s3a://bucket/paceline"])
    """Where DataFrames that tasks return are written: a folder, or a URL that both Spark and fsspec reach; unset: <home>/data."""


class Core(Section):
    """What holds for every DAG and task."""

    parallelism: Count = 256
    """Task instances queued or running at once, over all pools and schedulers."""
    default_timezone: ZoneName = "UTC"
    """IANA time zone of a schedule whose start_date names none."""
    default_queue: str = "default"
    """Queue of a task that names none and whose pool names none."""
    default_spark_queue: str = "spark"
    """Queue of a Spark task that names none."""
    heavy_spark_queue: str = "spark-heavy"
    """Queue of a Spark task that names none and is heavy: by heavy=True, or by one of the next two settings."""
    heavy_spark_memory_mb: Annotated[int, Field(ge=0)] = 8192
    """Memory of an executor, in MiB, from which on a Spark task is heavy; 0 is never."""
    heavy_spark_cores: Annotated[int, Field(ge=0)] = 8
    """Cores of an executor from which on a Spark task is heavy; 0 is never."""
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
    max_map_length: Count = 10_000
    """Most instances that one mapped task may become."""
    max_consecutive_failed_dag_runs_per_dag: Annotated[int, Field(ge=0)] = 0
    """Failed runs in a row after which a DAG is paused, unless the DAG says otherwise; 0 is never."""
    rerun_with_latest_version: bool = False
    """Cleared runs go on with the newest version of their DAG instead of the one they were made from."""
    max_xcom_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Largest return value, in bytes of JSON; larger data belongs into files whose path is returned."""
    max_conf_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Largest conf of a run or backfill, in bytes of JSON; each of its tasks reads it, so larger data belongs into files."""
    dag_run_conf_overrides_params: bool = True
    """The conf of a run replaces the values of the DAG's params of the same names."""
    record_events: bool = True
    """Every change of a run or task instance is kept with who made it and why (`paceline runs show --events`)."""
    fernet_key: FernetKeys = ""
    """Encrypts variables and connections: the first key encrypts, all decrypt; empty means the key of <home>/fernet.key."""


class Scheduler(Probed):
    """The scheduler's loop and its DAG files."""

    scheduler_idle_sleep_time: Seconds = 1
    """Seconds between two looks at the database when no doorbell rings."""
    scheduler_heartbeat_sec: Seconds = 2
    """Seconds between two signs of life of a scheduler."""
    scheduler_health_check_threshold: Seconds = 15
    """Seconds without a sign of life after which a scheduler counts as dead."""
    num_runs: Annotated[int, Field(ge=-1)] = -1
    """Turns of the loop before the scheduler stops; -1 is no limit."""
    run_duration: Annotated[float, Field(ge=-1, allow_inf_nan=False)] = -1
    """Seconds before the scheduler stops; -1 is no limit."""
    max_tis_per_query: Count = 256
    """Task instances queued in one transaction."""
    max_dagruns_to_create_per_loop: Count = 10
    """DAGs that get new runs in one turn."""
    max_dagruns_per_loop_to_schedule: Count = 20
    """DAG runs examined in one turn although nothing happened in them, the longest unexamined first."""
    catchup_by_default: bool = False
    """A DAG that does not say makes runs for every interval since its start_date."""
    create_cron_data_intervals: bool = False
    """A cron expression as schedule makes data intervals from tick to tick, each run when its interval is over."""
    create_delta_data_intervals: bool = False
    """A timedelta as schedule makes data intervals of its length, each run when its interval is over."""
    schedule_after_task_execution: bool = True
    """Fast-follow: a worker queues the next ready task of the run itself."""
    pool_reservation: bool = True
    """A task that needs more slots of a pool than are free holds its place, so that lower ranked ones cannot pass it for ever."""
    priority_aging: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """Seconds of waiting that raise a task's rank by a priority_weight of 1; 0 is off."""
    queue_headroom: Annotated[int, Field(ge=1)] = 32
    """Messages a Celery queue may hold beyond the free slots of its workers; more if they take them in less than 0.2 s."""
    orphaned_tasks_check_interval: Seconds = 1
    """Seconds between two searches for lost messages and dead workers."""
    task_queued_timeout: Seconds = 2
    """Seconds after which a queued task instance without a message in the broker is published again."""
    dag_dir_list_interval: Seconds = 300
    """Seconds between two listings of the DAGs folder; changes are also noticed at once (inotify)."""
    min_file_process_interval: Seconds = 30
    """Seconds before an unchanged DAG file is read again."""
    settled_file_process_interval: Seconds = 3600
    """The same for one whose reading opened no file but code; a change of the code is noticed at once all the same."""
    parsing_processes: Count = 2
    """Parser children of one scheduler at the same time."""
    file_parsing_sort_mode: Literal["modified_time", "random_seeded_by_host", "alphabetical"] = "modified_time"
    """Which DAG file comes first when many wait."""
    dag_file_processor_timeout: Seconds = 50
    """Seconds a parser child may take for one file before it is killed."""
    dag_file_memory_limit_mb: Annotated[int, Field(ge=128)] = 1024
    """Address space a parser child or the child of a callback may use, in MiB."""
    callback_processes: Count = 2
    """Children of one scheduler that run callbacks at the same time."""
    callback_execution_timeout: Seconds = 60
    """Seconds a callback may take before its child is killed."""
    max_callbacks_per_loop: Count = 20
    """Callbacks, and mails, that one scheduler takes on at a time."""


class Worker(Probed):
    """The processes that run tasks."""

    concurrency: Count = 16
    """Pool children of a worker that is started without -c; one that takes heavy Spark tasks has 1 unless this is set."""
    heartbeat_sec: Seconds = 2
    """Seconds between two signs of life of a worker."""
    heartbeat_timeout: Seconds = 10
    """Seconds without a sign of life after which a worker counts as dead and its tasks are tried again."""
    grace_sec: Seconds = 30
    """Seconds a worker that was told to stop lets its running tasks go on."""
    max_tasks_per_child: Annotated[int, Field(ge=0)] = 0
    """Tasks after which a pool child is replaced; 0 is never."""
    deaf_timeout: Seconds = 30
    """Seconds in which a worker with free places may take nothing although messages wait; then it starts itself again."""
    database_url: DatabaseUrl | None = Field(default=None, examples=["postgresql://worker:password@localhost:5432/paceline"])
    """The database, as a role that may do what workers do and no more; unset means that of the embedded server, or database.url."""


class Waiter(Probed):
    """The processes that await the triggers of deferred tasks."""

    capacity: Count = 1000
    """Triggers that one waiter awaits at once."""
    heartbeat_sec: Seconds = 2
    """Seconds between two signs of life of a waiter."""
    heartbeat_timeout: Seconds = 10
    """Seconds without a sign of life after which a waiter counts as dead and others take its triggers over."""


class Retention(Section):
    """How long what has ended is kept; schedulers delete the rest, a little at a time."""

    run_days: Days = 0
    """Days that ended runs are kept, with all of theirs; 0 is for ever. What schedules and later runs go on from stays."""
    event_days: Days = 90
    """Days that the events of an ended run are kept, if the run is kept longer; 0 is as long as the run."""
    housekeeping_days: Days = 30
    """Days that stopped processes, told notices, consumed updates of assets and unused versions of DAGs stay; 0 is for ever."""
    logs: bool = False
    """The log folders of runs go with them."""
    interval: Seconds = 60
    """Seconds between two searches for what is old enough."""


class Settings(Section):
    """All sections. Make it once at the edge (`Settings.load()`) and hand it down."""

    paths: Paths = Paths()
    core: Core = Core()
    scheduler: Scheduler = Scheduler()
    worker: Worker = Worker()
    waiter: Waiter = Waiter()
    retention: Retention = Retention()
    database: Database = Database()
    broker: Broker = Broker()
    smtp: Smtp = Smtp()
    flower: Flower = Flower()
    spark: Spark = Spark()

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read environment and file; SettingsError names the key, the value and what is allowed."""
        values, sources = settings_sources.read(os.environ if environ is None else environ, layout())
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_sentence(error, sources)) from None
        for longer, shorter in LONGER_THAN:
            long_s, short_s = settings.value(longer), settings.value(shorter)
            if long_s <= short_s:
                raise SettingsError(f"{longer} is {long_s:g} s and must be longer than {shorter}, {short_s:g} s.")
        return settings

    def value(self, key: str) -> Any:
        """The value of `<section>.<key>` as it was set."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def agreed(self) -> dict[str, Any]:
        """The settings that must be the same in all processes, as JSON values; of a secret only a digest."""
        keys_ = [key for key in keys() if key in MUST_AGREE or key.partition(".")[0] in MUST_AGREE]
        return {key: _digest(self.value(key)) if key in SECRET_KEYS else self.value(key) for key in keys_}

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
    def data_url(self) -> str:
        """Where DataFrames that tasks return are written, as a URL that does not end with a slash."""
        place = self.paths.data_url or str(self.home / "data")
        return place.rstrip("/") if "://" in place else f"file://{Path(place).expanduser().absolute()}"

    @property
    def run_folder(self) -> Path:
        """Where the embedded servers keep their sockets: <home>/run, unless that cannot be the name of a socket.

        If it is too long for the kernel, or has a comma, which separates hosts in PostgreSQL's URLs, it is a private folder
        of this user and home under the machine's temporary folder.
        """
        folder = self.home / "run"
        if "," not in str(folder) and len(os.fsencode(folder / ".s.PGSQL.5432.lock")) <= LONGEST_SOCKET_PATH:
            return folder
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{digest}"

    @property
    def database_url(self) -> str:
        """What schedulers and commands connect with: the configured URL, else their role at the embedded PostgreSQL of `home`."""
        return self.database.url or self._embedded_url(EMBEDDED_SCHEDULER)

    @property
    def owner_database_url(self) -> str:
        """What migrating connects with: the owner of the tables, who is a superuser of the embedded server."""
        return self.database.owner_url or self.database.url or self._embedded_url(EMBEDDED_OWNER)

    @property
    def worker_database_url(self) -> str:
        """What workers and waiters connect with: a URL of their own, else their role at the embedded server, else database_url."""
        if self.worker.database_url or self.database.url:
            return self.worker.database_url or self.database_url
        return self._embedded_url(EMBEDDED_WORKER)

    @property
    def database_is_embedded(self) -> bool:
        """Whether the database is that of this home, also where its URL was handed down to a process of the stack."""
        return self.database_url.endswith(f"@/paceline?host={quote(str(self.run_folder))}")

    def as_owner(self) -> "Settings":
        """The same with the owner's URL in place of that of schedulers."""
        return self.model_copy(update={"database": self.database.model_copy(update={"url": self.owner_database_url})})

    def _embedded_url(self, role: str) -> str:
        return f"postgresql://{role}@/paceline?host={quote(str(self.run_folder))}"

    @property
    def broker_url(self) -> str:
        """The configured URL, else that of the embedded Redis under `home`."""
        return self.broker.url or f"redis+socket://{quote(str(self.run_folder))}/redis.sock"


def layout() -> Layout:
    """The keys of every section, in order of definition."""
    return {section: tuple(section_type(section).model_fields) for section in Settings.model_fields}


def keys() -> list[str]:
    """Every setting as `<section>.<key>`, in order of definition."""
    return settings_sources.dotted(layout())


def section_type(section: str) -> type[Section]:
    """The model of one section."""
    found = Settings.model_fields[section].annotation
    assert isinstance(found, type) and issubclass(found, Section)
    return found


def environment_names() -> dict[str, tuple[str, str]]:
    """Every environment variable that is a setting, with the section and key it sets."""
    return settings_sources.environment_names(layout())


def sources(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """For each key that is set: the environment variable or the file it comes from."""
    return settings_sources.read(os.environ if environ is None else environ, layout())[1]


def allowed(key: str) -> str:
    """What a setting may be, in words: "a whole number of at least 1"."""
    section, _, name = key.partition(".")
    schema = section_type(section).model_json_schema()["properties"][name]
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") != "null":
            return in_words({**schema, **choice})
    raise AssertionError(f"{key} has no type")


def _digest(secret: str) -> str:
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:12]}" if secret else ""


def shown(key: str, value: Any) -> Any:
    """The value of a setting as it may be printed: passwords in URLs, also misplaced ones, and whole secrets read ***."""
    if value and key in SECRET_KEYS:
        return "***"
    return masked(str(value)) if key in SECRET_URLS or (isinstance(value, str) and "@" in value) else value


def masked(url: str) -> str:
    """A URL, or what was meant as one, whose password, if it has one, reads ***."""
    without = re.sub(r"((?:ssl)?password\s*=\s*)('[^']*'|[^&\s]*)", r"\1***", url)
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", without)
    start = scheme.end() if scheme else 0
    return without[:start] + re.sub(r"^([^/:@]*:).*@", r"\1***@", without[start:], flags=re.DOTALL)


def _sentence(error: ValidationError, origin: Mapping[str, str]) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"][:2])
    where = f" (set by {origin[key]})" if key in origin else ""
    if first["type"] == "extra_forbidden":
        return f"{key}{where} is not a setting; {settings_sources.nearest_key(key, layout())}"
    value = repr(shown(key, first["input"]))
    return f"{key}{where} cannot be {value}; allowed is {allowed(key)}."
