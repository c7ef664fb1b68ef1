"""Airflow's example files load after `paceline migrate-airflow` alone, with the tasks and edges that they have in Airflow."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from differential import examples
from scheduler.dagfiles.migrate.folder import FileReport, migrate
from scheduler.settings import Settings

WANTED = 64


@pytest.fixture(scope="module")
def reports(
    example_folders: list[Path], provider_packages: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, FileReport]:
    """The examples by their paths, each migrated with the others of its folder."""
    settings = Settings.load({"PACELINE_HOME": str(tmp_path_factory.mktemp("home"))})
    return {
        str(folder / report.path): report
        for folder in example_folders
        for report in migrate(folder, settings)
        if "/" not in report.path and examples.is_example(folder / report.path)
    }


def test_all_examples_are_there(reports: dict[str, FileReport]) -> None:
    assert len(reports) == examples.COUNT


def test_they_load_after_the_rewrite_except_those_with_a_reason(reports: dict[str, FileReport], figures: dict[str, Any]) -> None:
    failed = {examples.name(path): _why(report) for path, report in reports.items() if not report.loads}
    print(json.dumps(failed, indent=2))
    figures["example files after migrate-airflow"] = {"load": len(reports) - len(failed), "not": sorted(failed)}

    assert len(reports) - len(failed) >= WANTED, failed
    assert failed.keys() == examples.NOT_MIGRATED.keys()
    hooked = {examples.name(path) for path, report in reports.items() if report.after is not None and report.after.with_hook}
    assert hooked == examples.WITH_PROVIDERS
    assert [name for name, words in examples.NOT_MIGRATED.items() if words not in failed[name]] == []


def test_their_dags_are_those_of_the_unchanged_files(reports: dict[str, FileReport]) -> None:
    assert {examples.name(path): report.differences for path, report in reports.items() if report.differences} == {}


def test_a_second_rewrite_changes_nothing(reports: dict[str, FileReport]) -> None:
    from scheduler.dagfiles.migrate.folder import rewrite

    assert [path for path, report in reports.items() if rewrite(report.rewritten.content).content != report.rewritten.content] == []


def test_their_tasks_and_edges_are_those_of_airflow(reports: dict[str, FileReport], ask_airflow: Callable[..., Any]) -> None:
    loaded = {path: report for path, report in reports.items() if report.loads}
    theirs = ask_airflow(examples.STRUCTURE, *loaded)

    different = {}
    for path, report in loaded.items():
        assert report.after is not None
        assert isinstance(theirs[path], dict), theirs[path]
        # The DAGs of asset watchers exist only here.
        dags = {dag_id: dag for dag_id, dag in report.after.dags.items() if not dag_id.startswith("watch__")}
        ours = {(dag_id, *task): value for dag_id, dag in dags.items() for *task, value in _tasks(dag)}
        other = {(dag_id, task_id): tuple(value) for dag_id, dag in theirs[path].items() for task_id, value in dag.items()}
        if wrong := {key: (ours.get(key), other.get(key)) for key in ours.keys() | other.keys() if ours.get(key) != other.get(key)}:
            different[examples.name(path)] = wrong
    assert {name: {task_id for _, task_id in wrong} for name, wrong in different.items()} == examples.OTHER_EDGES, different


def _why(report: FileReport) -> str:
    problem = report.after.problem if report.after is not None else "It is no DAG file."
    return " ".join([*(note.text for note in report.rewritten.unsupported), problem])


def _tasks(dag: Any) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Each task with its trigger rule and the tasks directly below it."""
    for task in dag["tasks"]:
        below = sorted(other["task_id"] for other in dag["tasks"] if task["task_id"] in other["upstream"])
        yield task["task_id"], (task["trigger_rule"], below)
