"""The sections of the settings that are about one outside thing each: servers, mail, Spark."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from scheduler.setting_types import BrokerUrl, Count, DatabaseUrl, Port, Seconds


class Section(BaseModel):
    """A section of the file: unknown keys are refused, nothing changes after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class Probed(Section):
    """What every long-running process has."""

    health_port: Port = 0
    """Port on which GET /health is answered; 0 is none."""
    health_address: str = "127.0.0.1"
    """Address of that port; 0.0.0.0 is every network."""


class Database(Section):
    """PostgreSQL: the single source of truth."""

    url: DatabaseUrl | None = Field(default=None, examples=["postgresql://paceline:password@localhost:5432/paceline"])
    """Where PostgreSQL is; unset means the embedded one."""
    owner_url: DatabaseUrl | None = Field(default=None, examples=["postgresql://owner:password@localhost:5432/paceline"])
    """The database as the owner of its tables, for `paceline db migrate` and `db grant-worker` alone; unset means database.url."""
    pool_size: Count = 4
    """Connections one scheduler or web process keeps open."""
    connect_timeout: Count = 5
    """Seconds one attempt to connect may take."""
    statement_timeout: Seconds = 60
    """Seconds PostgreSQL may work on one statement; migrations and `paceline db clean` may take longer."""


class Broker(Section):
    """Redis: carries messages and wake-ups."""

    url: BrokerUrl | None = Field(default=None, examples=["redis://:password@localhost:6379/0"])
    """Where Redis is; unset means the embedded one."""


class Smtp(Section):
    """The mail server that email_on_failure, email_on_retry and missed SLAs use."""

    host: str | None = Field(default=None, examples=["mail.example.org"])
    """The server that takes mails; unset means that none are sent."""
    port: Annotated[int, Field(ge=1, le=65535)] = 25
    """Its port: mostly 25, 587 with starttls, 465 with ssl."""
    user: str | None = Field(default=None, examples=["paceline"])
    """User name; unset means no login."""
    password: str | None = Field(default=None, examples=["password"])
    """Password of the user."""
    mail_from: str = "paceline@localhost"
    """Address that mails come from."""
    starttls: bool = False
    """Encrypt the connection once it stands; the server's certificate is checked."""
    ssl: bool = False
    """Encrypt the connection from its start; the server's certificate is checked."""
    timeout: Seconds = 30
    """Seconds the server may take for an answer."""


class Flower(Section):
    """The page that shows Celery's workers and tasks."""

    address: str = "127.0.0.1"
    """Address Flower listens on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 5555
    """Port Flower listens on; standalone takes the next free one, 0 is any."""
    allowed_hosts: str = ""
    """Names of hosts, with commas, under which Flower answers beside localhost and IP addresses; * is any name."""


class Spark(Section):
    """What workers do for Spark tasks; `paceline doctor` finds the Java."""

    warm: bool = True
    """A PySpark task gets a new session in a JVM that its pool child keeps; false starts a JVM for each task."""
    warm_jvms: Count = 2
    """JVMs, of different configurations, that one pool child keeps; the one that waited longest makes room."""
    max_tasks_per_jvm: Annotated[int, Field(ge=0)] = 1000
    """Tasks after which a JVM is ended; 0 is never."""
    max_jvm_age: Seconds = 14_400
    """Seconds after which a JVM is ended once its task is."""
    max_jvm_heap: Annotated[float, Field(ge=0.1, le=1)] = 0.8
    """Share of its heap that a JVM may still use after a collection; it is ended above."""
    archive_folder: str = ""
    """Folder of the archive of Spark's classes (`paceline spark archive`); empty is share/paceline of the Python environment."""
    status_interval: Seconds = 1
    """Seconds between two questions to the cluster how an application goes."""
    status_patience: Seconds = 600
    """Seconds a cluster may give no status of an application before its try fails; the next try asks on."""
    not_found_patience: Seconds = 120
    """Seconds for which a cluster must keep saying that it does not know an application before that is believed."""
    submit_timeout: Seconds = 15
    """Seconds a master may take to answer before anything is submitted to it."""
    kill_timeout: Annotated[float, Field(ge=1, le=9)] = 8
    """Seconds an application may take to be gone from its cluster after it was told to end; a child of a worker has ten."""
    abandoned_check_interval: Seconds = 10
    """Seconds between two searches of a Spark worker for applications that no try follows any more, which it ends."""
