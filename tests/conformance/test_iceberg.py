"""Iceberg's own tests of a catalog, against the catalog of a worker, with the token of a task that waits meanwhile.

They need Maven, with Iceberg and its tests in the folder of Maven: `make test-tables` fetches them.
"""

import contextlib
import json
import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.settings import Settings
from scheduler.store.db import database

pytestmark = [pytest.mark.stack, pytest.mark.on_demand, pytest.mark.timeout(1800)]

POM = Path(__file__).with_name("pom.xml")
DAG = """
import json, os, time
from pathlib import Path
from paceline import dag, task

@dag(schedule=None)
def conformance():
    @task
    def wait(ti=None):
        home = Path(os.environ["CONFORMANCE_HOME"])
        home.joinpath("part").write_text(json.dumps(dict(ti.catalog.properties)))
        home.joinpath("part").rename(home / "access.json")
        while not home.joinpath("done").exists():
            time.sleep(0.1)

    wait()

conformance()
"""
#: Tests that fail, and how Paceline differs.
DIFFERENCES = {
    name: reason
    for reason, names in {
        "pyiceberg writes no table of version 3": (
            "TablesTest.createTableTransaction(int)[3]",
            "TablesTest.testCreateTableWithDefaultColumnValue",
        ),
        "a name becomes the name of a folder, so it has no slash and no dot": (
            "TablesTest.testNamespaceWithDot",
            "TablesTest.testNamespaceWithSlash",
            "TablesTest.testTableNameWithDot",
            "TablesTest.testTableNameWithSlash",
        ),
        "only an administrator registers a metadata file, and no try is one": (
            "TablesTest.testRegisterExistingTable",
            "TablesTest.testRegisterTable",
            "ViewsTest.registerTableThatAlreadyExistsAsView",
        ),
        "views are not registered": (
            "ViewsTest.registerExistingView",
            "ViewsTest.registerView",
            "ViewsTest.registerViewThatAlreadyExistsAsTable",
        ),
        "a metadata file never changes, so it is read once, and a table can be read whose file was removed since": (
            "TablesTest.testLoadTableWithMissingMetadataFile(Path)",
        ),
        "the metadata of a view is in its location, which is in the folder of its namespace": (
            "ViewsTest.createViewWithCustomMetadataLocation",
        ),
        "a view with two statements for one dialect is refused, in other words than Iceberg's": ("ViewsTest.createViewErrorCases",),
    }.items()
    for name in names
}


def outcomes(folder: Path) -> dict[str, str]:
    """What became of each test, by its class and name: passed, skipped, or the message of its failure."""
    found = {}
    for report in folder.glob("TEST-*.xml"):
        for case in ET.parse(report).getroot().iter("testcase"):
            name = f"{case.attrib['classname'].rpartition('.')[2]}.{case.attrib['name']}"
            found[name] = "passed"
            for problem in case:
                if problem.tag in ("failure", "error"):
                    found[name] = f"{problem.get('type')}: {problem.get('message')}"
                elif problem.tag == "skipped":
                    found[name] = "skipped"
    return found


def test_iceberg_finds_the_known_differences_and_no_others(stack_factory: StackFactory, settings: Settings, tmp_path: Path) -> None:
    home = settings.home
    stack = stack_factory(
        dags={"conformance.py": DAG}, schedulers=1, workers=[("default", 1)],
        env={"PACELINE_TABLES_WAREHOUSE": str(home / "lake"), "CONFORMANCE_HOME": str(home)},
    )  # fmt: skip
    eventually(lambda: stack.cli("dags", "unpause", "conformance").returncode == 0)
    assert stack.cli("dags", "trigger", "conformance", "--run-id", "r").returncode == 0
    assert eventually((home / "access.json").exists, timeout=60), stack.logs()
    access = json.loads((home / "access.json").read_text())
    given = {f"CATALOG_{name.upper()}": access[name] for name in ("uri", "token", "warehouse")}
    command = ["mvn", "--offline", "-q", "-B", "test", "-f", str(POM), f"-Dconformance.build={tmp_path}"]
    maven = subprocess.run(command, env=os.environ | given, capture_output=True, text=True, timeout=1500, check=False)
    found = outcomes(tmp_path / "surefire-reports")
    assert {name.partition(".")[0] for name in found} == {"TablesTest", "ViewsTest"}, maven.stdout
    failed = {name: outcome for name, outcome in found.items() if outcome not in ("passed", "skipped")}
    skipped = [name for name, outcome in found.items() if outcome == "skipped"]
    print(f"Iceberg's tests: {len(found)} ran, {len(failed)} failed, {len(skipped)} were skipped")
    assert {name: text for name, text in failed.items() if name not in DIFFERENCES} == {}
    assert sorted(DIFFERENCES.keys() - failed.keys()) == [], "these pass now: remove them from DIFFERENCES"
    assert all("EmptyNamespace" in name for name in skipped)
    (home / "done").touch()
    with contextlib.closing(database.connect(settings, "test")) as connection, connection.cursor() as cursor:

        def state() -> str:
            cursor.execute("select state from dag_run where run_id = 'r'")
            (row,) = cursor.fetchall()
            connection.rollback()
            return str(row[0])

        assert eventually(lambda: state() == "success", timeout=60), stack.logs()
