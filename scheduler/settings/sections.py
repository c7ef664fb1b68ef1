"""The sections of settings for files, retention, external systems and the web UI."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from scheduler.settings.types import (
    BrokerUrl,
    BundleSources,
    CatalogName,
    Count,
    DatabaseUrl,
    DataUrl,
    Days,
    HttpUrl,
    LineageUrl,
    LogsUrl,
    MetricPrefix,
    Networks,
    OidcIssuer,
    OidcRoles,
    Port,
    Seconds,
    SigningKey,
    StatsdAddress,
    StorageOptions,
    UrlPath,
    WarehouseUrl,
    folder_url,
)


class Section(BaseModel):
    """A section of the file. It rejects unknown keys, and it is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class Probed(Section):
    """Settings that every long-running process has."""

    health_port: Port = 0
    """Port of the GET /health endpoint. 0 turns it off."""
    health_address: str = "127.0.0.1"
    """Address the health endpoint listens on. 0.0.0.0 means every network interface."""


class Paths(Section):
    """File locations on this machine."""

    home: Path = Path("~/.paceline")
    """Folder for everything that the embedded stack writes: database, sockets, logs, data."""
    dags_folder: Path = Path("dags")
    """Folder that is searched for DAG files."""
    logs_folder: Path | None = Field(default=None, examples=["~/.paceline/logs"])
    """Folder for task logs. If unset, <home>/logs."""
    data_url: DataUrl | None = Field(default=None, examples=["s3a://bucket/paceline"])
    """Folder for the DataFrames that tasks return, or a URL that both Spark and fsspec can reach. If unset, <home>/data."""


class Bundles(Section):
    """Bundles of DAG files, which `paceline deploy` uploads, or which schedulers read from their sources."""

    max_files: Count = 5000
    """Maximum number of files and folders of a bundle."""
    max_bytes: Count = 104_857_600
    """Maximum size of all files of a bundle together, in bytes."""
    max_file_bytes: Count = 52_428_800
    """Maximum size of one file of a bundle, in bytes."""
    pin_dags_folder: bool = True
    """Whether runs execute the DAGs folder as it was when their DAG was parsed. Its versions are in the bundle dags-folder."""
    code_url: LogsUrl | None = Field(default=None, examples=["s3://bucket/paceline/code"])
    """Folder or fsspec URL for the contents of the files of bundles, which every process must reach. If unset, PostgreSQL."""
    keep_versions: Count = 20
    """Bundle versions that stay below <home>/bundles of a machine, those that were needed last. Those in use always stay."""
    install_requirements: bool = False
    """Whether schedulers and workers install the requirements.txt of a bundle, by uv, for its DAG files and tasks."""
    install_timeout: Seconds = 600
    """Seconds that uv may take to install the requirements of a bundle."""
    keep_environments: Count = 5
    """Environments with installed requirements that stay below <home>/environments of a machine. Those in use always stay."""
    sources: BundleSources = ""
    """Sources of bundles: name=git+https://host/repository.git#ref=main&folder=dags, or name=s3://bucket/folder or an archive."""
    poll_interval: Seconds = 30
    """Seconds between two readings of a source. One scheduler at a time reads it."""
    read_timeout: Seconds = 120
    """Seconds that Git may take to read a source."""


class Retention(Section):
    """How long finished runs and old records are kept. Schedulers delete the rest in small batches."""

    run_days: Days = 0
    """Days to keep finished runs with all their records. 0 means forever. Runs that a schedule or later runs need are kept."""
    event_days: Days = 90
    """Days to keep the events of a finished run if the run itself is kept longer. 0 means as long as the run."""
    housekeeping_days: Days = 30
    """Days to keep stopped processes, delivered notices, consumed asset events, queue depths, old versions of DAGs and tables."""
    audit_days: Days = 365
    """Days to keep the audit log of web processes. 0 means forever."""
    logs: bool = False
    """Delete the log folder of a run together with the run."""
    interval: Seconds = 60
    """Seconds between two searches for expired records."""


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
    """URL of Redis, or several, over which the queues spread. If unset, the embedded server."""


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
    """Flower, the web application that shows Celery workers and tasks."""

    address: str = "127.0.0.1"
    """Address that Flower listens on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 5555
    """Port that Flower listens on. standalone uses the next free port. 0 means any free port."""
    allowed_hosts: str = ""
    """Comma-separated host names that Flower accepts in addition to localhost and IP addresses. * accepts any name."""
    pages_url: str = Field(default="", examples=["https://paceline.example.org"])
    """Address of the web process for links on Flower's Broker page and in ti.log_url. standalone fills in the first."""

    @property
    def local_url(self) -> str:
        """The address of Flower for people on this machine."""
        return f"http://{self.address}:{self.port}"


class Web(Section):
    """The web process: REST API and web UI."""

    address: str = "127.0.0.1"
    """Address that the web process listens on. 0.0.0.0 means every network interface."""
    port: Port = 8080
    """Port that the web process listens on. standalone uses the next free port. 0 means any free port."""
    base_path: UrlPath = ""
    """Path prefix at which a reverse proxy serves Paceline. If empty, the root of its host."""
    flower_url: str = Field(default="", examples=["https://flower.example.org"])
    """Address of Flower for links in the web UI. standalone fills it in."""
    proxies: Networks = ""
    """Comma-separated addresses or networks of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted."""
    tls_certificate: Path | None = Field(default=None, examples=["/etc/paceline/web.pem"])
    """File with the TLS certificate chain. If unset, the web process serves HTTP."""
    tls_key: Path | None = Field(default=None, examples=["/etc/paceline/web.key"])
    """File with the private key of the certificate."""
    secure_cookies: bool = False
    """Let browsers send cookies over HTTPS only. Set it if a reverse proxy provides TLS. With a certificate, it is always on."""
    signing_key: SigningKey = ""
    """Secret that signs logins, the same for every web process. If empty, it is derived from core.fernet_key or its key file."""
    database_url: DatabaseUrl | None = Field(default=None, examples=["postgresql://paceline_web:password@localhost:5432/paceline"])
    """Database URL of web processes, with a role that `paceline db migrate` creates. If unset, database.url."""
    pool_size: Count = 8
    """Database connections of one web process. Further requests wait until one is free."""
    session_timeout: Seconds = 43_200
    """Seconds after which a login ends."""
    token_timeout: Seconds = 86_400
    """Seconds after which a token from POST /auth/token expires."""
    login_attempts: Count = 5
    """Failed logins per account and address in login_window. An address may have 4 times as many, a network 16 times."""
    login_window: Seconds = 300
    """Seconds after which failed logins are forgotten."""
    max_request_bytes: Count = 16_777_216
    """Maximum size of a request, in bytes."""
    drain_timeout: Annotated[int, Field(ge=1)] = 20
    """Seconds that open requests have to finish after SIGTERM."""

    @property
    def local_url(self) -> str:
        """The address of the web process for people on this machine."""
        scheme = "https" if self.tls_certificate else "http"
        host = "localhost" if self.address in {"0.0.0.0", "::", ""} else self.address  # noqa: S104 - compared only
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{quote(self.base_path)}"


class Oidc(Section):
    """Logins through an OpenID Connect provider, in addition to passwords. The redirect URI is <address>/auth/oidc/callback."""

    issuer: OidcIssuer = ""
    """URL of the provider, without /.well-known. If empty, logins need a password."""
    client_id: str = "paceline"
    """ID of Paceline at the provider."""
    client_secret: str = ""
    """Secret of the client. If empty, it is a public client."""
    scopes: str = "openid profile email"
    """Scopes to request, separated by spaces."""
    name_claim: str = "preferred_username"
    """Claim with the name of a new account. If it is missing, email is used, then sub."""
    groups_claim: str = "groups"
    """Claim with the groups of a user: a list, or one name."""
    roles: OidcRoles = ""
    """Roles of groups, such as `ops=operator,platform=admin`. The highest one applies at each login. If empty, roles are kept."""
    default_role: Literal["", "viewer", "operator", "admin"] = ""
    """Role of a user without a group in oidc.roles. If empty, such a user cannot log in."""


class Metrics(Section):
    """Metrics for Prometheus and StatsD. docs/reference/metrics.md lists them. By default, they are off."""

    prometheus: bool = False
    """Serve GET /metrics on the health ports and, for accounts that may view, in the web process."""
    statsd: StatsdAddress = Field(default="", examples=["localhost:8125"])
    """Address of a StatsD server, for UDP (host:port) or a Unix datagram socket (unix:///path). If empty, nothing is sent."""
    prefix: MetricPrefix = "airflow"
    """Prefix of the metrics that exist in Airflow too."""
    interval: Seconds = 5
    """Seconds between two readings of events and, for StatsD, of gauges. One scheduler at a time reads them."""
    task_labels: bool = True
    """Count each task separately. Turn this off if there are too many tasks for the metrics server."""


class Logs(Section):
    """The logs of processes and of tries."""

    format: Literal["text", "json"] = "text"
    """json writes log records as JSON lines. In the log of a try, they have its DAG, run, task, try and dispatch."""
    url: LogsUrl | None = Field(default=None, examples=["s3://bucket/paceline/logs"])
    """Folder or fsspec URL for copies of the logs of tries, so that every machine can read them. If unset, no copies."""
    copy_interval: Seconds = 5
    """Seconds between two copies of the log of a running try."""


class Tracing(Section):
    """Traces for OpenTelemetry, one for each DAG run. Schedulers send them. They need the extra telemetry."""

    otlp_endpoint: HttpUrl = Field(default="", examples=["http://localhost:4318"])
    """Address of an OpenTelemetry collector, for OTLP over HTTP. If empty, there are no traces."""
    service_name: str = "paceline"
    """Name of this installation in traces. Installations with the same collector need different names."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1
    """Share of the runs that are traced."""
    queue_size: Count = 10_000
    """Maximum number of spans that wait for the collector. Further ones are dropped."""


class Lineage(Section):
    """OpenLineage events of runs and tries. Schedulers send them. They need the extra telemetry."""

    url: LineageUrl = Field(default="", examples=["http://localhost:5000"])
    """Address of a server for OpenLineage events, or a file:// URL to append them to a file. If empty, there are no events."""
    endpoint: str = "api/v1/lineage"
    """Path on the server that receives events."""
    api_key: str = ""
    """API key of the server."""
    namespace: str = "paceline"
    """Namespace of the jobs of this installation."""
    queue_size: Count = 10_000
    """Maximum number of events that wait for the server. Further ones are dropped."""


class Tables(Section):
    """Apache Iceberg tables, which the success of a task publishes. They need the extra tables."""

    warehouse: WarehouseUrl = Field(default="", examples=["s3://bucket/warehouse"])
    """Folder of the tables, or a URL that every process that reads or writes them can reach. If empty, there are no tables."""
    catalog: CatalogName = "lake"
    """Name of the catalog in Spark and SQL, and in the tables of the database."""
    storage_options: StorageOptions = Field(default="", examples=["s3.endpoint=http://minio:9000 s3.region=us-east-1"])
    """Properties of pyiceberg for the storage: key=value pairs, separated by spaces. May hold credentials."""
    url: str = Field(default="", examples=["https://paceline.example/catalog"])
    """Address of the catalog of a web process, for Spark drivers on other machines. Tasks on workers need none."""
    spark_packages: str = ""
    """Maven coordinates for tables in Spark. If empty, Iceberg's for the installed Spark; with `none`, Spark uses no tables."""
    spark_jars: str = Field(default="", examples=["/opt/iceberg"])
    """Jars, or folders with jars, with which Spark uses tables, separated by commas. With these, nothing is fetched."""
    expire_snapshots: bool = True
    """Remove the snapshots of tables that are older than retention.housekeeping_days, with the files that only they need."""
    keep_dead_tries: Seconds = 86_400
    """Seconds after which a scheduler deletes files of tables that no version of a table needs. Longer than the longest try."""

    @property
    def warehouse_url(self) -> str:
        """The warehouse as a URL without a trailing slash; empty without tables."""
        return folder_url(self.warehouse) if self.warehouse else ""

    @property
    def storage(self) -> dict[str, str]:
        """The storage options as a dict."""
        return dict(pair.split("=", 1) for pair in self.storage_options.split())


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
