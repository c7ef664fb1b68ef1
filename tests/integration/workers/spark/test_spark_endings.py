"""After any damage of a PySpark task to its warm JVM, the next task of the same pool child succeeds in its first try."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import spark_endings

from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Broker, Database

from ..conftest import Bench, opened

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1200)]

#: The others take minutes in all.
QUICK = (
    "stops_and_starts_another", "stops_the_jvm_process", "shuts_the_gateway_down", "removes_modules",
    "changes_what_sessions_share", "changes_the_shared_conf",
)  # fmt: skip
ENDINGS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.on_demand) for name in spark_endings.ENDINGS]


@pytest.fixture(scope="module")
def bench(postgres_server: Any, redis_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A bench for this file, with one worker of one child."""
    folder = tmp_path_factory.mktemp("endings")
    paths = Paths(home=folder / "home", dags_folder=folder / "dags")
    for path in (paths.home, paths.dags_folder):
        path.mkdir()
    with postgres_server.new_database() as url:
        broker = Broker(url=redis_server.new_database())
        with opened(Settings(paths=paths, database=Database(url=url), broker=broker), folder) as made:
            made.dag(Path(spark_endings.__file__).read_text())
            made.worker(queues="default,spark")
            yield made


@pytest.fixture(scope="module")
def usual(bench: Bench) -> dict[str, Any]:
    """The result of an ordinary task after another ordinary task."""
    return ordinary(bench, "nothing")


def ordinary(bench: Bench, name: str) -> dict[str, Any]:
    """The result of an ordinary task after this ending; it must need no second try."""
    run = bench.scenario.trigger("endings", run_id=name, conf={"ending": name})
    # Seldom: a JVM that starts needs the processors.
    bench.wait(run, timeout_s=2 * spark_endings.LONGEST.total_seconds(), interval_s=0.3)
    rows = bench.scenario.rows(
        "select t.state, t.try_number, t.reason, x.value from task_instance t"
        " left join xcom x on x.task_instance_id = t.id and x.key = 'return_value'"
        " where t.dag_run_id = %s and t.task_id = 'ordinary'",
        run,
    )
    ((state, tries, reason, value),) = rows
    assert (state, tries) == ("success", 1), f"{reason}\n{bench.output[-3000:]}"
    return dict(value)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_task_after_a_hostile_ending_succeeds_at_its_first_try_and_sees_nothing_of_it(
    bench: Bench, usual: dict[str, Any], ending: str
) -> None:
    assert ordinary(bench, ending) == usual
