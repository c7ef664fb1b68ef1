"""What a version of a bundle would change if it became the live one: its DAGs are compared with those of another version.

`paceline plan` parses a folder and the live version of its bundle alike on this machine. For the plan of a stored version,
schedulers have stored what they found when they parsed it.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, Protocol

from sqlalchemy import Connection

from paceline.authoring.timetables.base import RunTimes
from paceline.exceptions import ConflictError, NotFoundError, UsageError
from scheduler.dagfiles.answers import Answer, DagCheck, MalformedDagError
from scheduler.dagfiles.bundle_files import read_folder
from scheduler.dagfiles.bundles import NO_DAG_FILES, parse_folder
from scheduler.dagfiles.environments import Environments, RequirementsError
from scheduler.dagfiles.parser import Parser
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.difference import DagDifference, Details, difference
from scheduler.settings import Settings
from scheduler.store.dags import schedules
from scheduler.store.dags.bundles import DAGS_FOLDER, BundleFile
from scheduler.store.read import bundles as reads
from scheduler.store.read import plan as read
from scheduler.store.read.plan import Assets, LiveDag, Names, Needs, PlanFacts

#: Days whose runs are compared, unless asked otherwise.
DAYS = 7
#: The runs of one DAG that are compared.
MOST_RUNS = 2000
#: The arguments of a DAG that decide which runs its schedule creates.
OF_SCHEDULE = frozenset({"schedule", "timezone", "start_date", "end_date", "catchup", "allowed_run_types"})
#: The paths of the files that are added, changed and removed.
Files = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the version would be refused."""

    file: str
    line: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DagPlan:
    """What happens to one DAG. `change` is added, changed or removed."""

    dag_id: str
    file: str
    change: str
    difference: DagDifference = field(default_factory=DagDifference)
    #: The logical dates of the runs in the compared days that only the new version creates, and that only the live one does.
    created_runs: list[datetime] = field(default_factory=list)
    dropped_runs: list[datetime] = field(default_factory=list)
    is_paused: bool = False
    #: The open runs by the number of their DAG version, and whether they keep it.
    open_runs: dict[int, int] = field(default_factory=dict)
    keeps_versions: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The changes of a deploy. It would be refused if there are `problems`."""

    bundle: str
    live_version: int | None
    #: The days whose runs are compared.
    days: int
    problems: list[Problem]
    dags: list[DagPlan]
    files: Files
    missing: Needs
    #: The URIs of assets that no DAG updates any more although a DAG waits for them, and the other way around.
    assets_without_producer: list[str]
    assets_without_consumer: list[str]

    @property
    def changes(self) -> bool:
        return bool(self.dags) or any(self.files.values())


@dataclass(frozen=True, slots=True)
class Side:
    """The DAGs of one version, with the details of their tasks."""

    dags: dict[str, SerializedDag]
    details: dict[str, Details]
    problems: list[Problem]


def compared(bundle: str, facts: PlanFacts, before: Side, after: Side, files: Files, *, days: int) -> Plan:
    """Compare two versions, and the runs of the next `days`. `facts` are those for the names of the newer one."""
    taken = [
        Problem(after.dags[owner.dag_id].file, None, f"DAG {owner.dag_id!r} is also in {_place(owner)}: rename one of them.")
        for owner in facts.owners
    ]
    comparison = _Comparison(facts, before, after, facts.now + timedelta(days=days))
    both = sorted(facts.dags.keys() | after.dags.keys())
    dags = [one for dag_id in both if (one := comparison.dag(facts.dags.get(dag_id), after.dags.get(dag_id))) is not None]
    # A file with an error may have any DAGs, so which ones are removed is unknown.
    if after.problems:
        dags = [one for one in dags if one.change != "removed"]
    was = Assets.of((one.dag for one in facts.dags.values()), facts.other_assets)
    will = Assets.of(after.dags.values(), facts.other_assets)
    return Plan(
        bundle=bundle,
        live_version=facts.live_version,
        days=days,
        problems=[*after.problems, *taken],
        dags=dags,
        files=files,
        missing=facts.missing,
        # A file with an error would count as one without assets.
        assets_without_producer=[] if after.problems else sorted((was.updated & will.consumed) - will.updated),
        assets_without_consumer=[] if after.problems else sorted((was.consumed & will.updated) - will.consumed),
    )


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The comparison of two versions, with the runs until a time."""

    facts: PlanFacts
    before: Side
    after: Side
    until: datetime

    def dag(self, old: LiveDag | None, new: SerializedDag | None) -> DagPlan | None:
        """What happens to one DAG; None if nothing does."""
        if new is not None:
            return self._added(new) if old is None else self._changed(old, new)
        assert old is not None
        dropped = [] if old.is_paused else self._dates(old.dag, old.next)
        return DagPlan(
            dag_id=old.dag.dag_id, file=old.dag.file, change="removed", dropped_runs=dropped, is_paused=old.is_paused,
            open_runs=old.open_runs,
        )  # fmt: skip

    def _added(self, new: SerializedDag) -> DagPlan:
        if (known := self.facts.known.get(new.dag_id)) is not None:
            paused = known.is_paused
        else:
            own = new.is_paused_upon_creation
            paused = self.facts.starts_paused if own is None else own
        created = [] if paused else self._future(new)
        return DagPlan(dag_id=new.dag_id, file=new.file, change="added", created_runs=created, is_paused=paused)

    def _changed(self, old: LiveDag, new: SerializedDag) -> DagPlan | None:
        # Both parsed here, with the same settings; as it is stored only if it cannot be parsed here.
        dag = self.before.dags.get(new.dag_id, old.dag)
        details = (side.details.get(new.dag_id, {}) for side in (self.before, self.after))
        found = difference(dag, new, *details)
        if not found:
            return None
        created, dropped = list[datetime](), list[datetime]()
        if not old.is_paused and any(change["name"] in OF_SCHEDULE for change in found.fields):
            was, will = self._dates(dag, old.next), self._future(new)
            created, dropped = sorted(set(will) - set(was)), sorted(set(was) - set(will))
        return DagPlan(
            dag_id=new.dag_id, file=new.file, change="changed", difference=found, created_runs=created, dropped_runs=dropped,
            is_paused=old.is_paused, open_runs=old.open_runs, keeps_versions=not new.disable_bundle_versioning,
        )  # fmt: skip

    def _future(self, new: SerializedDag) -> list[datetime]:
        return self._dates(new, read.first_run(new, self.facts.known.get(new.dag_id), self.facts.now))

    def _dates(self, dag: SerializedDag, first: RunTimes | None) -> list[datetime]:
        return list(dates(dag, first, self.facts.now, self.until))


def dates(dag: SerializedDag, first: RunTimes | None, now: datetime, until: datetime) -> Iterator[datetime]:
    """The logical dates of the runs that a schedule creates from `now` to `until`, at most MOST_RUNS."""
    runs = itertools.islice(schedules.from_run(dag, first, now), MOST_RUNS)
    return (run.logical_date for run in itertools.takewhile(lambda run: run.run_after <= until, runs))


def names_of(after: Side) -> Names:
    """What the DAGs of a version name."""
    tasks = [task for dag in after.dags.values() for task in dag.tasks]
    arguments = [task["arguments"] for details in after.details.values() for task in details.values()]
    named = {
        text.strip("'\"")
        for each in arguments for name, text in each.items()
        if (name == "conn_id" or name.endswith("_conn_id")) and text != "None" and "{{" not in text
    }  # fmt: skip
    assets = Assets.of(after.dags.values(), Assets(set(), set()))
    return Names(
        dags=sorted(after.dags),
        pools=sorted({task.pool for task in tasks}),
        queues=sorted({task.queue or "" for task in tasks}),
        connections=sorted(named),
        assets=sorted(assets.updated | assets.consumed),
    )


def _place(owner: Any) -> str:
    return owner.file if owner.bundle is None else f"{owner.file} of bundle {owner.bundle}"


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
    version = _stored_version(connection, bundle, number)
    old = None if since is None else _stored_version(connection, bundle, since)
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


def _stored_version(connection: Connection, bundle: str, number: int) -> dict[str, Any]:
    version = dict(reads.version(connection, bundle, number))
    if version["state"] == "new":
        raise ConflictError(
            f"No scheduler has parsed version {number} of bundle {bundle!r}, so what it changes is not known: a scheduler parses a"
            " version when it is deployed, or rolled back to."
        )
    return version


class Installation(Protocol):
    """Where the folder would be deployed: the database of the settings, or that of a web process."""

    def live_files(self, bundle: str) -> Mapping[str, BundleFile]:
        """The files of the live version of a bundle, by path. It has none if none has been live."""

    def facts(self, bundle: str, names: Names) -> PlanFacts:
        """What a plan compares a folder with that has these names."""


def plan(installation: Installation, settings: Settings, folder: Path, bundle: str, days: int = DAYS) -> Plan:
    """Plan the deploy of a folder, and compare the runs of the next `days`.

    BundleRefusedError if the folder has a file that a bundle cannot take.
    """
    files = read_folder(folder, settings.bundles)
    old_files = installation.live_files(bundle)
    parser = Parser(settings, details=True)
    with tempfile.TemporaryDirectory(prefix="paceline-plan-") as name:
        place = Path(name)
        environments = Environments.of(settings)
        try:
            # Only what would be deployed.
            after = _parsed(parser, _written(place / "new", files), settings, environments)
            if not after.dags and not after.problems:
                after.problems.append(Problem("", None, NO_DAG_FILES))
            before = _parsed(parser, _written(place / "live", old_files), settings, environments) if old_files else Side({}, {}, [])
        finally:
            parser.stop()
    return compared(bundle, installation.facts(bundle, names_of(after)), before, after, _files(old_files, files), days=days)


def _parsed(parser: Parser, folder: Path, settings: Settings, environments: Environments) -> Side:
    side, check = Side({}, {}, []), DagCheck()
    try:
        python = environments.python(folder)
    except RequirementsError as error:
        side.problems.append(Problem("requirements.txt", None, str(error)))
        return side
    for answer in sorted(itertools.chain(*parse_folder(parser, folder, settings, python)), key=lambda answer: answer.file):
        _add(side, answer, check)
    return side


def _add(side: Side, answer: Answer, check: DagCheck) -> None:
    if answer.problem is not None:
        side.problems.append(Problem(answer.file, answer.problem.line, answer.problem.message))
    for row in answer.dags:
        try:
            check.check(row, answer.file)
        except MalformedDagError as error:
            side.problems.append(Problem(answer.file, None, f"DAG {row.dag_id!r} is not valid: {error}."))
            continue
        if (first := side.dags.get(row.dag_id)) is not None:
            side.problems.append(Problem(answer.file, None, f"DAG {row.dag_id!r} is also in {first.file}: rename one of them."))
            continue
        side.dags[row.dag_id] = SerializedDag.from_json(row.data)
        side.details[row.dag_id] = {task_id: one.model_dump() for task_id, one in answer.tasks.get(row.dag_id, {}).items()}


def _written(folder: Path, files: Mapping[str, BundleFile]) -> Path:
    folder.mkdir()
    for name, file in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    return folder


def _files(before: Mapping[str, BundleFile], now: Mapping[str, BundleFile]) -> Files:
    return {
        "added": sorted(now.keys() - before.keys()),
        "changed": sorted(path for path in now.keys() & before.keys() if now[path].content != before[path].content),
        "removed": sorted(before.keys() - now.keys()),
    }
