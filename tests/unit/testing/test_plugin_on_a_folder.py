"""The pytest plugin on the files of a DAG repository."""

from pathlib import Path

import pytest

# Before the first run: pytester removes the modules that a run imports, but scheduler keeps names from them.
from paceline import dag, task  # noqa: F401
from paceline.exceptions import DagError, NotFoundError
from scheduler.settings import Paths, Settings
from scheduler.testing.folder import load_folder

pytest_plugins = ["pytester"]

GOOD = """
from datetime import UTC, datetime
from paceline import dag, task

@dag(schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC))
def shop():
    @task
    def sell(): return 3
    sell()
shop()
"""
TESTS = """
def test_all_load(dag_bag):
    assert dag_bag.import_errors == {}
    assert dag_bag.dag_ids == ["shop"]

def test_shop(run_dag, run_task):
    assert run_dag("shop").xcoms == {"sell": 3}
    assert run_task("shop", "sell").result == 3
"""


def repository(pytester: pytest.Pytester, **files: str) -> None:
    (pytester.path / "dags").mkdir()
    for name, text in files.items():
        (pytester.path / "dags" / f"{name}.py").write_text(text)


def test_a_repository_tests_its_dags(pytester: pytest.Pytester) -> None:
    repository(pytester, shop=GOOD)
    pytester.makepyfile(test_shop=TESTS)

    pytester.runpytest_inprocess("--check-dags").assert_outcomes(passed=3)


@pytest.mark.long
def test_tests_of_unchanged_airflow_files_import_airflow_too(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(pytester, shop=GOOD.replace("scheduler", "airflow.sdk"))
    pytester.makeconftest("from airflow.sdk import task")
    pytester.makepyfile(
        test_shop="""
        from airflow.sdk import BaseHook, Variable, task
        from airflow.providers.standard.operators.bash import BashOperator

        @task
        def add(x, y):
            return x + y

        def test_of_the_folder(run_dag):
            assert run_dag("shop").success

        def test_of_its_own(run_task, task_context, airflow_connections):
            airflow_connections({"db": "postgres://me@host/db"})
            assert run_task(add(1, 2).operator).result == 3
            assert BaseHook.get_connection("db").login == "me"
            echo = BashOperator(task_id="echo", bash_command="echo hi")
            assert echo.execute(task_context(echo)) == "hi"
        """
    )
    monkeypatch.setenv("PACELINE_CORE_AIRFLOW_IMPORTS", "true")

    pytester.runpytest_subprocess().assert_outcomes(passed=2)


@pytest.mark.long
def test_a_wrong_setting_ends_the_tests_with_one_sentence(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CORE_AIRFLOW_IMPORTS", "perhaps")

    result = pytester.runpytest_subprocess()

    assert "airflow_imports" in result.stderr.str().lower() and "Traceback" not in result.stderr.str()


@pytest.mark.long
def test_workers_of_xdist_test_their_parts(pytester: pytest.Pytester) -> None:
    repository(pytester, shop=GOOD)
    pytester.makepyfile(test_shop=TESTS)

    pytester.runpytest_subprocess("--check-dags", "-n", "2").assert_outcomes(passed=3)


def test_the_folder_is_found_from_where_pytest_starts(pytester: pytest.Pytester) -> None:
    """Without a file of settings, the root of the tests is the folder that is the argument."""
    repository(pytester, shop=GOOD)
    pytester.mkdir("tests").joinpath("test_shop.py").write_text(TESTS)

    pytester.runpytest_inprocess("tests").assert_outcomes(passed=2)


def test_only_files_that_a_scheduler_reads_are_checked(pytester: pytest.Pytester) -> None:
    repository(pytester, shop=GOOD, ignored="from paceline import DAG\nraise ValueError", library="raise ValueError")
    (pytester.path / "dags" / ".airflowignore").write_text("ignored.py\n")

    pytester.runpytest_inprocess("--check-dags").assert_outcomes(passed=1)


def test_a_failed_assertion_shows_why_the_run_failed(pytester: pytest.Pytester) -> None:
    repository(pytester, shop=GOOD.replace("return 3", "raise KeyError('x')"))
    pytester.makepyfile(test_shop="def test_shop(run_dag):\n    assert run_dag('shop').success\n")

    done = pytester.runpytest_inprocess()

    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*RunResult(dag_id='shop', state='failed', reasons={'sell': \"KeyError: 'x'\"})*"])


def test_a_file_that_does_not_load_fails_its_check(pytester: pytest.Pytester) -> None:
    repository(pytester, shop=GOOD, wrong="from paceline import DAG\nDAG('d', schedul='@daily')\n")

    done = pytester.runpytest_inprocess("--check-dags")

    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["line 2: *did you mean 'schedule'*"])


def test_a_bag_names_its_errors(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(GOOD)
    (tmp_path / "b.py").write_text(GOOD)
    bag = load_folder(Settings(paths=Paths(home=tmp_path / "home", dags_folder=tmp_path)))

    assert bag.size() == 1 and bag.import_errors == {"b.py": "The DAG 'shop' is also in a.py; rename one."}
    with pytest.raises(NotFoundError, match="did you mean 'shop'"):
        bag.get_dag("shopp")
    with pytest.raises(DagError, match=r"b\.py: The DAG 'shop'"):
        bag.check()
