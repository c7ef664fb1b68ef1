"""`paceline runs bisect`: the first version of a DAG whose runs fail."""

from support.bundle_parsing import GOOD, parse_next
from support.scenario import Scenario, dag

from paceline.states import TaskState as S
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db.database import transact

from .conftest import Cli


def deploy(scenario: Scenario, message: str, **files: bytes) -> None:
    by_path = {name.replace("_", "."): BundleFile(content) for name, content in files.items()}
    transact(scenario.engine, bundles.publish, "sales", by_path, by="api:ada", message=message, origin=f"git@{message}")
    live = parse_next(scenario.engine)
    assert live is not None and live.is_live


def run(scenario: Scenario, dag_id: str, run_id: str, state: S) -> None:
    scenario.trigger(dag_id, run_id=run_id)
    scenario.run_to_end(outcome=lambda claim: state)


def test_the_first_version_whose_runs_fail_is_named_with_its_deploy(cli: Cli, scenario: Scenario) -> None:
    deploy(scenario, "one", a_py=GOOD, lib_py=b"1")
    run(scenario, "a", "r1", S.FAILED)
    run(scenario, "a", "r2", S.SUCCESS)
    deploy(scenario, "two", a_py=GOOD, lib_py=b"2")
    deploy(scenario, "three", a_py=GOOD, lib_py=b"3", new_txt=b"")
    run(scenario, "a", "r3", S.FAILED)
    deploy(scenario, "four", a_py=GOOD, lib_py=b"4")
    run(scenario, "a", "r4", S.FAILED)

    done = cli("runs", "bisect", "a")

    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-3:] == [
        "Runs of DAG a fail since version 3 (version 3 of bundle sales, deployed by api:ada, from git@three: three); version 1 "
        "succeeds. No run of the versions in between has ended: 2.",
        "added    new.txt",
        "changed  lib.py",
    ]
    found = cli.json("runs", "bisect", "a")
    assert (found["first_failing"]["newest_run_id"], found["last_good"]["version_number"], found["untested"]) == ("r3", 1, [2])
    assert [(row["success_count"], row["failed_count"]) for row in found["versions"]] == [(1, 1), (0, 0), (0, 1), (0, 1)]

    run(scenario, "a", "r5", S.SUCCESS)
    assert cli("runs", "bisect", "a").stdout.splitlines()[-1] == "Version 4 of DAG a succeeds: its newest run is r5."


def test_a_dag_without_a_bundle_or_a_good_run(cli: Cli, scenario: Scenario) -> None:
    assert cli("runs", "bisect", "pair").stdout.splitlines()[-1] == "No run of DAG pair has ended."
    run(scenario, "pair", "r1", S.FAILED)
    scenario.add(dag("pair", {"first": []}))
    sentence = "Runs of DAG pair fail since version 1; no version before it succeeds."

    assert cli("runs", "bisect", "pair").stdout.splitlines()[-1] == sentence
    assert cli.json("runs", "bisect", "pair")["files"] is None
    assert cli("runs", "bisect", "none").exit_code == 3
