"""The rewrite of a file of Airflow: imports and arguments change, comments and layout stay, a second rewrite changes nothing."""

import textwrap

import pytest

pytest.importorskip("libcst")

from scheduler.dagfiles.migrate.folder import Rewritten, rewrite


def rewritten(source: str) -> str:
    return both(source).content.decode()


def both(source: str) -> Rewritten:
    found = rewrite(textwrap.dedent(source).encode())
    again = rewrite(found.content)
    assert (again.content, again.changes) == (found.content, ())
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from airflow import DAG", "from paceline import DAG"),
        ("from scheduler import dag, task  # both", "from paceline import dag, task  # both"),
        ("from scheduler.operators import (\n    BashOperator,\n)", "from paceline.operators import (\n    BashOperator,\n)"),
        ("from scheduler.jobs import refresh", "from scheduler.jobs import refresh"),
        ("from airflow.sdk import DAG, task  # both", "from paceline import DAG, task  # both"),
        ("from airflow.datasets import Dataset", "from paceline import Asset as Dataset"),
        ("from airflow.datasets import Dataset as Data", "from paceline import Asset as Data"),
        ("from airflow.sdk import Asset as Dataset", "from paceline import Asset as Dataset"),
        ("from airflow.sdk import Asset as Asset", "from paceline import Asset"),
        ("from airflow.utils import timezone", "from paceline.airflow import timezone"),
        ("from airflow.utils import timezone as tz", "from paceline.airflow import timezone as tz"),
        ("from airflow.operators.bash import *", "from paceline.operators import *"),
        ("from airflow.operators.empty import *", "from airflow.operators.empty import *"),
        ("import airflow.sdk as sdk\nsdk.DAG", "import paceline\npaceline.DAG"),
        ("import os, airflow.sdk\nairflow.sdk.DAG", "import os\nimport paceline\npaceline.DAG"),
        (
            "from airflow.operators import bash\nbash.BashOperator.template_fields",
            "import paceline.operators\npaceline.operators.BashOperator.template_fields",
        ),
        (
            "from airflow import models\nmodels.DAG, models.XCom",
            "from airflow import models\nimport paceline\npaceline.DAG, models.XCom",
        ),
        ("if x: from airflow.sdk import DAG", "if x: from paceline import DAG"),
        ("import os; from airflow.sdk import DAG", "import os; from paceline import DAG"),
        ("from airflow.models import DAG, XCom\nXCom", "from paceline import DAG\nfrom airflow.models import XCom\nXCom"),
        ("from airflow.models import DAG, XCom", "from paceline import DAG"),
        ("from airflow.models import XCom\nimport os", "import os"),
        ("from airflow.models import XCom  # why", "pass  # why"),
        ("if x:\n    from airflow.models import XCom", "if x:\n    pass"),
        ("if x: from airflow.models import XCom", "if x: pass"),
        ("from airflow.sdk import Nope\ndef f(x: Nope): ...", "from airflow.sdk import Nope\ndef f(x: Nope): ..."),
        (
            "from airflow.sdk import Asset, AssetAccessControl\nAsset('x', access_control=AssetAccessControl([]))",
            "from paceline import Asset\nAsset('x')",
        ),
        ("from .airflow import DAG", "from .airflow import DAG"),
        ("import airflow_client\nfrom airflow_client import x", "import airflow_client\nfrom airflow_client import x"),
        ("airflow.DAG", "airflow.DAG"),
    ],
)
def test_an_import(before: str, after: str) -> None:
    assert rewritten(f"{before}\n") == f"{after}\n"


def test_names_of_several_places_keep_their_comments() -> None:
    before = """\
    # Above.
    from airflow.operators.python import (
        # Of both.
        PythonOperator,  # runs a function
        # Of its own.
        get_current_context,  # reads
        BranchPythonOperator as Branch,  # chooses
    )  # Behind.
    """
    after = """\
    # Above.
    from paceline.operators import (
        # Of both.
        PythonOperator,  # runs a function
        # Of its own.
        BranchPythonOperator as Branch,  # chooses
    )  # Behind.
    from paceline import (
        get_current_context,  # reads
    )
    """

    assert rewritten(before) == textwrap.dedent(after)


def test_arguments_of_airflow_2() -> None:
    before = """\
    from airflow.models import DAG
    from airflow.decorators import task, dag as flow
    from airflow.operators.bash import BashOperator

    with DAG(
        "d",
        schedule_interval="@daily",  # every day
        # About the view.
        default_view="graph",  # nice
        concurrency=3,
    ):
        BashOperator(provide_context=True, task_id="a", bash_command="ls", task_concurrency=1)
        BashOperator.partial(task_id="b", task_concurrency=1).expand(bash_command=["ls"])

        @task(task_concurrency=1)
        def f(): ...

        other(concurrency=1, schedule_interval=2)

    @flow(timetable=None, orientation="LR")
    def g(): ...
    """
    after = """\
    from paceline import DAG
    from paceline import task, dag as flow
    from paceline.operators import BashOperator

    with DAG(
        "d",
        schedule="@daily",  # every day
        # About the view.
        max_active_tasks=3,
    ):
        BashOperator(task_id="a", bash_command="ls", max_active_tis_per_dag=1)
        BashOperator.partial(task_id="b", max_active_tis_per_dag=1).expand(bash_command=["ls"])

        @task(max_active_tis_per_dag=1)
        def f(): ...

        other(concurrency=1, schedule_interval=2)

    @flow(schedule=None)
    def g(): ...
    """

    assert rewritten(before) == textwrap.dedent(after)


def test_template_variables_of_airflow_2() -> None:
    found = both(
        """\
        from airflow.operators.bash import BashOperator
        BashOperator(task_id="execution_date", bash_command="{{ execution_date }} {{ next_ds }} execution_date {{ my.next_ds }}")
        def f(**context):
            return context["execution_date"]
        """
    )

    assert "{{ logical_date }} {{ next_ds }} execution_date {{ my.next_ds }}" in found.content.decode()
    assert [(note.line, note.text) for note in found.unsupported] == [
        (2, "The template variable next_ds does not exist any more; write data_interval_end | ds."),
        (4, "The context has no execution_date any more; use logical_date."),
    ]


def test_unsupported_code_stays_and_is_noted_with_its_line() -> None:
    source = """\
    import airflow.jobs
    from airflow.sdk import One, Two
    from airflow.providers.google.cloud.operators.x import Y
    from airflow.nowhere import *
    One, Two
    """
    found = both(source)

    assert found.content.decode() == textwrap.dedent(source)
    assert [note.line for note in found.unsupported] == [1, 2, 3, 4]
    assert found.unsupported[1].text == "Paceline has no One, Two: define what you need of it in a module of the DAGs folder."


def test_modules_of_the_folder_are_imported_by_their_own_names() -> None:
    source = b"from airflow.my_dags.libs.helper import f\nfrom airflow.my_dags.gone import g\n"

    found = rewrite(source, package="airflow.my_dags", modules={"libs.helper"})

    assert found.content == b"from libs.helper import f\nfrom airflow.my_dags.gone import g\n"


def test_a_weight_rule_of_its_own_is_removed_with_the_import_of_its_class() -> None:
    source = b"""\
from airflow.my_dags.plugins.rule import MyRule
from airflow.operators.bash import BashOperator

BashOperator(task_id="a", bash_command="ls", weight_rule=MyRule())
BashOperator(task_id="b", bash_command="ls", weight_rule="my.Rule", priority_weight=2)
BashOperator(task_id="c", bash_command="ls", weight_rule="upstream")
BashOperator(task_id="d", bash_command="ls", weight_rule=WeightRule.UPSTREAM)
"""

    found = rewrite(source, package="airflow.my_dags", modules={"plugins.rule"})

    assert found.content.decode().splitlines() == [
        "from paceline.operators import BashOperator",
        "",
        'BashOperator(task_id="a", bash_command="ls")',
        'BashOperator(task_id="b", bash_command="ls", priority_weight=2)',
        'BashOperator(task_id="c", bash_command="ls", weight_rule="upstream")',
        'BashOperator(task_id="d", bash_command="ls", weight_rule=WeightRule.UPSTREAM)',
    ]
    assert [note.line for note in found.unsupported] == [4, 5]


def test_line_ends_and_encoding_stay() -> None:
    source = "# -*- coding: latin-1 -*-\r\nfrom airflow import DAG\r\nname = 'Jürgen'\r\n".encode("latin-1")

    assert rewrite(source).content == source.replace(b"airflow", b"paceline")


def test_a_file_that_python_cannot_read_stays() -> None:
    found = rewrite(b"from airflow import DAG\nDAG(\n")

    assert found.content == b"from airflow import DAG\nDAG(\n"
    assert found.unsupported[0].text.startswith("Python cannot read the file")


def notes(source: str) -> list[tuple[int, str]]:
    return [(note.line, note.text) for note in rewrite(textwrap.dedent(source).encode()).unsupported]


def test_reads_of_the_database_while_a_file_is_loaded_are_reported() -> None:
    found = notes(
        """\
        import airflow.models as models
        from airflow.hooks.base import BaseHook
        from airflow.sdk import Variable as V, dag, task
        A = V.get("a", deserialize_json=True)
        B = V.get("b", default=1)
        C = models.Variable.get(A)
        D = BaseHook.get_connection("d").host
        later = lambda: V.get("x")
        def called_later():
            return V.get("x")
        @dag(schedule=None)
        def flow():
            V.get("e")
            @task
            def t():
                V.get("x")
        """
    )

    assert [line for line, _ in found] == [4, 5, 6, 7, 13]
    assert found[0][1] == (
        "A file that is loaded reads no stored variables: set PACELINE_VAR_A for schedulers and workers, or read it in a task."
    )
    assert found[1][1].endswith("Without it, the default counts.") and "set PACELINE_VAR_<KEY>" in found[2][1]
    assert "reads no connections" in found[3][1]


def test_a_name_that_airflow_has_in_another_module_is_reported_with_that_module() -> None:
    (found,) = notes("from airflow.sdk import EmptyOperator\nEmptyOperator(task_id='t')")

    assert found == (
        1,
        "airflow.sdk has no EmptyOperator: write `from airflow.providers.standard.operators.empty import EmptyOperator`.",
    )
