"""Restricted namespaces, and people with accounts at /catalog of a web process."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError
from support.scenario import Scenario
from support.tables import SCHEMA, Lake, ids, rows, served

from scheduler.api import app
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact


@pytest.fixture
def web(lake: Lake) -> Iterator[str]:
    with served(app.create(lake.scenario.settings)) as uri:
        yield f"{uri}/catalog"


def catalog(web: str, scenario: Scenario, name: str, role: str | None, tags: dict[str, str] | None = None) -> RestCatalog:
    account = transact(scenario.engine, accounts.create, name, "long enough", role=role, tags=tags)
    token, _ = transact(scenario.engine, logins.issue, account.id, "token", lasts_s=600, address="", name="t")
    found = load_catalog("web", type="rest", uri=web, token=token)
    assert isinstance(found, RestCatalog)
    return found


def test_a_task_uses_a_restricted_namespace_only_if_that_lists_it(lake: Lake) -> None:
    lake.person().create_namespace("finance", {"paceline.writers": "dag:payroll, tag:money", "paceline.readers": "dag:report"})
    lake.person().create_namespace("finance.daily")
    (_, payroll), (_, report), (_, other) = (lake.attempt(dag_id) for dag_id in ("payroll", "report", "other"))
    for namespace in ("finance", "finance.daily"):
        payroll.create_table(f"{namespace}.t", SCHEMA).append(rows(1))
        assert report.list_tables(namespace) == []
        for refused in (
            lambda at=namespace: report.create_table(f"{at}.u", SCHEMA),
            lambda at=namespace: other.list_tables(at),
            lambda at=namespace: other.load_table(f"{at}.t"),
            lambda at=namespace: other.rename_table(f"{at}.t", "sales.stolen"),
        ):
            with pytest.raises(ForbiddenError):
                refused()
    with pytest.raises(ForbiddenError, match="administrator"):
        payroll.update_namespace_properties("finance", removals={"paceline.writers"})


@pytest.mark.parametrize(
    ("properties", "readers", "writers"),
    [
        ({"paceline.writers": "dag:payroll"}, {"payroll"}, {"payroll"}),
        ({"paceline.readers": "dag:report"}, {"report"}, set[str]()),
        ({"paceline.writers": "dag:payroll", "paceline.readers": "*"}, {"payroll", "report", "other"}, {"payroll"}),
        ({"paceline.writers": ""}, set[str](), set[str]()),
    ],
)
def test_each_list_restricts_reading_and_writing(
    lake: Lake, properties: dict[str, str], readers: set[str], writers: set[str]
) -> None:
    lake.person().create_namespace("finance", properties)
    lake.person().create_table("finance.t", SCHEMA)

    def may(use: Callable[[RestCatalog], object]) -> set[str]:
        found = set[str]()
        for dag_id, catalog in tries.items():
            with contextlib.suppress(ForbiddenError):
                use(catalog)
                found.add(dag_id)
        return found

    tries = {dag_id: lake.attempt(dag_id)[1] for dag_id in ("payroll", "report", "other")}
    assert may(lambda one: one.list_tables("finance")) == readers
    assert may(lambda one: one.load_table("finance.t")) == readers
    assert may(lambda one: one.create_table("finance.u", SCHEMA)) == writers


def test_accounts_read_and_write_by_their_role(lake: Lake, web: str) -> None:
    scenario = lake.scenario
    admin = catalog(web, scenario, "root", "admin")
    admin.create_namespace("team", {"paceline.writers": "tag:x"})
    admin.create_table("team.t", SCHEMA).append(rows(1))
    viewer = catalog(web, scenario, "viewer", "viewer")
    assert ids(viewer.load_table("team.t")) == [1]
    with pytest.raises(ForbiddenError):
        viewer.load_table("team.t").append(rows(2))
    limited = catalog(web, scenario, "limited", None, {"x": "operator"})
    limited.load_table("team.t").append(rows(2))
    for refused in (lambda: limited.list_tables("sales"), lambda: limited.create_table("sales.t", SCHEMA)):
        with pytest.raises(ForbiddenError):
            refused()
    registered = admin.register_table("team.copy", admin.load_table("team.t").metadata_location)
    assert ids(registered) == [1, 2]
    assert [row[0] for row in scenario.rows("select account from audit where event = 'tables.commit' order by id")]== [
        "api:root", "api:root", "api:limited", "api:root",
    ]  # fmt: skip


def test_a_driver_uses_the_web_process_with_the_token_of_its_try(lake: Lake, web: str) -> None:
    _, own = lake.attempt()
    own.create_table("sales.t", SCHEMA).append(rows(1))
    through_web = load_catalog("web", type="rest", uri=web, token=own.properties["token"])
    assert ids(through_web.load_table("sales.t")) == [1]


def test_without_a_token_the_web_process_refuses_everything(web: str) -> None:
    for path in ("v1/config", "v1/namespaces"):
        assert requests.get(f"{web}/{path}", timeout=10).status_code == 401
        assert requests.get(f"{web}/{path}", timeout=10, cookies={"paceline_session": "x"}).status_code == 401
