"""One frozen, validated object with every setting: environment, then file, then default.

`PACELINE_<SECTION>_<KEY>` beats `$PACELINE_CONFIG` or `config/paceline.toml`, which beats the defaults below. The short
names PACELINE_HOME, PACELINE_DATABASE_URL, PACELINE_BROKER_URL and PACELINE_DAGS_FOLDER are the keys people set most.
An environment variable that is set to nothing counts as unset, as compose files write it.
"""

import difflib
import hashlib
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from scheduler.exceptions import SettingsError

PREFIX = "PACELINE_"
#: Environment names that are not PACELINE_<SECTION>_<KEY> of a setting below.
SHORT_NAMES = {"PACELINE_HOME": ("paths", "home"), "PACELINE_DAGS_FOLDER": ("paths", "dags_folder")}
#: Not settings: which file holds them, and the passwords that docker-compose.yml puts into URLs.
OTHER_NAMES = frozenset({"PACELINE_CONFIG"} | {f"PACELINE_{one}_PASSWORD" for one in ("POSTGRES", "REDIS", "FLOWER")})
DEFAULT_FILE = "config/paceline.toml"


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError("there is no such time zone") from None
    return name


def _scheme(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if urlsplit(url).scheme not in schemes:
            raise ValueError("the scheme is another")
        return url

    return AfterValidator(check)


#: Bytes; the kernel's limit is 107 on Linux and 103 on macOS.
LONGEST_SOCKET_PATH = 100

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
ZoneName = Annotated[str, AfterValidator(_zone), Field(json_schema_extra={"allowed": "an IANA time zone such as Europe/Berlin"})]
DatabaseUrl = Annotated[
    str,
    _scheme("postgresql", "postgres"),
    Field(json_schema_extra={"allowed": "postgresql://user:password@host:port/name"}),
]
BrokerUrl = Annotated[
    str,
    _scheme("redis", "rediss", "redis+socket"),
    Field(json_schema_extra={"allowed": "redis://:password@host:port/db, rediss://... or redis+socket:///path"}),
]
#: Keys whose values hold passwords: never printed whole.
SECRET_URLS = frozenset({"database.url", "broker.url"})
#: The first must be longer than the second, or every healthy process looks dead.
LONGER_THAN = (
    ("scheduler.scheduler_health_check_threshold", "scheduler.scheduler_heartbeat_sec"),
    ("worker.heartbeat_timeout", "worker.heartbeat_sec"),
)


class Section(BaseModel):
    """A section of the file: unknown keys are refused, nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class Paths(Section):
    """Where things lie on this machine."""

    home: Path = Path("~/.paceline")
    """Folder that holds everything the embedded stack writes: database, sockets, logs, data."""
    dags_folder: Path = Path("dags")
    """Folder that is searched for DAG files."""
    logs_folder: Path | None = Field(default=None, examples=["~/.paceline/logs"])
    """Where task logs go; unset means <home>/logs."""


class Core(Section):
    """What holds for every DAG and task."""

    parallelism: Count = 256
    """Task instances queued or running at once, over all pools and schedulers."""
    default_timezone: ZoneName = "UTC"
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
    max_map_length: Count = 10_000
    """Most instances that one mapped task may become."""
    max_consecutive_failed_dag_runs_per_dag: Annotated[int, Field(ge=0)] = 0
    """Failed runs in a row after which a DAG is paused, unless the DAG says otherwise; 0 is never."""
    rerun_with_latest_version: bool = False
    """Cleared runs go on with the newest version of their DAG instead of the one they were made from."""
    max_xcom_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    """Largest return value, in bytes of JSON; larger data belongs into files whose path is returned."""


class Scheduler(Section):
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
    """DAG runs examined in one turn."""
    catchup_by_default: bool = False
    """A DAG that does not say makes runs for every interval since its start_date."""
    schedule_after_task_execution: bool = True
    """Fast-follow: a worker queues the next ready task of the run itself."""
    pool_reservation: bool = True
    """A task that needs more slots of a pool than are free holds its place, so that lower ranked ones cannot pass it for ever."""
    priority_aging: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """Seconds of waiting that raise a task's rank by a priority_weight of 1; 0 is off."""
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
    """The processes that run tasks."""

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
    """PostgreSQL: the single source of truth."""

    url: DatabaseUrl | None = Field(default=None, examples=["postgresql://paceline:password@localhost:5432/paceline"])
    """Where PostgreSQL is; unset means the embedded one."""
    pool_size: Count = 4
    """Connections one scheduler or web process keeps open."""
    connect_timeout: Count = 5
    """Seconds one attempt to connect may take."""


class Broker(Section):
    """Redis: carries messages and wake-ups."""

    url: BrokerUrl | None = Field(default=None, examples=["redis://:password@localhost:6379/0"])
    """Where Redis is; unset means the embedded one."""


class Flower(Section):
    """The page that shows Celery's workers and tasks."""

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
        values, sources = _read(os.environ if environ is None else environ)
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
        """The configured URL, else that of the embedded PostgreSQL under `home`."""
        return self.database.url or f"postgresql://postgres@/paceline?host={quote(str(self.run_folder))}"

    @property
    def broker_url(self) -> str:
        """The configured URL, else that of the embedded Redis under `home`."""
        return self.broker.url or f"redis+socket://{quote(str(self.run_folder))}/redis.sock"


def keys() -> list[str]:
    """Every setting as `<section>.<key>`, in order of definition."""
    return [f"{section}.{key}" for section in Settings.model_fields for key in section_type(section).model_fields]


def section_type(section: str) -> type[Section]:
    """The model of one section."""
    found = Settings.model_fields[section].annotation
    assert isinstance(found, type) and issubclass(found, Section)
    return found


def environment_names() -> dict[str, tuple[str, str]]:
    """Every environment variable that is a setting, with the section and key it sets."""
    names: dict[str, tuple[str, str]] = {}
    for dotted in keys():
        section, key = dotted.split(".")
        names[f"{PREFIX}{section}_{key}".upper()] = (section, key)
    return names | SHORT_NAMES


def sources(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """For each key that is set: the environment variable or the file it comes from."""
    return _read(os.environ if environ is None else environ)[1]


def allowed(key: str) -> str:
    """What a setting may be, in words: "a whole number of at least 1"."""
    section, _, name = key.partition(".")
    schema = section_type(section).model_json_schema()["properties"][name]
    for choice in schema.get("anyOf", [schema]):
        if choice.get("type") != "null":
            return _in_words({**schema, **choice})
    raise AssertionError(f"{key} has no type")


def masked(url: str) -> str:
    """A URL whose password, if it has one, reads ***."""
    without = re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1***", url)
    return re.sub(r"^([^:/]+://[^/:@]*:).*@", r"\1***@", without)


def _in_words(schema: dict[str, Any]) -> str:
    if "allowed" in schema:
        return str(schema["allowed"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if schema["type"] == "boolean":
        return "true or false"
    if schema["type"] == "string":
        return "a path" if schema.get("format") == "path" else "a text"
    number = "a whole number" if schema["type"] == "integer" else "a number"
    if "maximum" in schema:
        return f"{number} from {schema['minimum']:g} to {schema['maximum']:g}"
    return f"{number} above 0" if "exclusiveMinimum" in schema else f"{number} of at least {schema['minimum']:g}"


def _read(environ: Mapping[str, str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The values of file and environment by section, and where each `<section>.<key>` comes from."""
    path = Path(environ.get("PACELINE_CONFIG") or DEFAULT_FILE).expanduser()
    values = _file_values(path, required=bool(environ.get("PACELINE_CONFIG")))
    origin = {f"{section}.{key}": str(path) for section, keys_ in values.items() for key in keys_}
    known = environment_names()
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in OTHER_NAMES:
            continue
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else "`paceline config show` lists every key."
            raise SettingsError(f"The environment variable {name} is not a setting; {hint}")
        if value:
            section, key = known[name]
            values.setdefault(section, {})[key] = value
            origin[f"{section}.{key}"] = name
    return values, origin


def _file_values(path: Path, *, required: bool) -> dict[str, dict[str, Any]]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise SettingsError(f"PACELINE_CONFIG names {path}, which does not exist.") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path} cannot be read as TOML: {error}.") from None
    for name, value in values.items():
        if isinstance(value, dict) and name in Settings.model_fields:
            continue
        sections = list(Settings.model_fields)
        if not isinstance(value, dict):
            homes = [key for key in keys() if key.endswith(f".{name}")]
            hint = f"put it under [{homes[0].split('.')[0]}]." if homes else f"the sections are {', '.join(sections)}."
            raise SettingsError(f"{name} in {path} stands outside its section; {hint}")
        near = difflib.get_close_matches(name, sections, 1)
        hint = f"did you mean [{near[0]}]?" if near else f"the sections are {', '.join(sections)}."
        raise SettingsError(f"[{name}] in {path} is not a section; {hint}")
    return values


def _sentence(error: ValidationError, origin: Mapping[str, str]) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"][:2])
    where = f" (set by {origin[key]})" if key in origin else ""
    if first["type"] == "extra_forbidden":
        section, _, name = key.partition(".")
        names = list(section_type(section).model_fields)
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]}?" if near else f"[{section}] has {', '.join(names)}."
        return f"{key}{where} is not a setting; {hint}"
    value = repr(masked(str(first["input"])) if key in SECRET_URLS else first["input"])
    return f"{key}{where} cannot be {value}; allowed is {allowed(key)}."
