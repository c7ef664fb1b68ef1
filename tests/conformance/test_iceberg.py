"""Iceberg's own tests of a catalog: for a task, with its token, against the catalog of its worker, and for an administrator.

They need Maven, with Iceberg and its tests in the folder of Maven: `make test-tables` fetches them.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from fastapi import Request
from support.stacks import StackFactory
from support.tables import served, with_tables
from support.waiting import eventually

from scheduler.catalog import app
from scheduler.catalog.access import Caller
from scheduler.catalog.tables import Tables
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
REGISTERED = "only an administrator registers a metadata file, and no try is one"
#: Tests that fail, and how Paceline differs. For an administrator, those of REGISTERED pass.
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
        REGISTERED: (
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


def run(uri: str, token: str, warehouse: str, folder: Path) -> dict[str, str]:
    """Run all tests with a token. Returns what became of each."""
    given = {"CATALOG_URI": uri, "CATALOG_TOKEN": token, "CATALOG_WAREHOUSE": warehouse}
    command = ["mvn", "--offline", "-q", "-B", "test", "-f", str(POM), f"-Dconformance.build={folder}"]
    maven = subprocess.run(command, env=os.environ | given, capture_output=True, text=True, timeout=1500, check=False)
    found = outcomes(folder / "surefire-reports")
    assert {name.partition(".")[0] for name in found} == {"TablesTest", "ViewsTest"}, maven.stdout
    return found


def compare(found: dict[str, str], known: Collection[str]) -> None:
    """Compare the tests that failed with those that are known to."""
    failed = {name: outcome for name, outcome in found.items() if outcome not in ("passed", "skipped")}
    skipped = [name for name, outcome in found.items() if outcome == "skipped"]
    print(f"Iceberg's tests: {len(found)} ran, {len(failed)} failed, {len(skipped)} were skipped")
    assert {name: text for name, text in failed.items() if name not in known} == {}
    assert sorted(set(known) - failed.keys()) == [], "these pass now: remove them from DIFFERENCES"
    assert all("EmptyNamespace" in name for name in skipped)


def test_a_task_finds_the_known_differences_and_no_others(stack_factory: StackFactory, settings: Settings, tmp_path: Path) -> None:
    home = settings.home
    stack = stack_factory(
        dags={"conformance.py": DAG}, schedulers=1, workers=[("default", 1)],
        env={"PACELINE_TABLES_WAREHOUSE": str(home / "lake"), "CONFORMANCE_HOME": str(home)},
    )  # fmt: skip
    eventually(lambda: stack.cli("dags", "unpause", "conformance").returncode == 0)
    assert stack.cli("dags", "trigger", "conformance", "--run-id", "r").returncode == 0
    assert eventually((home / "access.json").exists, timeout=60), stack.logs()
    access = json.loads((home / "access.json").read_text())
    compare(run(access["uri"], access["token"], access["warehouse"], tmp_path), DIFFERENCES.keys())
    (home / "done").touch()
    with contextlib.closing(database.connect(settings, "test")) as connection, connection.cursor() as cursor:

        def state() -> str:
            cursor.execute("select state from dag_run where run_id = 'r'")
            (row,) = cursor.fetchall()
            connection.rollback()
            return str(row[0])

        assert eventually(lambda: state() == "success", timeout=60), stack.logs()


def test_an_administrator_finds_them_except_for_files_that_are_registered(settings: Settings, tmp_path: Path) -> None:
    engine = database.create(settings)
    tables = Tables(with_tables(settings), engine)

    def authenticate(request: Request) -> Caller:
        return Caller("ada", may_write=True, is_admin=True)

    with served(app.create(tables, authenticate)) as uri:
        found = run(uri, "ada", tables.warehouse.url, tmp_path)
    engine.dispose()
    compare(found, [name for name, reason in DIFFERENCES.items() if reason != REGISTERED])
