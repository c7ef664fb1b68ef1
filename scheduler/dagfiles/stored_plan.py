"""The plan of a stored version of a bundle, such as one to roll back to, or one that was refused: nothing is parsed for it."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from paceline.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.dagfiles.plan_changes import DAYS, Plan, Problem, Side, compared, names_of
from scheduler.settings import Settings
from scheduler.store.dags.bundles import DAGS_FOLDER
from scheduler.store.read import bundles as reads
from scheduler.store.read import plan as read


@dataclass(frozen=True, slots=True)
class PlannedVersion:
    """A version that can be compared."""

    version_number: int
    state: Literal["new", "ready", "refused"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan(Plan):
    """What changes from the version `since` to the version of this number. `since` is None if there is no other version."""

    version_number: int
    since: int | None
    #: Newest first.
    versions: list[PlannedVersion]


def stored_plan(
    connection: Connection,
    settings: Settings,
    bundle: str,
    number: int | None = None,
    *,
    since: int | None = None,
    days: int = DAYS,
) -> StoredPlan:
    """Plan a version of a bundle: without a number, the newest one that is not live. It is compared with `since`, or the live one.

    The live version itself is compared with the one before it. NotFoundError; ConflictError for a version that no scheduler has
    parsed; UsageError for the DAGs folder.
    """
    live = reads.bundle(connection, bundle)["live_version"]
    if bundle == DAGS_FOLDER:
        raise UsageError(
            f"{bundle!r} is the DAGs folder of the schedulers: a saved file is live at once, so there is nothing to plan."
        )
    choices = [PlannedVersion(**row) for row in reads.numbers(connection, bundle)]
    numbers = [choice.version_number for choice in choices]
    number = number or next((each for each in numbers if each != live), live)
    if number is None:
        raise NotFoundError(f"Bundle {bundle!r} has no version: `paceline deploy` stores one.")
    if since is None:
        since = live if number != live else next((each for each in numbers if each < number), None)
    version = _parsed(connection, bundle, number)
    old = None if since is None else _parsed(connection, bundle, since)
    problems = [Problem(each["file"], each["line"], each["message"]) for each in version["problems"] or ()]
    after, before = Side(*read.stored(connection, version["id"]), problems), Side({}, {}, [])
    if old is not None:
        before = Side(*read.stored(connection, old["id"]), [])
    facts = read.facts(connection, settings, bundle, names_of(after), since=None if since == live else before.dags)
    files = reads.changes(connection, version["id"], None if old is None else old["id"])["files"]
    made = compared(bundle, facts, before, after, files, days=days)
    return StoredPlan(
        **{name: getattr(made, name) for name in Plan.__dataclass_fields__}, version_number=number, since=since, versions=choices
    )


def _parsed(connection: Connection, bundle: str, number: int) -> dict[str, Any]:
    version = dict(reads.version(connection, bundle, number))
    if version["state"] == "new":
        raise ConflictError(
            f"No scheduler has parsed version {number} of bundle {bundle!r}, so what it changes is not known: a scheduler parses a"
            " version when it is deployed, or rolled back to."
        )
    return version
