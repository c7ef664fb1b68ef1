"""docs/reference/authoring.md explains every argument of every name that DAG files import."""

from docs.generate import argument_meanings, authoring_page
from paceline.authoring.dag import DagArguments
from paceline.authoring.task_arguments import TaskArguments


def test_every_argument_that_is_shared_has_a_meaning() -> None:
    lacking = DagArguments.__annotations__.keys() - argument_meanings.DAG.keys()
    lacking |= TaskArguments.__annotations__.keys() - argument_meanings.TASK.keys()
    lacking |= authoring_page.sensor_arguments().keys() - argument_meanings.SENSOR.keys()

    assert lacking == set()


def test_every_argument_of_an_operator_or_function_has_a_meaning() -> None:
    lacking = [
        f"{module}.{name}: {argument}"
        for module in authoring_page.MODULES
        for name, thing in authoring_page.public(module)
        for argument in authoring_page.arguments(thing)
        if not authoring_page.meaning(thing, argument)
    ]

    assert lacking == [], "explain it in the docstring, or in docs/generate/argument_meanings.py"


def test_every_public_name_has_a_section() -> None:
    text = "\n".join(authoring_page.lines())

    missing = [
        name for module in authoring_page.MODULES for name, _ in authoring_page.public(module) if f"\n### `{name}`\n" not in text
    ]

    assert missing == []
