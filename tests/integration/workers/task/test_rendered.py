"""Rendered templates are stored beside the log of a try, for the pages: without secrets, and only if there are any."""

import json
from typing import Any

DAG = """
from paceline.operators import BashOperator
@dag(schedule=None)
def d():
    @task(retries=0)
    def plain(n):
        return n
    @task(templates_dict={"when": "{{ ds }}", "api_token": "{{ run_id }}"})
    def templated(templates_dict=None):
        raise ValueError(templates_dict["when"])
    plain(1)
    templated()
    BashOperator(task_id="shell", bash_command="echo {{ run_id }} {{ var.value.secret_word }}")
d()
"""


def test_rendered_templates(bench: Any) -> None:
    bench.worker(PACELINE_VAR_SECRET_WORD="nobody-sees-this")
    bench.dag(DAG)
    run = bench.scenario.trigger("d", run_id="r1")
    bench.wait(run)

    def kept(task_id: str) -> Any:
        path = bench.log_path(task_id).with_name("try-1.rendered.json")
        return json.loads(path.read_text()) if path.exists() else None

    assert kept("plain") is None
    assert kept("shell") == {"bash_command": "echo r1 ***"}
    found = kept("templated")
    assert found["templates_dict['api_token']"] == "***"
    assert found["templates_dict['when']"]
