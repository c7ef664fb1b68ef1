"""Assets in real tasks: outlet events of a task reach the tasks of the run that the update creates."""

from typing import Any

from support.waiting import eventually

from scheduler.store.dags import assets
from scheduler.store.db.database import transact


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
