"""Warm sessions of real Spark on the catalog of a try, for the files of tests that use them."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from paceline.states import TaskState
from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Tables as TablesSettings
from scheduler.store.worker.claims import Claim, Ending
from support.table_fixtures import lake, settings
from support.tables import Lake
from workers.spark import conf, iceberg
from workers.spark.sessions import session, session_pool
from workers.spark.sessions.session_pool import WarmJvm
from workers.tables import access
from workers.task.follow import DatabaseStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Task", "jvm", "lake", "settings"]

#: A folder with the jar of Iceberg for the installed Spark. Without it, spark-submit fetches the jar into a folder of this session.
JARS = "PACELINE_TEST_ICEBERG_JARS"
#: The catalog starts threads in this process. For a worker, it is another process.
THREADS = "a thread of an ended task may still use it"


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmJvm]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = Settings(
        paths=Paths(home=tmp_path_factory.mktemp("home")), tables=TablesSettings(spark_jars=os.environ.get(JARS, ""))
    )
    jvm_conf = conf.merged(settings, {"spark.ui.enabled": "true", "spark.ui.port": "0"})
    try:
        jvm_conf |= iceberg.jvm_conf(settings, jvm_conf)
    except iceberg.JarsMissingError as missing:
        pytest.skip(f"{missing} Tests find them in the folder {JARS}.")
    warm = session_pool.start(jvm_conf, {}, settings.spark)
    yield warm
    session_pool.end(warm)


class Task:
    """A running task instance with a session."""

    def __init__(
        self, lake: Lake, jvm: WarmJvm, dag_id: str, claim: Claim | None = None, own: Mapping[str, str] | None = None
    ) -> None:
        self.lake, self.jvm = lake, jvm
        self.claim = claim or lake.claim(dag_id)
        access.serve_at(lake.uri)
        self.store = DatabaseStore(lake.scenario.settings, lake.scenario.hot, lake.scenario.follower)
        given = self.store.tables(self.claim)
        self.token = given.token
        self.conf = iceberg.session_conf(given, own or {}) | dict(own or {})

    def run(self, work: "Callable[[SparkSession], Any]") -> Any:
        with session.opened(self.jvm, self.conf, name="test") as spark:
            result = work(spark)
        if self.jvm.unfit == THREADS:
            self.jvm.unfit = None
        return result

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run the statements in one session; the rows of the last."""
        return self.run(lambda spark: [tuple(row) for row in [spark.sql(one) for one in statements][-1].collect()])

    def ends(self, state: TaskState = TaskState.SUCCESS) -> None:
        assert self.store.report(self.claim, Ending(state, delay_s=0)).is_stored
