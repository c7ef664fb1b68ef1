"""The settings model: a frozen, validated object with one section for each part of Paceline."""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field, ValidationError

from paceline.exceptions import SettingsError
from scheduler.settings import environment, sections
from scheduler.settings.environment import Layout
from scheduler.settings.sections import Probed, Section
from scheduler.settings.types import Count, DatabaseUrl, FernetKeys, Seconds, ZoneName, broker_urls, folder_url, in_words

#: Bytes. The kernel's limit is 107 on Linux and 103 on macOS.
LONGEST_SOCKET_PATH = 100
#: The database roles of the embedded server.
EMBEDDED_OWNER, EMBEDDED_SCHEDULER = "postgres", "paceline_scheduler"
EMBEDDED_WORKER, EMBEDDED_WEB = "paceline_worker", "paceline_web"
#: Keys whose values contain passwords, which are masked in output.
SECRET_URLS = frozenset({"database.url", "database.owner_url", "broker.url", "worker.database_url", "web.database_url"})
#: Keys whose values are secrets: never printed.
SECRET_KEYS = frozenset(
    {"core.fernet_key", "smtp.password", "web.signing_key", "oidc.client_secret", "lineage.api_key", "tables.storage_options"}
)
#: Sections and keys that must be equal in all processes, so that they decide alike: limits, defaults of DAGs, and timeouts after
#: which a process is declared lost. Paths, addresses and settings that affect only their own process may differ.
MUST_AGREE = (
    "core", "retention", "bundles.sources", "bundles.install_requirements", "tables",
    "worker.heartbeat_timeout", "waiter.heartbeat_timeout", *(
    f"scheduler.{name}" for name in (
    "scheduler_health_check_threshold", "catchup_by_default", "create_cron_data_intervals", "create_delta_data_intervals",
    "schedule_after_task_execution", "max_tis_per_query", "pool_reservation", "priority_aging", "prefetch_window",
    "task_queued_timeout", "min_file_process_interval", "settled_file_process_interval", "dag_file_processor_timeout",
)))  # fmt: skip
#: The first must be longer than the second; otherwise every healthy process would be declared lost.
LONGER_THAN = (
    ("scheduler.scheduler_health_check_threshold", "scheduler.scheduler_heartbeat_sec"),
    ("worker.heartbeat_timeout", "worker.heartbeat_sec"),
    ("waiter.heartbeat_timeout", "waiter.heartbeat_sec"),
)


class Core(Section):
    """Defaults and limits of all DAGs and tasks."""

    parallelism: Count = 256
    """Maximum number of queued and running task instances in all pools, for all schedulers together."""
    default_timezone: ZoneName = "UTC"
    """IANA time zone of a schedule whose start_date has no time zone."""
    default_queue: str = "default"
    """Queue of a task if neither the task nor its pool sets a queue."""
    default_spark_queue: str = "spark"
    """Queue of a Spark task that sets no queue."""
    heavy_spark_queue: str = "spark-heavy"
    """Queue of a heavy Spark task that sets no queue. heavy=True or one of the next two settings makes a task heavy."""
    heavy_spark_memory_mb: Annotated[int, Field(ge=0)] = 8192
    """Memory of a driver or executor, in MiB, at or above which a Spark task is heavy. 0 turns this rule off."""
    heavy_spark_cores: Annotated[int, Field(ge=0)] = 8
    """Cores of a driver, an executor or a local master at or above which a Spark task is heavy. 0 turns this rule off."""
    default_pool_task_slot_count: Count = 128
    """Slots of default_pool when the database is created."""
    max_active_tasks_per_dag: Count = 16
    """Maximum number of queued and running task instances of one DAG run, unless the DAG sets its own limit."""
    max_active_runs_per_dag: Count = 16
    """Maximum number of running DAG runs of one DAG, unless the DAG sets its own limit."""
    default_task_retries: Annotated[int, Field(ge=0)] = 0
    """Retries of a task that does not set retries."""
    default_task_retry_delay: Seconds = 300
    """Seconds before a retry, for a task that does not set retry_delay."""
    max_task_retry_delay: Seconds = 86400
    """Upper limit, in seconds, for the delay before a retry, including exponential backoff."""
    dags_are_paused_at_creation: bool = False
    """New DAGs start paused."""
    max_map_length: Count = 10_000
    """Maximum number of instances of one mapped task."""
    max_consecutive_failed_dag_runs_per_dag: Annotated[int, Field(ge=0)] = 0
    """Consecutive failed runs after which a DAG is paused, unless the DAG sets its own limit. 0 turns this off."""
    rerun_with_latest_version: bool | None = Field(default=None, examples=[True])
    """Cleared runs continue with the newest version of their DAG, not with their own. If unset, those of the DAGs folder do."""
    max_xcom_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Maximum size of a return value or state, in bytes of JSON. Write larger data to files and return their paths."""
    task_state_retention_days: Annotated[int, Field(ge=0)] = 30
    """Days after which a value in the task_state_store of a task expires, unless the task sets a retention. 0 means never."""
    max_conf_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Maximum size of the conf of a run or backfill, in bytes of JSON. Every task reads it, so keep larger data in files."""
    dag_run_conf_overrides_params: bool = True
    """The conf of a run overrides the DAG's params of the same names."""
    airflow_imports: bool = False
    """Let DAG files import `airflow`, with Paceline's classes in its modules. Apache Airflow itself must not be installed."""
    dag_ignore_file_syntax: Literal["glob", "regexp"] = "glob"
    """Syntax of the lines of .airflowignore files: glob patterns as in .gitignore, or regular expressions."""
    record_events: bool = True
    """Record every change of a run or task instance with its actor and reason (`paceline runs show --events`)."""
    fernet_key: FernetKeys = ""
    """Fernet keys for variables and connections. The first key encrypts, all decrypt. If empty, the key in <home>/fernet.key."""


class Scheduler(Probed):
    """The scheduler loop and the parsing of DAG files."""

    scheduler_idle_sleep_time: Seconds = 1
    """Seconds between two polls of the database when no wakeup arrives."""
    scheduler_heartbeat_sec: Seconds = 2
    """Seconds between two heartbeats of a scheduler."""
    scheduler_health_check_threshold: Seconds = 15
    """Seconds without a heartbeat after which a scheduler is declared lost."""
    num_runs: Annotated[int, Field(ge=-1)] = -1
    """Iterations of the loop before the scheduler stops. -1 means no limit."""
    run_duration: Annotated[float, Field(ge=-1, allow_inf_nan=False)] = -1
    """Seconds before the scheduler stops. -1 means no limit."""
    max_tis_per_query: Count = 256
    """Maximum number of task instances queued in one transaction."""
    max_dagruns_to_create_per_loop: Count = 10
    """Maximum number of DAGs that get new runs in one iteration."""
    max_dagruns_per_loop_to_schedule: Count = 20
    """DAG runs without recent changes that one iteration examines. The least recently examined run comes first."""
    catchup_by_default: bool = False
    """A DAG that does not set catchup gets a run for every interval since its start_date."""
    create_cron_data_intervals: bool = False
    """A schedule by cron has a data interval between every two ticks, and each run starts after the end of its interval."""
    create_delta_data_intervals: bool = False
    """A schedule by timedelta has data intervals of that length, and each run starts after the end of its interval."""
    schedule_after_task_execution: bool = True
    """Fast-follow: when a task ends, its worker queues the next ready task of the run."""
    pool_reservation: bool = True
    """Reserve slots for a task that needs more than its pool has free, so that lower-priority tasks cannot overtake it forever."""
    priority_aging: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """Seconds of waiting that raise a task's rank by a priority_weight of 1. 0 turns aging off."""
    prefetch_window: Annotated[int, Field(ge=1)] = 32
    """Prefetch window: messages a Celery queue may hold beyond its workers' free slots; more if workers drain them within 0.2 s."""
    orphaned_tasks_check_interval: Seconds = 1
    """Seconds between two sweeps for lost messages and lost workers."""
    task_queued_timeout: Seconds = 2
    """Seconds after which a queued task instance whose message is not in the broker is published again."""
    dag_dir_list_interval: Seconds = 300
    """Seconds between two listings of the DAGs folder. Changes are also detected immediately (inotify)."""
    min_file_process_interval: Seconds = 30
    """Seconds before an unchanged DAG file is parsed again."""
    settled_file_process_interval: Seconds = 3600
    """Seconds before an unchanged DAG file that opens only Python code is parsed again. Changes are detected immediately."""
    parsing_processes: Count = 2
    """Maximum number of parser processes of one scheduler."""
    file_parsing_sort_mode: Literal["modified_time", "random_seeded_by_host", "alphabetical"] = "modified_time"
    """Order in which waiting DAG files are parsed."""
    dag_file_processor_timeout: Seconds = 50
    """Seconds a parser process may spend on one file before it is killed."""
    dag_file_memory_limit_mb: Annotated[int, Field(ge=128)] = 1024
    """Address space limit of a parser or callback process, in MiB."""
    callback_processes: Count = 2
    """Maximum number of callback processes of one scheduler."""
    callback_execution_timeout: Seconds = 60
    """Seconds a callback may take before its process is killed."""
    max_callbacks_per_loop: Count = 20
    """Maximum number of callbacks and emails that one scheduler claims at a time."""


class Worker(Probed):
    """The processes that run tasks."""

    concurrency: Count = 16
    """Pool processes of a worker started without -c. A worker for heavy Spark tasks has 1 unless this is set."""
    heartbeat_sec: Seconds = 2
    """Seconds between two heartbeats of a worker."""
    heartbeat_timeout: Seconds = 10
    """Seconds without a heartbeat after which a worker is declared lost and its tasks are retried."""
    grace_sec: Seconds = 30
    """Seconds that a stopping worker lets its running tasks continue."""
    in_place_seconds: Annotated[float, Field(ge=0, le=60)] = 0.2
    """In-place follow: seconds for which a pool process continues with the next tasks itself, without messages. 0 turns it off."""
    idle_connection_seconds: Annotated[float, Field(ge=0, le=3600)] = 3
    """Seconds without a statement after which a pool process closes its database connection until it needs it. 0 means never."""
    connections: Annotated[int, Field(ge=0, le=1000)] = 0
    """Database connections that the pool processes of a worker share at most, over its pooler. 0: each has one of its own."""
    max_tasks_per_child: Annotated[int, Field(ge=0)] = 0
    """Tasks after which a pool process is replaced. 0 means never."""
    deaf_timeout: Seconds = 30
    """Seconds a worker with free slots may receive nothing while messages wait. After that, it restarts itself."""
    database_url: DatabaseUrl | None = Field(default=None, examples=["postgresql://worker:password@localhost:5432/paceline"])
    """Database URL with a role limited to what workers need. If unset, that role of the embedded server, or database.url."""


class Waiter(Probed):
    """The processes that await the triggers of deferred tasks."""

    capacity: Count = 1000
    """Maximum number of triggers that one waiter awaits."""
    heartbeat_sec: Seconds = 2
    """Seconds between two heartbeats of a waiter."""
    heartbeat_timeout: Seconds = 10
    """Seconds without a heartbeat after which a waiter is declared lost and other waiters take over its triggers."""


class Settings(Section):
    """All sections. Load it once at startup (`Settings.load()`) and pass it as an argument."""

    paths: sections.Paths = sections.Paths()
    core: Core = Core()
    scheduler: Scheduler = Scheduler()
    worker: Worker = Worker()
    waiter: Waiter = Waiter()
    bundles: sections.Bundles = sections.Bundles()
    retention: sections.Retention = sections.Retention()
    database: sections.Database = sections.Database()
    broker: sections.Broker = sections.Broker()
    smtp: sections.Smtp = sections.Smtp()
    flower: sections.Flower = sections.Flower()
    web: sections.Web = sections.Web()
    oidc: sections.Oidc = sections.Oidc()
    metrics: sections.Metrics = sections.Metrics()
    logs: sections.Logs = sections.Logs()
    tracing: sections.Tracing = sections.Tracing()
    lineage: sections.Lineage = sections.Lineage()
    spark: sections.Spark = sections.Spark()
    tables: sections.Tables = sections.Tables()

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the environment and the file. SettingsError names the key, its value and the allowed values."""
        values, sources = environment.read(os.environ if environ is None else environ, layout())
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
        """Return the value of `<section>.<key>`, without derived defaults."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name)

    def agreed(self) -> dict[str, Any]:
        """Return the settings that must be equal in all processes, as JSON values. Secrets are replaced with digests."""
        keys_ = [key for key in keys() if key in MUST_AGREE or key.partition(".")[0] in MUST_AGREE]
        return {key: _digest(self.value(key)) if key in SECRET_KEYS else self.value(key) for key in keys_}

    @property
    def home(self) -> Path:
        return self.paths.home.expanduser().absolute()

    @property
    def dags_folder(self) -> Path:
        return self.paths.dags_folder.expanduser().absolute()

    @property
    def bundles_folder(self) -> Path:
        """The folder of the bundle versions on this machine."""
        return self.home / "bundles"

    @property
    def logs_folder(self) -> Path:
        return (self.paths.logs_folder or self.home / "logs").expanduser().absolute()

    @property
    def data_url(self) -> str:
        """The folder of the DataFrames that tasks return, as a URL without a trailing slash."""
        return folder_url(self.paths.data_url or str(self.home / "data"))

    @property
    def run_folder(self) -> Path:
        """The folder of the embedded servers' sockets: <home>/run, unless a socket cannot have that path.

        If the path is too long for the kernel, or contains a comma, which separates hosts in URLs of PostgreSQL, it is a private
        folder of this user and home in the temporary folder of the machine.
        """
        folder = self.home / "run"
        if "," not in str(folder) and len(os.fsencode(folder / ".s.PGSQL.5432.lock")) <= LONGEST_SOCKET_PATH:
            return folder
        digest = hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}-{digest}"

    @property
    def database_url(self) -> str:
        """The URL of schedulers and commands: the configured URL, or else their role at the embedded PostgreSQL of `home`."""
        return self.database.url or self._embedded_url(EMBEDDED_SCHEDULER)

    @property
    def owner_database_url(self) -> str:
        """The URL of migrations, as the owner of the tables. At the embedded server, the owner is a superuser."""
        return self.database.owner_url or self.database.url or self._embedded_url(EMBEDDED_OWNER)

    @property
    def worker_database_url(self) -> str:
        """The URL of workers and waiters: their own, or else database.url, or else their role at the embedded server."""
        return self.worker.database_url or self.database.url or self._embedded_url(EMBEDDED_WORKER)

    @property
    def web_database_url(self) -> str:
        """The URL of web processes: their own, or else database.url, or else their role at the embedded server."""
        return self.web.database_url or self.database.url or self._embedded_url(EMBEDDED_WEB)

    @property
    def database_is_embedded(self) -> bool:
        """Whether the database is the embedded server of this home, also in child processes that receive its URL."""
        return self.database_url.endswith(f"@/paceline?host={quote(str(self.run_folder))}")

    def as_owner(self) -> "Settings":
        """Return a copy with the owner's URL as the database URL."""
        return self._connecting_to(self.owner_database_url)

    def as_worker(self) -> "Settings":
        """Return a copy with the URL of workers and waiters as the database URL."""
        return self._connecting_to(self.worker_database_url)

    def as_web(self) -> "Settings":
        """Return a copy with the URL of web processes, and as many connections, as the database settings."""
        return self._connecting_to(self.web_database_url)

    def _connecting_to(self, url: str) -> "Settings":
        return self.model_copy(update={"database": self.database.model_copy(update={"url": url})})

    def _embedded_url(self, role: str) -> str:
        return f"postgresql://{role}@/paceline?host={quote(str(self.run_folder))}"

    @property
    def broker_url(self) -> str:
        """The configured URL, or else the URL of the embedded Redis of `home`."""
        return self.broker.url or f"redis+socket://{quote(str(self.run_folder))}/redis.sock"

    @property
    def broker_urls(self) -> tuple[str, ...]:
        """The URL of each broker."""
        return broker_urls(self.broker_url)


def layout() -> Layout:
    """Return the keys of every section, in order of definition."""
    return {section: tuple(section_type(section).model_fields) for section in Settings.model_fields}


def keys() -> list[str]:
    """Return all settings as `<section>.<key>`, in order of definition."""
    return environment.dotted(layout())


def section_type(section: str) -> type[Section]:
    """Return the model of a section."""
    model = Settings.model_fields[section].annotation
    assert isinstance(model, type) and issubclass(model, Section)
    return model


def environment_names() -> dict[str, tuple[str, str]]:
    """Return the environment variables of all settings, each with its section and key."""
    return environment.environment_names(layout())


def sources(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the source of each key that is set: an environment variable or a file."""
    return environment.read(os.environ if environ is None else environ, layout())[1]


def allowed(key: str) -> str:
    """Describe the allowed values of a setting, such as "a whole number of at least 1"."""
    section, _, name = key.partition(".")
    schema = section_type(section).model_json_schema()["properties"][name]
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") != "null":
            return in_words({**schema, **choice})
    raise AssertionError(f"{key} has no type")


def _digest(secret: str) -> str:
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:12]}" if secret else ""


def shown(key: str, value: Any) -> Any:
    """Return the value of a setting for output. Secrets, and passwords in URLs of any setting, are replaced with ***."""
    if value and key in SECRET_KEYS:
        return "***"
    return masked(str(value)) if key in SECRET_URLS or (isinstance(value, str) and "@" in value) else value


def effective(settings: Settings, key: str) -> Any:
    """Return the effective value of a setting for output: with embedded URLs and full paths filled in, and secrets masked."""
    derived = {
        "paths.home": settings.home,
        "paths.dags_folder": settings.dags_folder,
        "paths.logs_folder": settings.logs_folder,
        "database.url": settings.database_url,
        "broker.url": settings.broker_url,
        "worker.database_url": settings.worker_database_url,
        "web.database_url": settings.web_database_url,
    }
    if key == "broker.url":
        return ",".join(masked(url) for url in settings.broker_urls)
    # The sources of bundles have user names for ssh, but no passwords.
    value = settings.bundles.sources if key == "bundles.sources" else shown(key, derived.get(key, settings.value(key)))
    return str(value) if isinstance(value, Path) else value


def masked(url: str) -> str:
    """Return a URL, valid or not, with *** in place of its password."""
    without = re.sub(r"((?:ssl)?password\s*=\s*)('[^']*'|[^&\s]*)", r"\1***", url)
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", without)
    start = scheme.end() if scheme else 0
    return without[:start] + re.sub(r"^([^/:@]*:).*@", r"\1***@", without[start:], flags=re.DOTALL)


def _sentence(error: ValidationError, origin: Mapping[str, str]) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"][:2])
    where = f" (set by {origin[key]})" if key in origin else ""
    if first["type"] == "extra_forbidden":
        return f"{key}{where} is not a setting; {environment.nearest_key(key, layout())}"
    value = repr(shown(key, first["input"]))
    return f"{key}{where} cannot be {value}; allowed is {allowed(key)}."
