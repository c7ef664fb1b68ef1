"""Bundle versions in a real database: what they store, which of them goes live, and what is deleted with them."""

import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.scenario import Scenario

from paceline.exceptions import NotFoundError, PacelineError, UnreachableError
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.store.dags import blobs, bundle_versions, bundles
from scheduler.store.dags.bundle_versions import Live, ParsedBundleFile
from scheduler.store.dags.bundles import BundleFile, Published
from scheduler.store.dags.current import ParsedDag
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.upkeep import retention

FAR = datetime.now(UTC) + timedelta(days=3650)


class Bundles:
    """The bundles of a database. A DAG file has the DAGs that its name says: `a.py` has `a`, `a-b.py` has `a` and `b`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def publish(self, files: dict[str, bytes], bundle: str = "sales") -> Published:
        return transact(self.scenario.engine, bundles.publish, bundle, {p: BundleFile(c) for p, c in files.items()}, by="ada")

    def parse(self, *paths: str, imports: dict[str, tuple[str, ...]] | None = None, problem: Problem | None = None) -> Live:
        claimed = transact(self.scenario.engine, bundle_versions.claim, claimed_by="s#1", lease_s=60)
        assert claimed is not None
        if claimed.is_parsed:
            return transact(self.scenario.engine, bundle_versions.go_live, claimed.id)
        parsed = [
            ParsedBundleFile(
                path=path,
                problem=problem,
                modules=(imports or {}).get(path, ()),
                dags=tuple(map(dag, path.removesuffix(".py").split("-"))),
            )
            for path in paths
        ]
        return transact(self.scenario.engine, bundle_versions.record, claimed.id, parsed, claimed_by="s#1")

    def deploy(self, files: dict[str, bytes], bundle: str = "sales") -> Live:
        self.publish(files, bundle)
        return self.parse(*(path for path in files if path.endswith(".py") and path != "lib.py"))

    def tree(self, version_id: int) -> dict[str, bytes]:
        with self.scenario.engine.connect() as connection:
            reader = EngineReader(connection)
            entries = bundles.tree(reader, version_id)
            contents = dict(blobs.unpacked(blobs.packed(reader, {entry.digest for entry in entries}), None))
            return {entry.path: contents[entry.digest] for entry in entries}

    def live(self) -> dict[str, tuple[str | None, bool, int | None, int]]:
        """By DAG ID: its bundle, whether it is active, and the numbers of the bundle version and of its own version."""
        rows = self.scenario.rows(
            "select d.dag_id, d.bundle, d.is_active, b.number, v.number from dag d join dag_version v on v.id = d.version_id"
            " left join bundle_version b on b.id = v.bundle_version_id"
        )
        return {dag_id: tuple(rest) for dag_id, *rest in rows}  # type: ignore[misc]


def dag(dag_id: str) -> ParsedDag:
    data = {"dag_id": dag_id, "file": f"{dag_id}.py", "schedule": {"kind": "none"}, "tasks": []}
    return ParsedDag(dag_id=dag_id, content_hash=f"hash of {dag_id}", data=json.dumps(data))


@pytest.fixture
def kept(scenario: Scenario) -> Iterator[Bundles]:
    return Bundles(scenario)  # type: ignore[return-value]


def test_each_version_has_its_files_and_costs_what_differs(kept: Bundles) -> None:
    files = {f"f{i}.py": b"%d" % i for i in range(50)}
    first = kept.publish(files)
    second = kept.publish(files | {"f1.py": b"other", "new.txt": b"0"})
    third = kept.publish({name: content for name, content in files.items() if name != "f2.py"})

    assert (first.number, second.number, third.number) == (1, 2, 3)
    assert (second.added, second.changed, second.removed) == (("new.txt",), ("f1.py",), ())
    assert (third.added, third.changed, third.removed) == ((), ("f1.py",), ("f2.py", "new.txt"))
    assert kept.tree(first.id) == files
    assert kept.tree(second.id) == files | {"f1.py": b"other", "new.txt": b"0"}
    assert kept.tree(third.id) == {name: content for name, content in files.items() if name != "f2.py"}
    assert kept.scenario.rows("select count(*) from bundle_path") == [(53,)]
    assert kept.scenario.rows("select count(*) from bundle_blob") == [(51,)]


def test_content_that_the_bundle_had_is_that_version_again(kept: Bundles) -> None:
    first = kept.publish({"a.py": b"1"})
    kept.publish({"a.py": b"2"})

    again = kept.publish({"a.py": b"1"})

    assert (again.id, again.is_new) == (first.id, False)
    assert kept.scenario.rows("select wanted_id from bundle") == [(first.id,)]


def test_a_version_goes_live_with_all_of_its_dags_and_without_the_removed_ones(kept: Bundles) -> None:
    assert kept.deploy({"a.py": b"1", "b.py": b"1"}).changed == ("a", "b")
    assert kept.deploy({"a.py": b"2", "c.py": b"1"}).is_live
    assert kept.live() == {"a": ("sales", True, 2, 2), "b": ("sales", False, 1, 1), "c": ("sales", True, 2, 1)}

    transact(kept.scenario.engine, bundles.want, "sales")
    assert kept.parse().is_live
    assert kept.live() == {"a": ("sales", True, 1, 1), "b": ("sales", True, 1, 1), "c": ("sales", False, 2, 1)}


def test_a_dag_has_a_new_version_if_any_file_changed_that_is_not_another_dag_file(kept: Bundles) -> None:
    kept.deploy({"a.py": b"1", "b.py": b"1", "lib.py": b"1", "data.txt": b"1"})
    kept.deploy({"a.py": b"2", "b.py": b"1", "lib.py": b"1", "data.txt": b"1"})
    assert {name: live[2] for name, live in kept.live().items()} == {"a": 2, "b": 1}
    kept.deploy({"a.py": b"2", "b.py": b"1", "lib.py": b"1", "data.txt": b"2"})
    assert {name: live[2] for name, live in kept.live().items()} == {"a": 3, "b": 3}

    kept.publish({"a.py": b"3", "b.py": b"1", "lib.py": b"1", "data.txt": b"2"})
    kept.parse("a.py", "b.py", imports={"b.py": ("a.py",)})
    assert {name: live[2] for name, live in kept.live().items()} == {"a": 4, "b": 4}


def test_a_version_with_an_error_is_refused_and_the_live_one_stays(kept: Bundles) -> None:
    kept.deploy({"a.py": b"1"})
    kept.publish({"a.py": b"2"})

    refused = kept.parse("a.py", problem=Problem.make("line 3 is wrong", 3))

    assert (refused.is_live, refused.problems[0][0]) == (False, "a.py")
    assert kept.live() == {"a": ("sales", True, 1, 1)}
    ((state, problems),) = kept.scenario.rows("select state, problems from bundle_version where number = 2")
    assert (state, problems[0]["file"], problems[0]["line"], problems[0]["message"]) == ("refused", "a.py", 3, "line 3 is wrong")
    assert transact(kept.scenario.engine, bundle_versions.claim, claimed_by="s#1", lease_s=60) is None
    # Deployed again, it is parsed again: the cause may be gone.
    kept.publish({"a.py": b"2"})
    assert kept.parse("a.py").is_live


def test_an_id_of_another_bundle_or_file_is_refused_with_both_names(kept: Bundles) -> None:
    kept.deploy({"a.py": b"1"})
    kept.publish({"a.py": b"9", "z.py": b"9"}, bundle="finance")

    ((file, problem),) = kept.parse("a.py", "z.py").problems

    assert file == "a.py"
    assert problem.message.startswith("DAG 'a' is in a.py of bundle sales and in a.py of bundle finance;")
    assert kept.live() == {"a": ("sales", True, 1, 1)}


def test_two_files_with_one_id_are_refused(kept: Bundles) -> None:
    kept.publish({"a.py": b"1", "a-b.py": b"1"})

    assert [file for file, _ in kept.parse("a.py", "a-b.py").problems] == ["a.py"]


def test_a_version_that_was_replaced_before_it_was_parsed_never_goes_live(kept: Bundles) -> None:
    kept.publish({"a.py": b"1"})
    claimed = transact(kept.scenario.engine, bundle_versions.claim, claimed_by="s#1", lease_s=60)
    assert claimed is not None
    kept.publish({"a.py": b"2"})

    files = [ParsedBundleFile(path="a.py", dags=(dag("a"),))]
    assert not transact(kept.scenario.engine, bundle_versions.record, claimed.id, files, claimed_by="s#1").is_live
    assert kept.live() == {}
    assert kept.parse("a.py").is_live
    assert kept.live() == {"a": ("sales", True, 2, 2)}


def test_a_claim_of_another_scheduler_is_not_stored(kept: Bundles) -> None:
    version = kept.publish({"a.py": b"1"})
    transact(kept.scenario.engine, bundle_versions.claim, claimed_by="s#1", lease_s=60)
    assert transact(kept.scenario.engine, bundle_versions.claim, claimed_by="s#2", lease_s=60) is None

    files = [ParsedBundleFile(path="a.py", dags=(dag("a"),))]
    assert not transact(kept.scenario.engine, bundle_versions.record, version.id, files, claimed_by="s#2").is_live
    transact(kept.scenario.engine, bundle_versions.release, claimed_by="s#1")
    assert kept.parse("a.py").is_live


def test_nothing_is_deployed_while_an_older_worker_would_run_other_code(kept: Bundles) -> None:
    kept.scenario.sql("update process set schema = '0002' where kind = 'worker'")

    with pytest.raises(PacelineError, match="is older than this version of Paceline"):
        kept.publish({"a.py": b"1"})


def test_rolling_back_names_what_does_not_exist(kept: Bundles) -> None:
    kept.deploy({"a.py": b"1"})

    for bundle, number, sentence in (
        ("other", None, "There is no bundle 'other'"),
        ("sales", 7, "Bundle 'sales' has no version 7"),
        ("sales", None, "Bundle 'sales' has no other version that was live"),
    ):
        with pytest.raises(NotFoundError, match=sentence):
            transact(kept.scenario.engine, bundles.want, bundle, number)


def test_retention_deletes_versions_that_nothing_needs_with_their_files(kept: Bundles) -> None:
    kept.deploy({"a.py": b"1", "b.py": b"same"})
    kept.deploy({"a.py": b"2", "b.py": b"same"})
    kept.deploy({"a.py": b"3", "b.py": b"same"})
    run = kept.scenario.rows("select version_id from dag where dag_id = 'a'")
    used = kept.scenario.rows("select id from dag_version where dag_id = 'a' and number = 2")
    assert run != used
    kept.scenario.sql(
        "insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, started_at, ended_at)"
        " values ('a', 'r', 'manual', 'success', %s, now(), now(), now())",
        used[0][0],
    )
    # The run has moved on, and tries of it have executed version 2.
    kept.scenario.sql("insert into run_version select id, version_id, now() from dag_run")
    kept.scenario.sql("update dag_run set version_id = (select version_id from dag where dag_id = 'a')")

    for kind in ("dag_versions", "bundle_versions", "bundle_files"):
        transact(kept.scenario.engine, retention.delete, kind, FAR, None, logs=False)

    assert kept.scenario.rows("select number from bundle_version order by 1") == [(1,), (2,), (3,)]
    kept.scenario.sql("delete from dag_run")
    for kind in ("dag_versions", "bundle_versions", "bundle_files"):
        transact(kept.scenario.engine, retention.delete, kind, FAR, None, logs=False)
    # Version 1 stays for `b`, whose code never changed.
    left = kept.scenario.rows("select id, number from bundle_version order by 2")
    assert [number for _, number in left] == [1, 3]
    assert [kept.tree(version_id)["a.py"] for version_id, _ in left] == [b"1", b"3"]
    assert kept.scenario.rows("select count(*) from bundle_blob") == [(3,)]
    assert kept.scenario.rows("select count(*) from bundle_path") == [(3,)]


def _objects(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_contents_may_be_objects_that_are_deleted_with_the_last_version_that_uses_them(kept: Bundles, tmp_path: Path) -> None:
    url, engine = str(tmp_path / "code"), kept.scenario.engine

    def publish(**files: bytes) -> Published:
        given = {f"{name}.py": BundleFile(content) for name, content in files.items()}
        return transact(engine, bundles.publish, "sales", given, by="ada", code_url=url)

    def contents(version: Published, where: str | None = url) -> dict[str, bytes]:
        cached = StoredContents(lambda work: transact(engine, lambda connection: work(EngineReader(connection))), where)
        return {path: file.content for path, file in cached.files(version.id).items()}

    def collect() -> None:
        for kind in ("dag_versions", "bundle_versions", "bundle_files"):
            transact(engine, retention.delete, kind, FAR, None, logs=False, code_url=url)

    first = publish(a=b"1", b=b"same", empty=b"")
    assert contents(first) == {"a.py": b"1", "b.py": b"same", "empty.py": b""}
    assert kept.scenario.rows("select sum(length(content)) from bundle_blob") == [(0,)]
    assert len(_objects(tmp_path / "code")) == 3
    with pytest.raises(PacelineError, match=r"bundles\.code_url is not set"):
        contents(first, None)

    second = publish(a=b"2", b=b"same")
    collect()
    assert contents(second) == {"a.py": b"2", "b.py": b"same"}
    assert len(_objects(tmp_path / "code")) == len(kept.scenario.rows("select from bundle_blob")) == 2

    # A deletion that ended between the object and its row.
    (gone,) = kept.scenario.rows("insert into bundle_blob values (sha256('3'), '') returning encode(digest, 'hex')")
    third = publish(a=b"3", b=b"same")
    assert contents(third)["a.py"] == b"3" and gone[0] in _objects(tmp_path / "code")

    # What is in the database stays there.
    kept.publish({"old.py": b"old"}, bundle="finance")
    other = transact(engine, bundles.publish, "finance", {"new.py": BundleFile(b"old")}, by="ada", code_url=url)
    assert contents(other) == {"new.py": b"old"}


@pytest.mark.parametrize("what", [b"nothing of ours", zlib.compress(b"other"), zlib.compress(b"x" * (64 << 20)), None])
def test_an_object_that_was_replaced_or_deleted_is_refused(kept: Bundles, tmp_path: Path, what: bytes | None) -> None:
    url, engine = str(tmp_path / "code"), kept.scenario.engine
    version = transact(engine, bundles.publish, "sales", {"a.py": BundleFile(b"1")}, by="ada", code_url=url)
    (path,) = (path for path in (tmp_path / "code").rglob("*") if path.is_file())
    if what is None:
        path.unlink()
    else:
        path.write_bytes(what)
    cached = StoredContents(lambda work: transact(engine, lambda connection: work(EngineReader(connection))), url)

    with pytest.raises(PacelineError, match=r"is not what was deployed|The store lacks 1 file"):
        BundleCache(tmp_path / "cache", cached, keep=1).path(version.id)


def test_a_version_whose_objects_cannot_be_stored_is_not_published(kept: Bundles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnreachableError, match=r"cannot be stored at bundles\.code_url"):
        transact(
            kept.scenario.engine, bundles.publish, "sales", {"a.py": BundleFile(b"1")}, by="ada", code_url=f"{tmp_path}/file/code"
        )
    assert kept.scenario.rows("select from bundle_blob") == kept.scenario.rows("select from bundle_version") == []
