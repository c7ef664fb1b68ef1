"""The settings sections for external systems: database, broker, mail server, Flower, Spark."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from scheduler.settings.types import BrokerUrl, Count, DatabaseUrl, Port, Seconds


class Section(BaseModel):
    """A section of the file. It rejects unknown keys, and it is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class Probed(Section):
    """Settings that every long-running process has."""

    health_port: Port = 0
    """Port of the GET /health endpoint. 0 turns it off."""
    health_address: str = "127.0.0.1"
    """Address the health endpoint listens on. 0.0.0.0 means every network interface."""


class Database(Section):
    """PostgreSQL, the single source of truth."""

    url: DatabaseUrl | None = Field(default=None, examples=["postgresql://paceline:password@localhost:5432/paceline"])
    """URL of PostgreSQL. If unset, the embedded server."""
    owner_url: DatabaseUrl | None = Field(default=None, examples=["postgresql://owner:password@localhost:5432/paceline"])
    """Database URL as the owner of the tables, used only by `paceline db migrate` and `db grant-worker`. If unset, database.url."""
    pool_size: Count = 4
    """Connections that one scheduler or web process keeps open."""
    connect_timeout: Count = 5
    """Seconds before an attempt to connect times out."""
    statement_timeout: Seconds = 60
    """Seconds before PostgreSQL cancels a statement. Migrations and `paceline db clean` may take longer."""


class Broker(Section):
    """Redis, which carries messages and wakeups."""

    url: BrokerUrl | None = Field(default=None, examples=["redis://:password@localhost:6379/0"])
    """URL of Redis. If unset, the embedded server."""


class Smtp(Section):
    """The mail server for email_on_failure, email_on_retry and missed SLAs."""

    host: str | None = Field(default=None, examples=["mail.example.org"])
    """Host of the mail server. If unset, no emails are sent."""
    port: Annotated[int, Field(ge=1, le=65535)] = 25
    """Port of the mail server: usually 25, 587 with starttls, 465 with ssl."""
    user: str | None = Field(default=None, examples=["paceline"])
    """User name. If unset, Paceline does not log in."""
    password: str | None = Field(default=None, examples=["password"])
    """Password of the user."""
    mail_from: str = "paceline@localhost"
    """Sender address of emails."""
    starttls: bool = False
    """Encrypt the connection with STARTTLS and verify the server's certificate."""
    ssl: bool = False
    """Encrypt the connection from the start and verify the server's certificate."""
    timeout: Seconds = 30
    """Seconds to wait for a response from the server."""


class Flower(Section):
    """Flower, the web page that shows Celery workers and tasks."""

    address: str = "127.0.0.1"
    """Address that Flower listens on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 5555
    """Port that Flower listens on. standalone uses the next free port. 0 means any free port."""
    allowed_hosts: str = ""
    """Comma-separated host names that Flower accepts besides localhost and IP addresses. * accepts any name."""


class Spark(Section):
    """Spark tasks on workers. `paceline doctor` reports the Java installation in use."""

    warm: bool = True
    """Run each PySpark task in a new session of a JVM that its pool process keeps. false starts a JVM for each task."""
    warm_jvms: Count = 2
    """JVMs with different configurations that one pool process keeps. The least recently used one is replaced."""
    max_tasks_per_jvm: Annotated[int, Field(ge=0)] = 1000
    """Tasks after which a JVM is shut down. 0 means never."""
    max_jvm_age: Seconds = 14_400
    """Maximum age of a JVM, in seconds. An older JVM is shut down when its task ends."""
    max_jvm_heap: Annotated[float, Field(ge=0.1, le=1)] = 0.8
    """Share of the heap that may remain in use after a garbage collection. A JVM above it is shut down."""
    archive_folder: str = ""
    """Folder of the class archive that `paceline spark archive` writes. If empty, share/paceline in the Python environment."""
    status_interval: Seconds = 1
    """Seconds between two status requests to the cluster for an application."""
    status_patience: Seconds = 600
    """Seconds without a status from the cluster before the try fails. The next try continues with the same application."""
    not_found_patience: Seconds = 120
    """Seconds for which a cluster must keep reporting an application as not found before the result is accepted."""
    submit_timeout: Seconds = 15
    """Seconds to wait for a response from the master before an application is submitted or a session is started."""
    kill_timeout: Annotated[float, Field(ge=1, le=9)] = 8
    """Seconds to wait for a canceled application to disappear from its cluster. A pool process has ten seconds in total."""
    abandoned_check_interval: Seconds = 10
    """Seconds between two searches by a Spark worker for applications without a current try, which it cancels."""
