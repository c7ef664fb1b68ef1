"""Callbacks: recorded with the change that caused them, run once in a child, without delay for the loop or other files."""

import threading
from collections.abc import Callable

import pytest
from support.notices import calls, errors, notify, signal, write, write_calling
from support.scenario import Scenario
from support.waiting import eventually

from paceline.authoring.connection import Connection
from paceline.states import TaskState
from scheduler.services.notify import Notify
from scheduler.settings import Settings
from scheduler.store.secrets import connections, variables
from scheduler.store.secrets.cipher import Cipher
from workers.task.follow import Ending


def test_each_event_of_a_task_and_its_run_calls_its_callback_once(scenario: Scenario) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None, on_success_callback=tell("dag_success"), on_failure_callback=tell("dag_failure")):
            EmptyOperator(task_id="a", on_execute_callback=tell("on_execute"), on_success_callback=[tell("first"), tell("second")],
                          on_failure_callback=tell("on_failure"), on_retry_callback=tell("on_retry"), retries=1, retry_delay=0)
        """,
    )
    scenario.trigger("d", run_id="r")
    endings = iter([TaskState.UP_FOR_RETRY, TaskState.SUCCESS])
    scenario.run_to_end(outcome=lambda _: next(endings))

    notify(scenario)

    assert [(call["what"], call["try"]) for call in calls(scenario)] == [
        ("on_execute", 1), ("on_retry", 1), ("on_execute", 2), ("first", 2), ("second", 2), ("dag_success", 2),
    ]  # fmt: skip
    assert {(call["rerun"], call["attempt"], call["run_id"], call["dag"]) for call in calls(scenario)} == {(False, 1, "r", "d")}
    assert errors(scenario) == [None] * 5


def test_a_failure_has_its_reason(scenario: Scenario) -> None:
    write(
        scenario,
        """
        with DAG("d", schedule=None, on_failure_callback=tell("dag_failure")):
            EmptyOperator(task_id="a", on_failure_callback=tell("on_failure"), on_success_callback=tell("on_success"))
        """,
    )
    scenario.trigger("d")
    eventually(lambda: (scenario.turn(), scenario.rows("select 1 from task_instance where state = 'queued'"))[1])
    claim = scenario.claim(scenario.messages()[0])
    assert claim is not None
    scenario.follower.report(claim, Ending(TaskState.FAILED, reason="a wall"))
    scenario.run_to_end()

    notify(scenario)

    assert [(call["what"], call["state"], call["reason"]) for call in calls(scenario)] == [
        ("on_failure", "failed", "a wall"), ("dag_failure", "failed", "task_failure"),
    ]  # fmt: skip


def test_values_that_a_callback_masks_are_masked_in_its_log_and_in_its_error(scenario: Scenario) -> None:
    write_calling(
        scenario,
        "[leaks, lambda context: print('afterwards')]",
        """
        from paceline import mask_secret

        def leaks(context):
            mask_secret("hunter2hunter2")
            print("printed hunter2hunter2", flush=True)
            os.system("echo shouted hunter2hunter2")
            raise ValueError("not hunter2hunter2")
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert errors(scenario) == ["ValueError: not ***"]
    log = (scenario.settings.logs_folder / "d" / "r" / "a" / "callbacks.log").read_text()
    assert [line for line in log.splitlines() if not line.startswith(("---", "Traceback", " "))] == [
        "printed ***", "shouted ***", "ValueError: not ***", "afterwards",
    ]  # fmt: skip


def test_a_callback_sees_no_password_and_may_not_push(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setenv("PACELINE_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("PACELINE_SMTP_PASSWORD", "geheim")
    monkeypatch.setenv("PACELINE_CORE_FERNET_KEY", "geheim")
    write_calling(
        scenario,
        "look",
        """
        def look(context):
            seen = {"PACELINE_DATABASE_URL", "PACELINE_SMTP_PASSWORD", "PACELINE_CORE_FERNET_KEY"} & set(os.environ)
            assert not seen, seen
            try:
                context["ti"].xcom_push("a", 1)
            except Exception as error:
                context["reason"] = str(error)
            note("look", context)
        """,
    )
    scenario.trigger("d")
    scenario.run_to_end()

    notify(scenario)

    assert errors(scenario) == [None]
    assert "works only while a task runs" in calls(scenario)[0]["reason"]


def test_a_callback_reads_xcoms_variables_and_connections(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CONN_HERE", "http://example.org")
    write_calling(
        scenario,
        "look",
        """
        from paceline import Connection, Variable

        def look(context):
            ti = context["ti"]
            found = [
                ti.xcom_pull(task_ids="a"), ti.xcom_pull(), ti.xcom_pull(task_ids=["a", "b"]), ti.xcom_pull("a", key="none"),
                ti.xcom_pull("a", run_id="nope", default=3), Variable.get("v"), context["var"].value.v, Variable.get("w", "x"),
                Connection.get("c").password, context["conn"].here.host, Connection.get("c").extra_dejson,
            ]
            try:
                Connection.get("nope")
            except Exception as error:
                found.append(type(error).__name__)
            print("masked", Connection.get("c").password)
            note(found, context)
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()
    cipher = Cipher.of(scenario.settings, make=True)
    with scenario.engine.begin() as connection:
        insert = "insert into xcom (task_instance_id, key, value) select id, 'return_value', %s from task_instance"
        connection.exec_driver_sql(insert, ('{"n": [1]}',))
        variables.set_variables(connection, [("v", "42", None)], cipher)
        connections.add(connection, [Connection.from_uri("c", "http://u:geheim@h/?a=b")], cipher)

    notify(scenario)

    assert errors(scenario) == [None]
    value = {"n": [1]}
    assert calls(scenario)[0]["what"] == [
        value, value, [value, None], None, 3, "42", "42", "x", "geheim", "example.org", {"a": "b"}, "NotFoundError",
    ]  # fmt: skip
    assert "masked ***" in (scenario.settings.logs_folder / "d" / "r" / "a" / "callbacks.log").read_text()


def test_each_instance_of_a_mapped_task_has_its_callback(scenario: Scenario) -> None:
    write(
        scenario,
        """
        from paceline.operators import PythonOperator

        def index(context):
            note(str(context["ti"].map_index), context)

        with DAG("d", schedule=None):
            PythonOperator.partial(task_id="a", python_callable=print, on_success_callback=index).expand(op_args=[[1], [2]])
        """,
    )
    scenario.trigger("d", run_id="r")
    scenario.run_to_end()

    notify(scenario)

    assert errors(scenario) == [None, None]
    assert sorted(call["what"] for call in calls(scenario)) == ["0", "1"]
    assert (scenario.settings.logs_folder / "d" / "r" / "a" / "1" / "callbacks.log").exists()


def test_callbacks_get_the_params_even_those_that_made_the_task_fail(scenario: Scenario) -> None:
    write(
        scenario,
        """
        from paceline import Param

        def show(context):
            note(f"{context['params']['x']} {context['params']['y']}", context)

        with DAG("d", schedule=None, params={"x": 1, "y": 2}, on_failure_callback=show):
            EmptyOperator(task_id="a", params={"x": Param(5, type="integer")}, on_failure_callback=show)
        """,
    )
    for conf in ({"y": 7}, {"x": "no number"}):
        scenario.trigger("d", conf=conf)
    scenario.run_to_end(outcome=lambda _: TaskState.FAILED)

    notify(scenario)

    assert errors(scenario) == [None] * 4
    assert sorted(call["what"] for call in calls(scenario)) == ["5 7", "5 7", "no number 2", "no number 2"]


def test_a_run_that_timed_out_has_its_reason(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario()
    write(
        scenario,
        """
        with DAG("d", schedule=None, dagrun_timeout=timedelta(hours=1), on_failure_callback=tell("dag_failure")):
            EmptyOperator(task_id="a")
        """.replace("with DAG", "from datetime import timedelta\n        with DAG"),
    )
    run = scenario.trigger("d")
    eventually(lambda: (scenario.turn(), scenario.run_state(run) == "running")[1])
    scenario.sql("update dag_run set timeout_at = clock_timestamp()")

    eventually(lambda: (scenario.turn(), scenario.run_state(run) == "failed")[1])
    notify(scenario)

    assert [(call["what"], call["reason"]) for call in calls(scenario)] == [("dag_failure", "timed_out")]


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


@pytest.mark.long
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

    notify(scenario)

    order = [call["what"] for call in calls(scenario)]
    assert len(order) == 16 and order[-1] != "quick"
    assert scenario.rows("select max(attempts) from notice") == [(1,)]
