"""Flink reads what tasks have published, and writes, at /catalog of a web process with the API token of an account.

It needs Maven, with Flink and Iceberg in the folder of Maven: `make test-tables` fetches them.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType
from support.spark_tables import Task, jvm
from support.tables import Lake, ids, rows, served

from paceline.states import TaskState
from scheduler.api import app
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact
from scheduler.store.worker.claims import Claim, Ending
from workers.spark.sessions.session_pool import WarmJvm

__all__ = ["jvm"]

pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(600)]

HERE = Path(__file__).parent / "flink"
GUIDE = HERE.parents[3] / "docs" / "how-to" / "tables.md"
#: Packages of Java that the configuration of Flink opens to it.
OPENED = ("io", "lang", "lang.reflect", "net", "nio", "text", "time", "util", "util.concurrent", "util.concurrent.atomic",
          "util.concurrent.locks")  # fmt: skip
#: The rows of a statement, as Flink prints them.
Rows = list[str]


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The jars of Flink, from the folder of Maven."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Flink needs Java and Maven.")
    file = tmp_path_factory.mktemp("flink") / "class-path"
    command = ["mvn", "--offline", "-q", "-B", "-f", str(HERE / "pom.xml")]
    command += ["dependency:build-classpath", f"-Dmdep.outputFile={file}"]
    maven = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if maven.returncode != 0:
        pytest.skip(f"The folder of Maven has no Flink: run make test-tables. {maven.stdout.partition(chr(10))[0]}")
    return file.read_text()


class Flink:
    """Flink SQL with a catalog `lake`, as the guide creates it."""

    def __init__(self, class_path: str) -> None:
        self._class_path = class_path

    def answers(self, *statements: str) -> list[Rows]:
        """Run statements one after another; what each of them printed."""
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
        command = ["java", *opened, "-cp", self._class_path, str(HERE / "Statements.java")]
        text = "".join(f"{one.rstrip().rstrip(';')};\n" for one in statements)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        found = [part.splitlines() for part in re.split(r"^statement\n", done.stdout, flags=re.MULTILINE)[1:]]
        assert len(found) == len(statements), done.stdout + done.stderr
        return found

    def __call__(self, uri: str, token: str, *statements: str) -> list[Rows]:
        """Run statements with the catalog at an address; the rows of each. None of them may fail."""
        created, *found = self.answers(catalog("lake", uri, token), *statements)
        for statement, lines in zip(("create catalog", *statements), (created, *found), strict=True):
            assert not any(line.startswith("error: ") for line in lines), f"{statement}\n{lines}"
        return found


@pytest.fixture
def flink(class_path: str) -> Flink:
    return Flink(class_path)


def of_guide() -> list[str]:
    """The statements of the guide. The first sets the batch mode, in which each of these tests runs."""
    (block,) = re.findall(r"```sql\n(set .*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(block).strip().split(";\n")


def catalog(name: str, uri: str, token: str) -> str:
    """The statement of the guide that creates a catalog, with another name, address and token."""
    given = of_guide()[1].replace("https://paceline.example.org/catalog", uri).replace("'...'", f"'{token}'")
    assert uri in given and token in given
    return given.replace("catalog lake", f"catalog {name}", 1)


@pytest.fixture
def web(lake: Lake) -> Iterator[str]:
    """The address of the catalog of a web process."""
    with served(app.create(lake.scenario.settings)) as uri:
        yield f"{uri}/catalog"


def account(lake: Lake, role: str) -> str:
    """The API token of a new account."""
    engine = lake.scenario.engine
    made = transact(engine, accounts.create, role, "long enough", role=role, tags=None)
    token, _ = transact(engine, logins.issue, made.id, "token", lasts_s=600, address="", name="t")
    return str(token)


def succeed(lake: Lake, claim: Claim) -> None:
    assert lake.scenario.follower.report(claim, Ending(TaskState.SUCCESS, tables="lake")).is_stored


TYPES = pa.schema([
    ("id", pa.int32()), ("big", pa.int64()), ("yes", pa.bool_()), ("small", pa.float32()), ("real", pa.float64()),
    ("price", pa.decimal128(9, 2)), ("day", pa.date32()), ("at", pa.timestamp("us")), ("moment", pa.timestamp("us", tz="UTC")),
    ("shop", pa.string()), ("blob", pa.binary()), ("tags", pa.list_(pa.string())),
    ("buyer", pa.struct([("name", pa.string()), ("age", pa.int32())])), ("counts", pa.map_(pa.string(), pa.int32())),
])  # fmt: skip
AT = datetime(2026, 1, 2, 3, 4, 5, 678000)
FULL: dict[str, Any] = {
    "id": 1, "big": 2**40, "yes": True, "small": 1.5, "real": 2.25, "price": Decimal("12.30"), "day": date(2026, 1, 2), "at": AT,
    "moment": AT.replace(tzinfo=UTC), "shop": "nörd", "blob": b"\x01\x02", "tags": ["a", "b"], "buyer": {"name": "ada", "age": 36},
    "counts": [("k", 7)],
}  # fmt: skip
EMPTY = {**dict.fromkeys(FULL), "id": 2, "at": datetime(2026, 1, 3)}


def test_flink_reads_what_tasks_have_published_and_nothing_else(lake: Lake, web: str, flink: Flink) -> None:
    claim, task = lake.attempt("first")
    task.create_namespace("sales.eu")
    task.create_table("sales.eu.orders", rows().schema).append(rows(7))
    orders = task.create_table("sales.orders", TYPES)
    with orders.update_spec() as spec:
        spec.add_field("at", DayTransform(), "at_day")
        spec.add_identity("shop")
    orders.append(pa.Table.from_pylist([FULL, EMPTY], TYPES))
    succeed(lake, claim)
    before = task_snapshot(lake, "sales.orders")

    claim, task = lake.attempt("second")
    orders = task.load_table("sales.orders")
    with orders.update_schema() as change:
        change.rename_column("price", "amount")
        change.update_column("id", LongType())
        change.delete_column("blob")
    with orders.update_schema() as change:
        change.add_column("note", LongType())
    with orders.update_spec() as spec:
        spec.remove_field("shop")
    orders.append(pa.table({"id": [3], "at": [AT], "amount": pa.array([Decimal("0.50")], pa.decimal128(9, 2)), "note": [9]}))
    orders.delete("id = 2")
    succeed(lake, claim)

    _, running = lake.attempt("third")
    running.create_table("sales.pending", TYPES)
    running.load_table("sales.orders").delete("id = 1")

    names, whole, evolved, old, snapshots, day, below = flink(
        web, account(lake, "viewer"),
        "show tables in lake.sales",
        "select * from lake.sales.orders where id = 1",
        "select id, amount, shop, note from lake.sales.orders order by id",
        f"select id, amount from lake.sales.orders /*+ options('snapshot-id'='{before}') */ order by id",
        "select count(*) from lake.sales.`orders$snapshots`",
        "select count(*), sum(amount) from lake.sales.orders where `at` >= timestamp '2026-01-02 00:00:00' and shop is null",
        "select id from lake.`sales.eu`.orders",
    )  # fmt: skip

    assert names == ["+I[orders]"]
    assert whole == [
        "+I[1, 1099511627776, true, 1.5, 2.25, 12.30, 2026-01-02, 2026-01-02T03:04:05.678, 2026-01-02T03:04:05.678Z, nörd,"
        " [a, b], +I[ada, 36], {k=7}, null]"
    ]
    assert evolved == ["+I[1, 12.30, nörd, null]", "+I[3, 0.50, null, 9]"]
    assert old == ["+I[1, 12.30]", "+I[2, null]"]
    assert (snapshots, day, below) == (["+I[3]"], ["+I[1, 0.50]"], ["+I[7]"])


def task_snapshot(lake: Lake, name: str) -> int:
    found = lake.person().load_table(name).current_snapshot()
    assert found is not None
    return found.snapshot_id


def test_flink_reports_what_an_account_may_not_do(lake: Lake, web: str, flink: Flink) -> None:
    lake.person().create_table("sales.orders", rows().schema)
    _, running = lake.attempt()
    running.create_table("sales.pending", rows().schema)
    viewer = account(lake, "viewer")

    _, pending, written, made, stranger = flink.answers(
        catalog("lake", web, viewer),
        "select * from lake.sales.pending",
        "insert into lake.sales.orders values (1, 'a')",
        "create database lake.own",
        catalog("other", web, "not-a-token"),
    )

    assert "Object 'pending' not found" in pending[0]
    assert "may only read tables" in written[0] and "may only read tables" in made[0]
    assert "NotAuthorizedException" in stranger[0]
    assert ids(lake.person().load_table("sales.orders")) == []


@pytest.mark.spark
def test_flink_reads_rows_that_spark_has_merged_on_read(lake: Lake, web: str, flink: Flink, jvm: WarmJvm) -> None:
    task = Task(lake, jvm, "d")
    merged = task.sql(
        "create table sales.t (id int, v int, name string) using iceberg partitioned by (bucket(3, id))"
        " tblproperties ('write.merge.mode'='merge-on-read', 'write.delete.mode'='merge-on-read', 'format-version'='2')",
        "insert into sales.t select cast(id as int), cast(id as int), 'old' from range(1000)",
        "merge into sales.t t using (select cast(id as int) id, 7 as v from range(500, 1500)) s on t.id = s.id"
        " when matched and t.id % 2 = 0 then delete when matched then update set v = s.v, name = 'new'"
        " when not matched then insert (id, v, name) values (s.id, s.v, 'added')",
        "delete from sales.t where id = 1",
        "select name, count(*), sum(id), sum(v) from sales.t group by name order by name",
    )
    task.ends()
    snapshot = lake.person().load_table("sales.t").current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert int(snapshot.summary["total-position-deletes"] or 0) > 500

    sums, gone = flink(
        web, account(lake, "viewer"),
        "select name, count(*), sum(id), sum(v) from lake.sales.t group by name order by name",
        "select * from lake.sales.t where id in (1, 2, 500, 501) order by id",
    )  # fmt: skip

    assert sums == [f"+I[{', '.join(map(str, row))}]" for row in merged]
    assert gone == ["+I[2, 2, old]", "+I[501, 7, new]"]


def test_the_statements_of_the_guide_work(lake: Lake, web: str, flink: Flink) -> None:
    person = lake.person()
    for name, number in (("orders", 1), ("corrections", 2)):
        person.create_table(f"sales.{name}", rows().schema).append(rows(number))

    selected, _ = flink(web, account(lake, "operator"), *of_guide()[2:])

    assert selected == ["+I[1, ]"]
    assert ids(person.load_table("sales.orders")) == [1, 2]


def test_what_flink_writes_is_read_by_others(lake: Lake, web: str, flink: Flink) -> None:
    person = lake.person()
    person.create_table("sales.source", rows().schema).append(rows(1, 3))
    claim, task = lake.attempt()
    mine = catalog("mine", lake.uri, str(task.properties["token"]))

    found = flink(
        web, account(lake, "operator"),
        "create database lake.stock",
        "create table lake.stock.items (id bigint, shop string, price decimal(9, 2), sold timestamp(6)) partitioned by (shop)",
        "insert into lake.stock.items values (1, 'a', 1.25, timestamp '2026-01-02 03:04:05.678'),"
            " (2, 'b', 2.5, cast(null as timestamp(6)))",
        "insert overwrite lake.stock.items partition (shop = 'b') select 3, cast(3.5 as decimal(9, 2)), cast(null as timestamp(6))",
        mine,
        "create table mine.sales.copies as select id, who from mine.sales.source",
        "insert into mine.sales.copies values (9, 'z')",
        "select count(*) from mine.sales.copies",
        "show tables in lake.sales",
    )  # fmt: skip

    assert found[-2:] == [["+I[3]"], ["+I[source]"]]
    items = person.load_table("stock.items").scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in items] == [(1, "a", Decimal("1.25"), AT), (3, "b", Decimal("3.50"), None)]
    assert not person.table_exists("sales.copies")
    audited = lake.scenario.rows("select account from audit where event = 'tables.commit' order by id")
    assert audited == [("ada",)] * 2 + [("api:operator",)] * 3

    succeed(lake, claim)

    assert ids(person.load_table("sales.copies")) == [1, 3, 9]
