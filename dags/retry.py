"""A task that fails on its first try and succeeds on its second."""

from datetime import timedelta

from paceline import dag, task


@task(retries=2, retry_delay=timedelta(seconds=2))
def shaky(ti):
    if ti.try_number == 1:
        raise ConnectionError("The first try fails, as planned; the second comes in two seconds.")
    return f"succeeded on try {ti.try_number}"


@dag(schedule=None, tags=["example"], doc_md=__doc__)
def retry():
    @task
    def celebrate(news):
        print(news)

    celebrate(shaky())


retry()
