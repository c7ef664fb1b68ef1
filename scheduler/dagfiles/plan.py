"""What a deploy of a folder would change: the folder and the live version of its bundle are parsed alike, and compared."""

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from paceline.authoring.timetables.base import RunTimes
from scheduler.dagfiles.answers import Answer
from scheduler.dagfiles.bundle_files import read_folder
from scheduler.dagfiles.bundles import NO_DAG_FILES, parse_folder
from scheduler.dagfiles.dag_check import DagCheck, MalformedDagError
from scheduler.dagfiles.environments import Environments, RequirementsError
from scheduler.dagfiles.parser import Parser
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.difference import Details, Difference, difference
from scheduler.settings import Settings
from scheduler.store.dags import schedules
from scheduler.store.dags.bundles import BundleFile
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
    difference: Difference = field(default_factory=Difference)
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
class _Side:
    """The DAGs of one folder, with the details of their tasks."""

    dags: dict[str, SerializedDag]
    details: dict[str, Details]
    problems: list[Problem]


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
            before = (
                _parsed(parser, _written(place / "live", old_files), settings, environments) if old_files else _Side({}, {}, [])
            )
        finally:
            parser.stop()
    return _plan(bundle, installation.facts(bundle, _names(after)), before, after, _compared(old_files, files), days=days)


def _plan(bundle: str, facts: PlanFacts, before: _Side, after: _Side, files: Files, *, days: int) -> Plan:
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
    """The comparison of two folders, with the runs until a time."""

    facts: PlanFacts
    before: _Side
    after: _Side
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


def _names(after: _Side) -> Names:
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


def _parsed(parser: Parser, folder: Path, settings: Settings, environments: Environments) -> _Side:
    side, check = _Side({}, {}, []), DagCheck()
    try:
        python = environments.python(folder)
    except RequirementsError as error:
        side.problems.append(Problem("requirements.txt", None, str(error)))
        return side
    for answer in sorted(itertools.chain(*parse_folder(parser, folder, settings, python)), key=lambda answer: answer.file):
        _add(side, answer, check)
    return side


def _add(side: _Side, answer: Answer, check: DagCheck) -> None:
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


def _compared(before: Mapping[str, BundleFile], now: Mapping[str, BundleFile]) -> Files:
    return {
        "added": sorted(now.keys() - before.keys()),
        "changed": sorted(path for path in now.keys() & before.keys() if now[path].content != before[path].content),
        "removed": sorted(before.keys() - now.keys()),
    }


def _place(owner: Any) -> str:
    return owner.file if owner.bundle is None else f"{owner.file} of bundle {owner.bundle}"
