"""Slow callbacks delay neither the loop nor callbacks of other files, and several schedulers call each once."""

import threading
from collections.abc import Callable

from support.notices import calls, notify, signal, write, write_calling
from support.scenario import Scenario
from support.waiting import eventually

from scheduler.services.notify import Notify


def test_the_loop_continues_while_a_callback_hangs(scenario: Scenario) -> None:
    write_calling(scenario, "lambda context: wait('go')")
    scenario.trigger("d")
    scenario.run_to_end()
    scenario.turn()
    beat = scenario.rows("select max(heartbeat_at) from process where kind = 'scheduler'")

    scenario.turn()

    assert scenario.schedulers[0].service(Notify).busy
    assert scenario.rows("select max(heartbeat_at) from process where kind = 'scheduler'") > beat
    signal(scenario, "go")
    notify(scenario)


def test_two_schedulers_deliver_each_notice_once(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(schedulers=2, scheduler={"max_callbacks_per_loop": 3})
    source = """
        with DAG({dag!r}, schedule=None, max_active_runs=50):
            EmptyOperator(task_id="a", on_success_callback=tell({dag!r}))
        """
    for dag_id in ("d", "e"):
        write(scenario, source.format(dag=dag_id), dag_id)
        for number in range(10):
            scenario.trigger(dag_id, run_id=f"r{number}")
    scenario.run_to_end()
    stop = threading.Event()

    def keep_claiming() -> None:
        while not stop.is_set():
            scenario.schedulers[1].service(Notify).take()

    other = threading.Thread(target=keep_claiming)
    other.start()
    try:
        notify(scenario)
    finally:
        stop.set()
        other.join()

    seen = sorted((call["what"], call["run_id"]) for call in calls(scenario))
    assert seen == sorted((dag_id, f"r{number}") for dag_id in ("d", "e") for number in range(10))
    assert scenario.rows("select distinct attempts, error from notice") == [(1, None)]


def test_a_slow_file_holds_up_no_other_file(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"callback_processes": 2})
    source = """
        with DAG({dag!r}, schedule=None, max_active_runs=50):
            EmptyOperator(task_id="a", on_success_callback=lambda context: {body})
        """
    write(scenario, source.format(dag="slow", body="wait('go')"), "slow")
    write(scenario, source.format(dag="quick", body="note('quick', context)"), "quick")
    for number in range(30):
        scenario.trigger("slow", run_id=f"r{number}")
    scenario.trigger("quick")
    scenario.run_to_end()

    def quick_told() -> bool:
        scenario.schedulers[0].service(Notify).take()
        return bool(calls(scenario))

    eventually(quick_told)
    signal(scenario, "go")
    notify(scenario)


def test_a_file_with_many_slow_callbacks_lets_other_files_run(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"callback_processes": 1})
    source = """
        with DAG({dag!r}, schedule=None, max_active_runs=50):
            EmptyOperator(task_id="a", on_success_callback=lambda context: (time.sleep({seconds}), note({dag!r}, context)))
        """
    write(scenario, source.format(dag="slow", seconds=0.5), "slow")
    write(scenario, source.format(dag="quick", seconds=0), "quick")
    for number in range(15):
        scenario.trigger("slow", run_id=f"r{number}")
    scenario.trigger("quick")
    scenario.run_to_end()

    def quick_told() -> bool:
        scenario.schedulers[0].service(Notify).take()
        return "quick" in [call["what"] for call in calls(scenario)]

    eventually(quick_told)

    assert 0 < len(calls(scenario)) < 16
    assert scenario.rows("select max(attempts) from notice") == [(1,)]
