"""The DAG of the browser tests: it fails in its first try if the conf requests that, and one task prints a long log."""

import time

from paceline import DAG, Param, get_current_context, task

with DAG("journey", schedule=None, tags=["tests"], params={"fail": Param(False, type="boolean", title="Fail at first")}) as journey:

    @task
    def talk():
        for number in range(5000):
            print(f"line {number}" + (" with the needle" if number == 4321 else ""))

    @task(retries=0)
    def work():
        time.sleep(0.5)
        context = get_current_context()
        if context["params"]["fail"] and context["ti"].try_number == 1:
            raise RuntimeError("The work failed as it was asked to")

    @task
    def finish():
        return {"answer": 42}

    talk() >> work() >> finish()
