"""The runs of other DAGs that a task triggers over its tries, and values that it pulls from other runs."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from support import conformance
from support.conformance import Case
from support.scenario import Scenario, dag, pool_process
from support.waiting import eventually

from paceline.exceptions import ConflictError, StaleTryError
from paceline.states import TaskState as S
from scheduler.store.actions import clear
from scheduler.store.dags import assets
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.runs import manual_runs
from scheduler.store.runs.selection import Runs, Tasks
from scheduler.store.worker import claims
from scheduler.store.worker.claims import Claim, Ending
from workers.task import triggered_runs


@pytest.fixture
def first(scenario: Scenario) -> Claim:
    """The first try of a task with retries, beside a DAG that it can trigger."""
    scenario.add(dag("child", {"c": []}))
    scenario.triggered(dag("parent", {"t": []}, task={"retries": 5}), run_id="p")
    return claimed(scenario)


def claimed(scenario: Scenario) -> Claim:
    scenario.turn()
    [claim] = [claim for message in scenario.messages() if (claim := scenario.claim(message)) and claim.dag_id == "parent"]
    return claim


def retried(scenario: Scenario, claim: Claim) -> Claim:
    """The try after one that has failed, or whose worker was lost."""
    assert scenario.follower.report(claim, Ending(S.UP_FOR_RETRY, delay_s=0.0)).is_stored
    return claimed(scenario)


def trigger(
    scenario: Scenario, claim: Claim, run_id: str | None = None, *, adopt_unless: Collection[str] | None = ("failed",), **more: Any
) -> str:
    return triggered_runs.trigger(
        scenario.settings, "child", run_id=run_id, claim=claim, hot=scenario.hot, versions=Versions(),
        created=scenario.follower.created, adopt_unless=adopt_unless,
        **{"logical_date": None, "conf": {}, "reset": False, "patient": lambda ask: ask(), **more},
    )  # fmt: skip


def test_a_child_is_created_over_the_connection_of_the_hot_path(scenario: Scenario, first: Claim) -> None:
    """A new connection would have to read the catalog and plan every statement again."""
    own = "select pid, application_name from pg_stat_activity where datname = current_database() order by 1"
    before = scenario.rows(own)

    for name in ("one", "two"):
        assert trigger(scenario, first, name, adopt_unless=None) == name
        with pytest.raises(ConflictError):
            trigger(scenario, first, name, adopt_unless=None)

    assert scenario.rows(own) == before
    assert scenario.hot.now() is not None, "it still commits each statement"
    assert scenario.rows("select actor from event where from_state is null and actor = %s", scenario.worker_id) != []
    assert scenario.rows("select 1 from pg_stat_activity where state like 'idle in%%'") == []


def test_a_child_is_created_over_a_new_connection_after_a_lost_one(scenario: Scenario, first: Claim) -> None:
    trigger(scenario, first, "one", adopt_unless=None)
    scenario.sql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'paceline task'")
    attempts: list[str] = []

    def repeated(ask: Callable[[], str]) -> str:
        for _ in range(3):
            try:
                return ask()
            except psycopg2.Error as error:
                attempts.append(str(error))
        raise AssertionError(attempts)

    assert trigger(scenario, first, "two", adopt_unless=None, patient=repeated) == "two"
    assert attempts, "the first attempt found the connection closed"


def test_the_first_task_of_the_child_is_sent_by_the_task_that_triggers_it(scenario: Scenario, first: Claim) -> None:
    trigger(scenario, first)

    (message,) = scenario.messages()
    claim = scenario.claim(message)
    assert claim is not None and (claim.dag_id, claim.task_id) == ("child", "c")
    assert scenario.rows("select queued_by from task_instance where state = 'running' and task_id = 'c'") == [(scenario.worker_id,)]


def children(scenario: Scenario) -> list[tuple[Any, ...]]:
    return scenario.rows("select run_id, state, conf from dag_run where dag_id = 'child' order by id")


def ended(scenario: Scenario, state: str) -> None:
    scenario.sql("update dag_run set state = %s, started_at = now(), ended_at = now() where dag_id = 'child'", state)
    scenario.sql(
        "update task_instance set state = %s, ended_at = now(), dispatch_id = null"
        " where dag_run_id in (select id from dag_run where dag_id = 'child')",
        state,
    )


@pytest.mark.parametrize("run_id", [None, "fixed"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_retry_continues_with_the_run_of_the_earlier_try(
    scenario: Scenario, first: Claim, run_id: str | None, reset: bool
) -> None:
    made = trigger(scenario, first, run_id, reset=reset)
    second = retried(scenario, first)

    assert trigger(scenario, second, run_id, reset=reset) == made
    assert len(children(scenario)) == 1
    ended(scenario, "success")
    assert trigger(scenario, retried(scenario, second), run_id, reset=reset) == made
    assert children(scenario) == [(made, "success", {})], "it was not cleared either"


def test_a_retry_after_a_failed_run_creates_another(scenario: Scenario, first: Claim) -> None:
    made = trigger(scenario, first)
    ended(scenario, "failed")
    second = retried(scenario, first)

    again = trigger(scenario, second)

    assert [run_id for run_id, *_ in children(scenario)] == [made, again] and again != made
    assert trigger(scenario, retried(scenario, second)) == again


def test_a_retry_after_a_failed_run_clears_it_if_there_can_be_no_other(scenario: Scenario, first: Claim) -> None:
    trigger(scenario, first, "fixed")
    ended(scenario, "failed")

    assert trigger(scenario, retried(scenario, first), "fixed") == "fixed"
    assert [state for _, state, _ in children(scenario)] == ["queued"]


def test_the_run_of_another_author_is_a_conflict_in_every_try(scenario: Scenario, first: Claim) -> None:
    scenario.trigger("child", run_id="fixed")
    with pytest.raises(ConflictError):
        trigger(scenario, first, "fixed")

    second = retried(scenario, first)
    with pytest.raises(ConflictError):
        trigger(scenario, second, "fixed")


def test_a_cleared_task_triggers_again(scenario: Scenario, first: Claim) -> None:
    made = trigger(scenario, first)
    assert scenario.follower.report(first, Ending(S.SUCCESS)).is_stored
    transact(scenario.engine, clear.clear, Runs(dag_id="parent", run_id="p"), Tasks(), core=scenario.settings.core)

    assert trigger(scenario, claimed(scenario)) != made
    assert len(children(scenario)) == 2


def test_without_adoption_each_call_triggers(scenario: Scenario, first: Claim) -> None:
    made = [trigger(scenario, first, run_id, adopt_unless=None) for run_id in ("one", "two")]

    assert [run_id for run_id, *_ in children(scenario)] == made == ["one", "two"]


def test_a_reset_gives_the_run_the_conf_of_the_task_if_it_has_one(scenario: Scenario, first: Claim) -> None:
    scenario.trigger("child", run_id="fixed", conf={"a": 1})

    trigger(scenario, first, "fixed", reset=True, adopt_unless=None)
    assert children(scenario) == [("fixed", "queued", {"a": 1})]
    trigger(scenario, first, "fixed", reset=True, conf={"a": 2}, adopt_unless=None)
    assert children(scenario) == [("fixed", "queued", {"a": 2})]


def test_the_first_start_is_that_of_the_first_try_since_a_clear(scenario: Scenario, first: Claim) -> None:
    def first_start(claim: Claim) -> Any:
        return claims.first_start(scenario.hot, claim, claim.max_tries - 5 + 1)

    third = retried(scenario, retried(scenario, first))
    assert (first_start(first), first_start(third)) == (first.started_at, first.started_at)
    assert scenario.follower.report(third, Ending(S.SUCCESS)).is_stored
    transact(scenario.engine, clear.clear, Runs(dag_id="parent", run_id="p"), Tasks(), core=scenario.settings.core)
    cleared = claimed(scenario)
    assert first_start(cleared) == cleared.started_at
    assert first_start(retried(scenario, cleared)) == cleared.started_at


def test_a_stale_try_changes_and_remembers_nothing(scenario: Scenario, first: Claim) -> None:
    scenario.trigger("child", run_id="fixed", conf={"a": 1})
    second = retried(scenario, first)

    with pytest.raises(StaleTryError):
        transact(scenario.engine, manual_runs.replace_conf, "child", "fixed", {"a": 2}, first.writer)
    with pytest.raises(StaleTryError):
        transact(scenario.engine, manual_runs.remember_child, first.writer, "child", "fixed", max_tries=first.max_tries)
    with pytest.raises(StaleTryError):
        trigger(scenario, first, "late")

    assert [conf for *_, conf in children(scenario)] == [{"a": 1}]
    assert transact(scenario.engine, manual_runs.child, second.writer, "child", max_tries=second.max_tries) is None


DAY = datetime(2026, 3, 1, tzinfo=UTC)
PULLS = {
    "own": """ti.xcom_pull("value")""",
    "positional_dag_id": """ti.xcom_pull("value", "other")""",
    "other_run": """ti.xcom_pull("value", run_id="r0")""",
    "prior": """ti.xcom_pull("value", "other", include_prior_dates=True)""",
    "prior_of_list": """ti.xcom_pull(["value", "many"], "other", include_prior_dates=True)""",
    "prior_key": """ti.xcom_pull("value", key="rare", include_prior_dates=True)""",
    "one_instance": """ti.xcom_pull("many", "other", run_id="r0", map_indexes=1)""",
    "none": """ti.xcom_pull("value", "other", run_id="r7", default="none")""",
}
VALUE = """
@task
def value(ti=None, run_id=None):
    if run_id == "r0": ti.xcom_push("rare", "rarely")
    return f"{ti.dag_id} {run_id}"
@task
def many(x, run_id=None): return [x, run_id]
many.expand(x=[1, 2])
"""


def test_values_of_another_run_come_from_the_run_that_is_named(scenario: Scenario) -> None:
    pulls = "".join(f"    ti.xcom_push({name!r}, {text})\n" for name, text in PULLS.items())
    cases = {"other": VALUE + "value()\n", "d": f"{VALUE}@task\ndef pull(ti):\n{pulls}value() >> pull()\n"}
    for name, body in cases.items():
        scenario.add(conformance.parsed(scenario.settings, name, Case(body, {}))[1])
    worker = pool_process(scenario)
    # The run r2 of the other DAG is later than the run that pulls.
    runs = [("other", 0), ("other", 2), ("d", 0), ("d", 1)]
    for dag_id, day in runs:
        run = scenario.trigger(dag_id, run_id=f"r{day}", logical_date=DAY + timedelta(days=day))
        while scenario.run_state(run) not in ("success", "failed"):
            scenario.turn()
            for message in scenario.messages():
                worker.run(*message)
        assert scenario.run_state(run) == "success"

    pulled = dict(
        scenario.rows("select key, value from xcom x join task_instance t on t.id = x.task_instance_id where t.task_id = 'pull' and"
                      " t.dag_run_id = %s", run)
    )  # fmt: skip

    assert pulled == {
        "own": "d r1",
        "positional_dag_id": None,
        "other_run": "d r0",
        "prior": "other r0",
        "prior_of_list": ["other r0", [1, "r0"], [2, "r0"]],
        "prior_key": "rarely",
        "one_instance": [2, "r0"],
        "none": "none",
    }


def test_an_update_travels_from_task_to_task(bench: Any) -> None:
    bench.worker()
    bench.dag("""
        flights = Asset("flights", "s3://lake/flights")
        weather = Asset("weather", "s3://lake/weather")

        @asset(schedule=None, uri="s3://lake/weather")
        def weather(self, context, outlet_events):
            outlet_events[self].extra["from"] = context["run_id"]

        @asset(schedule=None)
        def report(self, context, weather):
            print("reads", weather.uri, len(context["inlet_events"][weather]))

        @dag(schedule=None)
        def maker():
            @task(outlets=[flights])
            def make(*, outlet_events):
                outlet_events[flights].extra = {"rows": 7}
            make()
        maker()

        @dag(schedule=flights & weather)
        def user():
            @task(inlets=[flights])
            def use(*, triggering_asset_events, inlet_events, dag_run):
                events = {found.name: [event.extra for event in told] for found, told in triggering_asset_events.items()}
                print("told", sorted(events.items()))
                print("source", triggering_asset_events[flights][0].source_task_id, dag_run.run_type, dag_run.logical_date)
                print("last", inlet_events[flights][-1].extra)
            use() >> BashOperator(
                task_id="say", bash_command="echo {{ (triggering_asset_events.values() | first | first).source_dag_id }}"
            )
        user()
    """)
    for dag_id in ("maker", "weather", "report"):
        run = bench.scenario.trigger(dag_id, run_id="r1")
        bench.wait(run)
        assert bench.scenario.run_state(run) == "success"

    def ended() -> bool:
        bench.scenario.turn()
        return bench.scenario.rows("select state from dag_run where dag_id = 'user'") == [("success",)]

    eventually(ended, timeout=60, message=lambda: f"{bench.scenario.rows('select * from notice')}\n{bench.output}")
    run_id = bench.scenario.rows("select run_id from dag_run where dag_id = 'user'")[0][0]
    assert "reads s3://lake/weather" in bench.log_path("report", dag_id="report", run_id="r1").read_text()
    log = bench.log_path("use", dag_id="user", run_id=run_id).read_text()
    assert "told [('flights', [{'rows': 7}]), ('weather', [{'from': 'r1'}])]" in log
    assert "source make asset_triggered None" in log
    assert "last {'rows': 7}" in log
    assert "\nmaker\n" in bench.log_path("say", dag_id="user", run_id=run_id).read_text()
    listed = {row["name"]: row for row in transact(bench.scenario.engine, assets.assets)}
    assert listed["flights"]["updated_by"] == ["maker.make"]
    assert listed["weather"]["waited_for_by"] == ["user"]
