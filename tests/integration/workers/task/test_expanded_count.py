"""Templates of mapped tasks, with a real worker."""

from typing import Any


def test_an_instance_of_a_mapped_task_has_the_number_of_instances(bench: Any) -> None:
    bench.worker()

    bench.run("""
        @dag(schedule=None)
        def d():
            BashOperator.partial(task_id="m", do_xcom_push=True).expand(
                bash_command=["echo {{ expanded_ti_count }} {{ map_index }}", "echo {{ expanded_ti_count }}", "true"]
            )
            BashOperator(task_id="plain", bash_command="echo {{ expanded_ti_count }}")
        d()
    """)

    values = bench.scenario.rows(
        "select t.task_id, x.value from task_instance t join xcom x on x.task_instance_id = t.id order by t.task_id, t.map_index"
    )
    assert values == [("m", "3 0"), ("m", "3"), ("m", ""), ("plain", "None")]
