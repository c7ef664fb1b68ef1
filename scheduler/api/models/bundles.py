"""Bundles, their versions and files."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from scheduler.api.models.base import Body, Model, Page

VersionState = Literal["new", "ready", "refused"]


class Bundle(Model):
    """A bundle with its live version."""

    bundle_name: str
    #: Its number; null: none has been live.
    live_version: int | None
    #: The version that was deployed last, or to which somebody rolled back: it goes live as soon as a scheduler has parsed it.
    wanted_version: int | None
    wanted_state: VersionState | None
    live_at: datetime | None
    #: Of the live version.
    message: str | None
    origin: str | None
    created_by: str | None
    #: What schedulers read it from; null: it is deployed.
    source: dict[str, Any] | None
    #: Why the source cannot be read.
    problem: str | None
    version_count: int
    dag_count: int


class BundlePage(Page):
    """A page of bundles."""

    bundles: list[Bundle]


class BundleProblem(Model):
    """Why a version cannot go live."""

    file: str
    line: int | None = None
    message: str


class BundleVersion(Model):
    """A version of a bundle."""

    bundle_name: str
    version_number: int
    #: The SHA-256 of the list of its files.
    digest: str
    #: new: a scheduler has yet to parse it. refused: see `problems`.
    state: VersionState
    is_live: bool
    is_wanted: bool
    file_count: int
    byte_count: int
    message: str
    #: Where it comes from, such as a Git commit.
    origin: str
    #: An account as api:name, or a user of the command line as cli:name.
    created_by: str
    created_at: datetime
    #: When it went live the last time.
    live_at: datetime | None
    problems: list[BundleProblem] | None
    dag_ids: list[str]
    #: Runs that execute its code. Where a DAG executes the same code as in an earlier version, its runs count there.
    run_count: int


class BundleVersionPage(Page):
    """A page of versions."""

    bundle_versions: list[BundleVersion]


class Deployed(BundleVersion):
    """A version that was deployed, or to which somebody rolled back."""

    #: The version that was live at that moment.
    previous_version: int | None
    #: False: the bundle had this content before.
    is_new: bool = False
    #: Paths of files, compared with the version that was deployed last.
    added: list[str] = Field(default_factory=list)
    changed: list[str] = Field(default_factory=list)
    removed: list[str] = Field(default_factory=list)


class Rollback(Body):
    """The version to make live again; null: the one that was live before."""

    version_number: int | None = Field(default=None, ge=1, le=2**31 - 1)


Names = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=10_000)]


class PlanNames(Body):
    """What the folder of a plan names. The queue "" is the default one."""

    dags: Names
    pools: Names
    queues: Names
    connections: Names
    assets: Names


class Differences(Model):
    """Names that differ."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class BundleChanges(Model):
    """What differs between two versions: paths of files, and DAG IDs."""

    files: Differences
    dags: Differences


class BundleFile(Model):
    """A file of a version."""

    path: str
    digest: str
    byte_count: int
    is_executable: bool


class BundleFilePage(Page):
    """A page of files."""

    bundle_files: list[BundleFile]


class BundleFileContent(Model):
    """The text of a file. Bytes that are no UTF-8 are replaced, and a long text is cut."""

    path: str
    content: str
    byte_count: int
    is_complete: bool
