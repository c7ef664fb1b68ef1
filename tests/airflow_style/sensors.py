"""Tasks that wait: poke and reschedule, a value from a sensor, soft failure, timeout, moments and files."""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.sensors.bash import BashSensor
from airflow.providers.standard.sensors.date_time import DateTimeSensor
from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG, PokeReturnValue, task

with DAG("sensors", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False, default_args={"retries": 0}):

    @task.sensor(poke_interval=0.2, timeout=30, mode="poke")
    def value_ready():
        return PokeReturnValue(is_done=True, xcom_value=[1, 2])

    @task
    def use(value):
        assert value == [1, 2]

    use(value_ready())

    def third_time(ti, run_id):
        import pathlib
        import tempfile

        marks = pathlib.Path(tempfile.gettempdir()) / f"sensor-{run_id.replace(':', '')}"
        with marks.open("a") as file:
            file.write("x")
        if len(marks.read_text()) < 3:
            return False
        marks.unlink()
        return ti.try_number == 1

    rescheduled = PythonSensor(task_id="rescheduled", python_callable=third_time, mode="reschedule", poke_interval=0.2, timeout=60)
    rescheduled >> EmptyOperator(task_id="after_rescheduled")

    soft = FileSensor(task_id="soft", filepath="/nonexistent/file", poke_interval=0.2, timeout=0.5, soft_fail=True)
    soft >> EmptyOperator(task_id="after_soft")

    # A sensor that runs out of time is not tried again.
    hard = PythonSensor(task_id="hard", python_callable=lambda: False, poke_interval=0.2, timeout=0.5, retries=3)
    hard >> EmptyOperator(task_id="after_hard")
    hard >> EmptyOperator(task_id="after_hard_anyway", trigger_rule="all_done")

    DateTimeSensor(task_id="long_ago", target_time="{{ logical_date }}", poke_interval=1)
    BashSensor(task_id="shell", bash_command="exit 0", poke_interval=1, timeout=timedelta(seconds=30))
    FileSensor(task_id="file", filepath="/etc/passwd", poke_interval=1, timeout=30)
