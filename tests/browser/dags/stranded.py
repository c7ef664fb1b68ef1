"""A DAG whose task waits in a queue that no worker listens to."""

from paceline import DAG, task

with DAG("stranded", schedule=None, tags=["tests"]) as stranded:

    @task(queue="gpu_hosts")
    def render():
        pass

    render()
