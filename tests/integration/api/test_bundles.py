"""Bundles over the REST API: who may deploy, what an upload may hold, and what is shown of versions."""

import gzip
import io
import socket
import tarfile
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest
from support.bundle_parsing import BROKEN, GOOD, parse_next
from support.run_actions import clear_
from support.scenario import Scenario, dag
from support.waiting import eventually

from scheduler.api.call import PREFIX
from scheduler.dagfiles.bundle_files import read_archive, write_archive
from scheduler.settings import Settings
from scheduler.store.dags.bundles import BundleFile

from .conftest import Web


def packed(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    write_archive({path: BundleFile(content) for path, content in files.items()}, target)
    return target.getvalue()


def deploy(http: httpx.Client, archive: bytes | dict[str, bytes], bundle: str = "sales", **query: str) -> httpx.Response:
    content = packed(archive) if isinstance(archive, dict) else archive
    headers = {"Content-Type": "application/gzip"}
    return http.post(f"{PREFIX}/bundles/{bundle}/versions", content=content, headers=headers, params=query)


@pytest.fixture
def http(web: Web) -> Iterator[httpx.Client]:
    with web.http(web.account("ada", "admin")) as client:
        yield client


def test_a_deployed_version_is_shown_with_its_files_and_goes_live(web: Web, http: httpx.Client) -> None:
    answer = deploy(http, {"a.py": GOOD, "sql/q.sql": "select 'ü'".encode()}, message="First", origin="git@1")

    found = answer.json()
    assert answer.status_code == 200
    assert (found["version_number"], found["state"], found["is_wanted"], found["is_live"]) == (1, "new", True, False)
    assert (found["is_new"], found["added"], found["previous_version"]) == (True, ["a.py", "sql/q.sql"], None)
    assert (found["message"], found["origin"], found["created_by"]) == ("First", "git@1", "api:ada")

    parse_next(web.engine)

    get = lambda path: http.get(f"{PREFIX}/bundles{path}").json()  # noqa: E731
    version = get("/sales/versions/1")
    assert (version["state"], version["is_live"], version["dag_ids"]) == ("ready", True, ["a"])
    assert get("")["bundles"][0] | {"live_at": None} == {
        "bundle_name": "sales", "live_version": 1, "wanted_version": 1, "wanted_state": "ready", "live_at": None,
        "message": "First",
        "origin": "git@1", "created_by": "api:ada", "source": None, "problem": None, "version_count": 1, "dag_count": 1,
    }  # fmt: skip
    files = get("/sales/versions/1/files")["bundle_files"]
    assert [(file["path"], file["byte_count"]) for file in files] == [("a.py", 4), ("sql/q.sql", 11)]
    assert get("/sales/versions/1/files/sql/q.sql") == {
        "path": "sql/q.sql", "content": "select 'ü'", "byte_count": 11, "is_complete": True,
    }  # fmt: skip
    plain = http.get(f"{PREFIX}/bundles/sales/versions/1/files/a.py", headers={"Accept": "text/plain"})
    assert plain.text == "DAG\n"
    missing = http.get(f"{PREFIX}/bundles/sales/versions/1/files/etc/passwd")
    assert (missing.status_code, "has no file" in missing.json()["detail"]) == (404, True)


def test_a_version_is_downloaded_as_it_was_deployed(web: Web, http: httpx.Client) -> None:
    files = {"a.py": GOOD, "data/numbers": bytes(range(256))}
    deploy(http, files)

    answer = http.get(f"{PREFIX}/bundles/sales/versions/1/archive")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/gzip")
    found = read_archive(io.BytesIO(answer.content), web.settings.bundles)
    assert {path: file.content for path, file in found.items()} == files
    assert http.get(f"{PREFIX}/bundles/sales/versions/2/archive").status_code == 404
    with web.engine.begin() as connection:
        connection.exec_driver_sql("update bundle_blob set content = %s", (zlib.compress(b"other"),))
    tampered = http.get(f"{PREFIX}/bundles/sales/versions/1/archive")
    assert "a.py is not what was deployed" in tampered.json()["detail"]


def test_facts_for_a_plan_need_the_right_to_deploy_and_are_not_audited(web: Web, http: httpx.Client, scenario: Scenario) -> None:
    scenario.add(dag("local", {"t": []}))
    deploy(http, {"a.py": GOOD})
    parse_next(web.engine)
    names = {"dags": ["a", "local", "new"], "pools": ["big"], "queues": [], "connections": ["db"], "assets": []}
    statuses = {}
    for name, rights in {"viewer": {"role": "viewer"}, "own": {"tags": {"bundle:sales": "operator"}}}.items():
        with web.http(web.account(name, **rights)) as other:
            statuses[name] = [
                other.post(f"{PREFIX}/bundles/sales/plan", json=names).status_code,
                other.get(f"{PREFIX}/bundles/sales/versions/1/archive").status_code,
            ]

    facts = http.post(f"{PREFIX}/bundles/sales/plan", json=names).json()

    assert statuses == {"viewer": [403, 403], "own": [200, 200]}
    assert (facts["live_version"], list(facts["dags"]), list(facts["known"])) == (1, ["a"], ["a"])
    assert facts["owners"] == [{"dag_id": "local", "bundle": None, "file": "local.py"}]
    assert (facts["missing"]["pools"], facts["missing"]["connections"]) == (["big"], ["db"])
    with web.engine.connect() as connection:
        assert connection.exec_driver_sql("select event from audit where status < 400").scalars().all() == ["bundles.deploy"]


def test_a_second_version_is_compared_and_rolled_back(web: Web, http: httpx.Client) -> None:
    deploy(http, {"a.py": GOOD, "b.py": GOOD, "lib.py": b"1"})
    parse_next(web.engine)
    second = deploy(http, {"a.py": GOOD + b"2", "c.py": GOOD, "lib.py": b"1"}).json()
    parse_next(web.engine)

    assert (second["added"], second["changed"], second["removed"]) == (["c.py"], ["a.py"], ["b.py"])
    assert (second["version_number"], second["previous_version"]) == (2, 1)
    changes = http.get(f"{PREFIX}/bundles/sales/versions/2/changes", params={"since": 1}).json()
    assert changes == {
        "files": {"added": ["c.py"], "changed": ["a.py"], "removed": ["b.py"]},
        "dags": {"added": ["c"], "changed": ["a"], "removed": ["b"]},
    }
    all_added = http.get(f"{PREFIX}/bundles/sales/versions/1/changes").json()
    assert all_added["dags"] == {"added": ["a", "b"], "changed": [], "removed": []}

    back = http.post(f"{PREFIX}/bundles/sales/rollback", json={})
    assert (back.status_code, back.json()["version_number"], back.json()["previous_version"]) == (200, 1, 2)
    parse_next(web.engine)
    versions = http.get(f"{PREFIX}/bundles/sales/versions").json()["bundle_versions"]
    assert [(row["version_number"], row["is_live"]) for row in versions] == [(2, False), (1, True)]
    assert http.post(f"{PREFIX}/bundles/sales/rollback", json={"version_number": 7}).status_code == 404
    assert http.post(f"{PREFIX}/bundles/other/rollback", json={}).status_code == 404


def test_a_version_with_an_error_does_not_go_live(web: Web, http: httpx.Client) -> None:
    deploy(http, {"a.py": GOOD})
    parse_next(web.engine)
    deploy(http, {"a.py": GOOD, "b.py": BROKEN})
    parse_next(web.engine)

    version = http.get(f"{PREFIX}/bundles/sales/versions/2").json()

    assert (version["state"], version["is_live"]) == ("refused", False)
    assert version["problems"] == [{"file": "b.py", "line": 2, "message": "NameError: broken"}]
    assert http.get(f"{PREFIX}/bundles/sales").json()["live_version"] == 1


def test_a_bundle_that_schedulers_read_is_not_deployed(web: Web, http: httpx.Client) -> None:
    deploy(http, {"a.py": GOOD})
    with web.engine.begin() as connection:
        connection.exec_driver_sql("""update bundle set source = '{"title": "git+https://example.org/etl.git"}'""")

    answer = deploy(http, {"a.py": GOOD + b"2"})
    folder = deploy(http, {"a.py": GOOD}, bundle="dags-folder")
    back = http.post(f"{PREFIX}/bundles/dags-folder/rollback", json={})

    assert (answer.status_code, "is read from git+https://example.org/etl.git" in answer.json()["detail"]) == (409, True)
    assert (folder.status_code, back.status_code) == (400, 400)


def test_dags_versions_and_runs_name_their_bundle(web: Web, http: httpx.Client, scenario: Scenario) -> None:
    """The source of a DAG is that of its version, whatever is in the DAGs folder."""
    scenario.add(dag("local", {"t": []}))
    scenario.settings.dags_folder.joinpath("a.py").write_text("of the DAGs folder")
    deploy(http, {"a.py": GOOD, "b.py": GOOD})
    parse_next(web.engine)
    deploy(http, {"a.py": GOOD + b"2", "b.py": GOOD})
    parse_next(web.engine)
    scenario.trigger("a", run_id="one")

    get = lambda path, **query: http.get(f"{PREFIX}{path}", params=query).json()  # noqa: E731
    shown = {row["dag_id"]: (row["bundle_name"], row["bundle_version"]) for row in get("/dags")["dags"]}
    assert shown == {"a": ("sales", "2"), "b": ("sales", "1"), "local": ("dags-folder", None)}
    assert [row["dag_id"] for row in get("/dags", bundle_name="sales")["dags"]] == ["a", "b"]
    assert [row["dag_id"] for row in get("/dags", bundle_name="dags-folder")["dags"]] == ["local"]
    assert [row["dag_id"] for row in get("/dags", bundle_name="sales", bundle_version="2")["dags"]] == ["a"]
    versions = get("/dags/a/dagVersions", order_by="bundle_version")["dag_versions"]
    assert [(row["bundle_name"], row["bundle_version"]) for row in versions] == [("sales", "1"), ("sales", "2")]
    (run,) = get("/dags/a/dagRuns")["dag_runs"]
    assert (run["bundle_version"], run["dag_versions"][0]["bundle_name"]) == ("2", "sales")
    scenario.trigger("local", run_id="other")
    for query, expected in (
        ({"bundle_name": "sales"}, ["one"]), ({"bundle_name": "sales", "bundle_version": "2"}, ["one"]),
        ({"bundle_name": "sales", "bundle_version": "1"}, []), ({"bundle_name": "dags-folder"}, ["other"]),
    ):  # fmt: skip
        assert [row["dag_run_id"] for row in get("/dags/~/runList", **query)["dag_runs"]] == expected
    assert get("/dags/a/details")["latest_dag_version"]["bundle_version"] == "2"
    assert (get("/dagSources/a")["content"], get("/dagSources/a", version_number=1)["content"]) == ("DAG\n2", "DAG\n")
    assert [row["run_count"] for row in get("/bundles/sales/versions")["bundle_versions"]] == [1, 0]

    scenario.run_to_end()
    deploy(http, {"a.py": GOOD + b"3", "b.py": GOOD})
    parse_next(web.engine)
    clear_(scenario, dag_id="a", run_id="one", latest=True)
    scenario.run_to_end()
    (run,) = get("/dags/a/dagRuns")["dag_runs"]
    assert [row["bundle_version"] for row in run["dag_versions"]] == ["2", "3"]
    (task,) = get("/dags/a/dagRuns/one/taskInstances")["task_instances"]
    tries = get(f"/dags/a/dagRuns/one/taskInstances/{task['task_id']}/tries")["task_instances"]
    assert [row["dag_version"]["bundle_version"] for row in tries] == ["2", "3"]


def test_a_stored_version_has_a_plan(web: Web, http: httpx.Client) -> None:
    plan = lambda **query: http.get(f"{PREFIX}/bundles/sales/plan", params=query)  # noqa: E731
    deploy(http, {"a.py": GOOD, "b.py": GOOD}, message="First")
    assert (plan().status_code, "No scheduler has parsed version 1" in plan().json()["detail"]) == (409, True)
    parse_next(web.engine)
    deploy(http, {"a.py": GOOD, "c.py": BROKEN})
    parse_next(web.engine)

    first, newest = plan(version_number=1).json(), plan().json()

    assert [(dag["dag_id"], dag["change"]) for dag in first["dags"]] == [("a", "added"), ("b", "added")]
    assert (first["live_version"], first["version_number"], first["since"], first["problems"]) == (1, 1, None, [])
    assert (newest["version_number"], newest["since"], newest["dags"]) == (2, 1, [])
    assert newest["problems"] == [{"file": "c.py", "line": 2, "message": "NameError: broken"}]
    assert newest["files"] == {"added": ["c.py"], "changed": [], "removed": ["b.py"]}
    assert [(each["version_number"], each["state"], each["message"]) for each in newest["versions"]] == [
        (2, "refused", ""), (1, "ready", "First"),
    ]  # fmt: skip
    assert http.get(f"{PREFIX}/bundles/sales/versions/2").json()["dag_ids"] == []
    back = plan(version_number=1, since=2).json()
    assert [(dag["dag_id"], dag["change"]) for dag in back["dags"]] == [("b", "added")]
    assert [plan(version_number=9).status_code, http.get(f"{PREFIX}/bundles/none/plan").status_code] == [404, 404]
    with web.http(web.account("other", tags={"bundle:other": "operator"})) as other:
        assert other.get(f"{PREFIX}/bundles/sales/plan").status_code == 403


def test_to_deploy_needs_the_role_on_the_bundle(web: Web) -> None:
    statuses = {}
    for name, rights in {
        "viewer": {"role": "viewer"}, "operator": {"role": "operator"}, "admin": {"role": "admin"},
        "own": {"tags": {"bundle:sales": "operator"}}, "reader": {"tags": {"bundle:sales": "viewer"}},
        "other": {"tags": {"bundle:other": "operator"}},
        "both": {"role": "operator", "tags": {"bundle:sales": "operator"}},
    }.items():  # fmt: skip
        with web.http(web.account(name, **rights)) as http:
            answer = deploy(http, {"a.py": GOOD})
            shown = http.get(f"{PREFIX}/bundles/sales")
            statuses[name] = (answer.status_code, shown.status_code)
            if answer.status_code == 403:
                assert "role operator on this bundle by its tag bundle:<name>, or the role admin" in answer.json()["detail"]

    assert statuses == {
        "viewer": (403, 404), "operator": (403, 404), "admin": (200, 200), "own": (200, 200), "reader": (403, 200),
        "other": (403, 403), "both": (200, 200),
    }  # fmt: skip


def test_the_operator_of_one_bundle_has_no_way_into_another(web: Web, http: httpx.Client) -> None:
    deploy(http, {"a.py": GOOD})
    parse_next(web.engine)
    sales = f"{PREFIX}/bundles/sales"
    names = {"dags": [], "pools": [], "queues": [], "connections": [], "assets": []}
    for number, tags in enumerate(("bundle:other", "sales", "bundle:", "bundle:*", "bundle:Sales", "bundle:sales ")):
        with web.http(web.account(f"eve{number}", tags={tags: "operator"})) as eve:
            answers = [
                deploy(eve, {"a.py": GOOD + b"2"}), eve.post(f"{sales}/rollback", json={}), eve.post(f"{sales}/plan", json=names),
                *(eve.get(f"{sales}{path}") for path in ("", "/plan", "/versions", "/versions/1", "/versions/1/archive",
                                                         "/versions/1/files", "/versions/1/files/a.py", "/versions/1/changes")),
                *(deploy(eve, {"a.py": GOOD}, bundle=name) for name in ("other%2F..%2Fsales", "sales%00", "%20sales", "o;sales")),
            ]  # fmt: skip
            assert {answer.status_code for answer in answers} <= {400, 403, 404}, tags
    with web.http(web.account("mallory", tags={"bundle:other": "operator"})) as mallory:
        assert deploy(mallory, {"a.py": GOOD}, bundle="other").status_code == 200
        taken = parse_next(web.engine)
        assert mallory.post(f"{PREFIX}/bundles/other/rollback", json={"version_number": 1}).status_code == 200
        parse_next(web.engine)

    assert taken is not None and not taken.is_live
    assert "DAG 'a' is in a.py of bundle sales and in a.py of bundle other; a.py of bundle sales" in taken.problems[0][1].message
    with web.engine.connect() as connection:
        rows = connection.exec_driver_sql("select d.bundle, v.number from dag d join bundle_version v on v.bundle = d.bundle").all()
        assert [tuple(row) for row in rows] == [("sales", 1)]


def test_the_audit_log_has_who_from_where_and_what_changed(web: Web, http: httpx.Client) -> None:
    deploy(http, {"a.py": GOOD, "b.py": GOOD}, message="First", origin="https://example.org/etl@1")
    parse_next(web.engine)
    deploy(http, {"a.py": GOOD + b"2"}, message="Second")
    parse_next(web.engine)
    http.post(f"{PREFIX}/bundles/sales/rollback", json={})
    with web.http(web.account("eve", "viewer")) as other:
        deploy(other, {"a.py": b"bad"})

    deploy(http, b"no archive")

    with web.engine.connect() as connection:
        rows = connection.exec_driver_sql("select account, address, event, status, extra from audit order by id").all()
    here = "127.0.0.1"
    assert [tuple(row)[:4] for row in rows] == [
        ("ada", here, "bundles.deploy", 200), ("ada", here, "bundles.deploy", 200), ("ada", here, "bundles.rollback", 200),
        ("eve", here, "bundles.deploy", 403), ("ada", here, "bundles.deploy", 400),
    ]  # fmt: skip
    extras = [row.extra for row in rows]
    assert extras[0] | {"digest": ""} == {
        "bundle_name": "sales", "version_number": 1, "previous_version": None, "digest": "", "message": "First",
        "origin": "https://example.org/etl@1", "added": 2, "changed": 0, "removed": 0, "files": ["+ a.py", "+ b.py"],
    }  # fmt: skip
    assert extras[1]["files"] == ["~ a.py", "- b.py"]
    assert [extras[1][kind] for kind in ("added", "changed", "removed", "previous_version")] == [0, 1, 1, 1]
    assert (extras[2]["version_number"], extras[2]["previous_version"]) == (1, 2)
    assert (extras[2]["files"], extras[2]["dags"]) == (["+ b.py", "~ a.py"], ["+ b", "~ a"])
    assert [extras[2][kind] for kind in ("added", "changed", "removed")] == [1, 1, 0]


def _tar(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, link
        archive.addfile(entry)
    return target.getvalue()


@pytest.mark.parametrize(
    ("archive", "status", "says"),
    [
        (b"", 400, "no tar.gz archive"),
        (b"PK\x03\x04 a zip archive", 400, "no tar.gz archive"),
        (packed({"a.py": GOOD * 1000})[:100], 400, "no tar.gz archive"),
        (packed({}), 400, "no files to deploy"),
        (_tar("../a.py"), 400, "leads out of the bundle"),
        (_tar("link", tarfile.SYMTYPE, "/etc/passwd"), 400, "is a link"),
        (_tar("two\nlines"), 400, "a line break"),
        (_tar("x" * 250), 400, "is too long"),
        (gzip.compress(b"\0" * (200 << 20), 9), 413, "which no bundle may have"),
    ],
    ids=["empty", "zip", "cut off", "no files", "outward", "link", "line break", "250 characters", "bomb"],
)
def test_a_bad_upload_is_refused_with_an_error_message(http: httpx.Client, archive: bytes, status: int, says: str) -> None:
    answer = deploy(http, archive)

    assert (answer.status_code, says in answer.json()["detail"]) == (status, True), answer.text
    assert http.get(f"{PREFIX}/bundles").json()["total_entries"] == 0


@pytest.mark.parametrize("bundle", ["two words", "a" * 101, "ü", "a\nb", "-rollback", ".hidden", "%2E%2E", "..."])
def test_a_bad_name_is_refused(http: httpx.Client, bundle: str) -> None:
    answer = deploy(http, {"a.py": GOOD}, bundle=bundle.replace(" ", "%20").replace("\n", "%0A"))

    assert (answer.status_code, "name of a bundle" in answer.json()["detail"]) == (400, True)
    assert deploy(http, {"a.py": GOOD}, message="x" * 1001).status_code == 422
    assert deploy(http, {"a.py": GOOD}, message="a\0b").status_code == 400


def test_an_upload_has_its_own_limit(make_web: Callable[..., Web], settings: Settings) -> None:
    """Larger than other requests may be, and of any bytes; one above it is refused before it is read."""
    limits = settings.bundles.model_copy(update={"max_files": 10, "max_bytes": 300_000})
    web = make_web(settings.model_copy(update={"bundles": limits}), max_request_bytes=70_000)
    brackets = {"a.py": GOOD, "data": bytes(range(256)) * 1000}
    with web.http(web.account("ada", "admin")) as http:
        assert deploy(http, brackets).status_code == 200
        large = gzip.compress(b"[" * 100, 0) + b"[" * 400_000

        answer = deploy(http, large)
        unannounced = http.post(f"{PREFIX}/bundles/sales/versions", content=iter([large]))
        many = deploy(http, {f"{number}.py": b"" for number in range(11)})
        other = http.post(f"{PREFIX}/bundles/sales/rollback", content=b" " * 100_000)

    assert (answer.status_code, unannounced.status_code, many.status_code, other.status_code) == (413, 413, 413, 413)
    assert "bundles.max_bytes allows" in answer.json()["detail"] and "bundles.max_files" in many.json()["detail"]
    assert "web.max_request_bytes" in other.json()["detail"]
    with web.http() as http:
        assert deploy(http, large).status_code == 401


def test_a_large_upload_that_is_refused_gets_its_answer(web: Web) -> None:
    with web.http(web.account("eve", "viewer")) as http:
        assert deploy(http, b"x" * (20 << 20)).status_code == 403


def test_an_upload_that_is_cut_off_stores_nothing(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    token, archive = web.account("ada", "admin"), packed({"a.py": GOOD})
    with socket.create_connection(("127.0.0.1", int(web.url.rpartition(":")[2])), timeout=10) as client:
        head = f"POST {PREFIX}/bundles/sales/versions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        client.sendall(f"{head}Content-Length: {len(archive) + 100}\r\n\r\n".encode() + archive)

    def status() -> int | None:
        with web.engine.connect() as connection:
            return connection.exec_driver_sql("select status from audit where event = 'bundles.deploy'").scalar_one_or_none()

    eventually(lambda: status() is not None, timeout=30)
    assert status() == 400
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
    with web.http(token) as http:
        assert http.get(f"{PREFIX}/bundles").json()["total_entries"] == 0
