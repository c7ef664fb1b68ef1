"""Bundle versions with a real database: schedulers parse them, and make those without errors live."""

import functools
import logging
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually

from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.dagfiles.bundles import BundleManager
from scheduler.messaging.brokers import client
from scheduler.messaging.wakeups import BUNDLES_KEY, KEY, Wakeups
from scheduler.settings import Settings
from scheduler.store.dags import bundle_versions, bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db.database import transact

from .conftest import Files, source


class Deployment:
    """Bundles, and the managers of schedulers with disks of their own."""

    def __init__(self, files: Files, disks: Path) -> None:
        self.files = files
        self.engine = files.engine
        self.disks = disks
        self.managers: list[BundleManager] = []

    def manager(self, name: str = "a", **options: Any) -> BundleManager:
        sections: dict[str, Any] = {
            key: getattr(self.files.settings, key).model_copy(update=value)
            for key, value in options.items()
            if isinstance(value, dict)
        }
        settings = self.files.settings.model_copy(update=sections)
        cache = BundleCache(self.disks / name, StoredContents.over(functools.partial(transact, self.engine), settings), keep=4)
        others = {key: value for key, value in options.items() if not isinstance(value, dict)}
        manager = BundleManager(self.engine, settings, lambda: name, cache, **others)
        self.managers.append(manager)
        return manager

    def publish(self, bundle: str = "sales", **content: str) -> bundles.Published:
        files = {name.replace("__", "/") + ".py": BundleFile(text.encode()) for name, text in content.items()}
        return transact(self.engine, bundles.publish, bundle, files, by="somebody")

    def live(self) -> dict[str, int]:
        """The number of the live version of each bundle."""
        rows = self.files.rows("select b.name, v.number from bundle b join bundle_version v on v.id = b.version_id")
        return dict(rows)  # type: ignore[arg-type]

    def dags(self) -> dict[str, str | None]:
        """The active DAGs with their bundles."""
        return dict(self.files.rows("select dag_id, bundle from dag where is_active order by 1"))  # type: ignore[arg-type]


@pytest.fixture
def deployment(files: Files, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(files, tmp_path / "disks")
    yield deployment
    for manager in deployment.managers:
        manager.stop()


def test_a_version_is_live_with_all_its_dags_once_they_are_parsed(deployment: Deployment) -> None:
    deployment.publish(a=source("a"), team__b="from team.names import NAME\n" + source("b"), team__names="NAME = 'b'\n")
    manager = deployment.manager()

    live = manager.run_once()

    assert live is not None and live.is_live and sorted(live.changed) == ["a", "b"]
    assert deployment.dags() == {"a": "sales", "b": "sales"} and deployment.live() == {"sales": 1}
    assert manager.run_once() is None

    deployment.publish(a=source("a", task_id="two"))
    live = manager.run_once()
    assert live is not None and sorted(live.changed) == ["a", "b"]
    assert deployment.dags() == {"a": "sales"} and deployment.live() == {"sales": 2}


def test_a_version_with_an_error_is_refused_by_file_and_line_and_the_live_one_stays(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    deployment.publish(a=source("a"))
    manager = deployment.manager()
    manager.run_once()
    deployment.publish(a=source("a", task_id="two"), b="from paceline import DAG\n\n1 / 0\n")

    with caplog.at_level(logging.WARNING):
        live = manager.run_once()

    assert live is not None and not live.is_live and deployment.live() == {"sales": 1} and deployment.dags() == {"a": "sales"}
    problems = deployment.files.rows("select state, problems from bundle_version where number = 2")[0]
    assert problems[0] == "refused" and [(one["file"], one["line"]) for one in problems[1]] == [("b.py", 3)]
    assert "ZeroDivisionError" in problems[1][0]["message"]
    assert any("Version 2 of bundle sales is refused: b.py, line 3: " in record.getMessage() for record in caplog.records)
    assert manager.run_once() is None


@pytest.mark.parametrize(
    "code",
    ["import os\nos._exit(3)  # dag paceline\n", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)  # dag paceline\n"],
)
def test_a_file_that_ends_its_process_refuses_its_version_only(deployment: Deployment, code: str) -> None:
    deployment.publish("broken", b=code)
    deployment.publish("sales", a=source("a"))
    manager = deployment.manager()

    assert manager.run_once() is not None and manager.run_once() is not None

    assert deployment.live() == {"sales": 1} and deployment.dags() == {"a": "sales"}


def test_an_id_of_another_bundle_or_of_the_dags_folder_is_an_error_that_names_both(deployment: Deployment) -> None:
    deployment.files.write("local.py", source("local"))
    deployment.files.read_all(deployment.files.manager())
    deployment.publish("sales", a=source("a"))
    manager = deployment.manager()
    manager.run_once()

    deployment.publish("risk", x=source("a"))
    first = manager.run_once()
    deployment.publish("fraud", y=source("local"))
    second = manager.run_once()

    assert first is not None and second is not None and deployment.live() == {"dags-folder": 1, "sales": 1}
    assert "'a' is in a.py of bundle sales and in x.py of bundle risk" in first.problems[0][1].message
    assert "'local' is in local.py and in y.py of bundle fraud" in second.problems[0][1].message


def test_ignored_and_hidden_files_and_modules_are_no_dag_files(deployment: Deployment) -> None:
    published = {
        "a.py": source("a"), "lib/helpers.py": "x = 1\n", ".airflowignore": "old\n", "old/b.py": source("b"),
        ".git/c.py": source("c"),
    }  # fmt: skip
    files = {name: BundleFile(text.encode()) for name, text in published.items()}
    transact(deployment.engine, bundles.publish, "sales", files, by="somebody")

    deployment.manager().run_once()

    assert deployment.dags() == {"a": "sales"}


def test_two_schedulers_parse_different_versions_and_none_twice(deployment: Deployment) -> None:
    names = [f"b{number}" for number in range(6)]
    for name in names:
        deployment.publish(name, dag=source(name))
    managers = [deployment.manager(name) for name in "ab"]
    for manager in managers:
        manager.start()

    eventually(lambda: deployment.live() == dict.fromkeys(names, 1), timeout=60)

    by = deployment.files.rows("select bundle, count(*) from dag group by 1 order by 1")
    assert by == [(name, 1) for name in names]
    assert deployment.files.rows("select count(*) from dag_version") == [(6,)]


def test_the_version_of_a_killed_scheduler_is_parsed_by_another_and_the_late_result_counts_nothing(deployment: Deployment) -> None:
    published = deployment.publish(a=source("a"))
    killed = transact(deployment.engine, bundle_versions.claim, claimed_by="killed", lease_s=60)
    assert killed is not None and killed.id == published.id
    manager = deployment.manager()
    assert manager.run_once() is None

    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("update bundle_version set claimed_until = clock_timestamp()")
    live = manager.run_once()

    assert live is not None and live.is_live
    late = transact(deployment.engine, bundle_versions.record, published.id, [], claimed_by="killed")
    assert not late.is_live and deployment.dags() == {"a": "sales"}


def test_a_scheduler_that_lost_its_claim_while_parsing_stops(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment.publish(a=source("a"), b="import time  # dag paceline\ntime.sleep(600)\n")
    monkeypatch.setattr("scheduler.dagfiles.bundles.RENEW_S", 0.0)
    with ThreadPoolExecutor(1) as threads:
        parsing = threads.submit(deployment.manager().run_once)
        eventually(lambda: deployment.files.rows("select 1 from bundle_version where claimed_by = 'a'"), timeout=30)
        with deployment.engine.begin() as connection:
            connection.exec_driver_sql("update bundle_version set claimed_by = 'another'")
        live = parsing.result(60)

    assert live is not None and not live.is_live and not live.problems and deployment.live() == {}


def test_an_error_of_the_database_while_files_are_parsed_ends_with_the_next_iteration(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists():\n    time.sleep(0.02)\n"
    deployment.publish(a=source("a") + wait)
    monkeypatch.setattr("scheduler.dagfiles.bundles.RENEW_S", 0.0)
    manager = deployment.manager(scheduler={"scheduler_idle_sleep_time": 0.05})
    manager.start()
    eventually(lambda: deployment.files.rows("select 1 from bundle_version where claimed_by = 'a'"), timeout=30)
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("alter table bundle_version rename to away")
    eventually(lambda: "An iteration over the bundles failed" in caplog.text, timeout=30)

    (tmp_path / "go").touch()
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("alter table away rename to bundle_version")
        connection.exec_driver_sql("update bundle_version set claimed_until = null")

    eventually(lambda: deployment.live() == {"sales": 1}, timeout=60)


def test_a_version_without_a_dag_file_is_refused(deployment: Deployment) -> None:
    deployment.publish(a=source("a"))
    manager = deployment.manager()
    manager.run_once()
    deployment.publish(lib__names="x = 1\n")

    live = manager.run_once()

    assert live is not None and not live.is_live and deployment.dags() == {"a": "sales"}
    assert live.problems[0][1].message == "The bundle has no DAG file: name the folder with the DAG files."


def test_a_content_that_was_changed_in_the_store_is_refused_by_name(deployment: Deployment) -> None:
    deployment.publish(a=source("a"))
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("update bundle_blob set content = %s", (zlib.compress(b"other"),))

    live = deployment.manager().run_once()

    assert live is not None and not live.is_live and "a.py" in live.problems[0][1].message


def test_a_publisher_wakes_a_scheduler_and_a_live_version_wakes_planning(deployment: Deployment, settings: Settings) -> None:
    woken = {"wakeups": Wakeups(settings), "own_wakeups": Wakeups(settings, BUNDLES_KEY)}
    # It would poll after an hour.
    manager = deployment.manager(scheduler={"scheduler_idle_sleep_time": 3600}, **woken)
    manager.start()
    broker = client(settings.broker_url)
    eventually(lambda: broker.info("clients")["blocked_clients"], timeout=30)

    deployment.publish(a=source("a"))
    Wakeups(settings).wake_parsers()

    eventually(lambda: deployment.live() == {"sales": 1}, timeout=30)
    eventually(lambda: broker.zscore(KEY, "plan") is not None, timeout=30)


def test_a_failed_iteration_is_repeated(deployment: Deployment, caplog: pytest.LogCaptureFixture) -> None:
    deployment.publish(a=source("a"))
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("alter table bundle rename to away")
    manager = deployment.manager(scheduler={"scheduler_idle_sleep_time": 0.05})
    manager.start()
    eventually(lambda: "An iteration over the bundles failed" in caplog.text, timeout=30)

    with deployment.engine.begin() as connection:
        connection.exec_driver_sql("alter table away rename to bundle")

    eventually(lambda: deployment.live() == {"sales": 1}, timeout=60)
    assert manager.complaint(time.monotonic()) is None
