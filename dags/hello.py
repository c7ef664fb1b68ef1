"""A first DAG: three tasks that pass results to each other."""

from datetime import UTC, datetime

from paceline import dag, task


@task
def choose_name():
    return "Paceline"


@task
def greet(name, ds):
    return f"Hello, {name}! Today is {ds}."


@task
def shout(greeting):
    print(greeting.upper())
    return len(greeting)


@dag(schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC), catchup=False, tags=["example"])
def hello():
    shout(greet(choose_name()))


hello()
