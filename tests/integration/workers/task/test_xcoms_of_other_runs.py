"""Values that a task pulls from other runs and other DAGs."""

from datetime import UTC, datetime, timedelta

from support import conformance
from support.conformance import Case
from support.scenario import Scenario, pool_process

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
