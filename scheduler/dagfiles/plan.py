"""`paceline plan`: a folder and the live version of its bundle are parsed alike on this machine, and compared."""

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from scheduler.dagfiles.answers import Answer
from scheduler.dagfiles.bundle_files import read_folder
from scheduler.dagfiles.bundles import NO_DAG_FILES, parse_folder
from scheduler.dagfiles.dag_check import DagCheck, MalformedDagError
from scheduler.dagfiles.environments import Environments, RequirementsError
from scheduler.dagfiles.parser import Parser
from scheduler.dagfiles.plan_changes import DAYS, Files, Plan, Problem, Side, compared, names_of
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.read.plan import Names, PlanFacts


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
