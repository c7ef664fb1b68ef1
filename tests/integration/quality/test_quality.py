"""Checks on real DataFrames: each kind with passing and failing rows; a suite is one Spark job, plus one if checks fail."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from paceline.authoring import execution
from paceline.quality import ExpectationError, Report, check, expect
from scheduler.settings import Paths, Settings
from workers.spark import conf, java
from workers.spark.sessions import session_pool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    settings = Settings(paths=Paths(home=tmp_path_factory.mktemp("home")))
    # Spark 4 does so by default.
    one = session_pool.start(
        conf.merged(settings, {"spark.sql.ansi.enabled": "true"}), {}, settings.spark, java.archive_options(settings)
    )
    yield one.base
    session_pool.end(one)


@pytest.fixture(scope="module")
def people(spark: "SparkSession") -> "DataFrame":
    rows = [(1, "ann", 30, "DE"), (2, "bob", None, "FR"), (2, "cy", 200, "XX"), (3, None, -1, None)]
    return spark.createDataFrame(rows, "id long, name string, `age.years` int, country string")


@pytest.fixture(scope="module")
def countries(spark: "SparkSession") -> "DataFrame":
    return spark.createDataFrame([("DE",), ("FR",), ("DE",)], "code string")


def jobs(spark: "SparkSession", work: Any, name: str) -> tuple[Any, int]:
    """The result of `work`, and the number of its Spark jobs."""
    spark.sparkContext.setJobGroup(name, name)
    try:
        return work(), len(spark.sparkContext.statusTracker().getJobIdsForGroup(name))
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def by_promise(report: Report) -> dict[str, tuple[str, int, str]]:
    return {result.promise: (result.status, result.failing, result.note) for result in report.results}


@pytest.mark.long
def test_checks_that_pass_are_one_job_at_any_tolerance(spark: "SparkSession", people: "DataFrame", countries: "DataFrame") -> None:
    suite = expect(people, "people").rows(1, 4).not_null("id").not_null("name", tolerate=1).unique("id", "name")
    both = suite.foreign_key("country", countries, "code", tolerate=1), expect(countries, "countries").unique("code", tolerate=1)

    report, count = jobs(spark, lambda: check(*both), "passing")

    assert count == 1
    assert [result.failing for result in report.results] == [0, 0, 1, 0, 1, 1]
    assert not any(result.sample for result in report.results)


def test_all_checks_of_several_dataframes_are_one_job_and_one_more_finds_the_failing_rows(
    spark: "SparkSession", people: "DataFrame", countries: "DataFrame"
) -> None:
    suite = (
        expect(people, "people")
        .columns({"id": "long", "name": None, "country": "string"})
        .rows(1, 4)
        .rows(5)
        .not_null("id")
        .not_null("name", "country")
        .not_null("name", tolerate=1)
        .between("age.years", 0, 120)
        .accepted_values("country", ["DE", "FR"], warn=True)
        .matches("name", "^[a-z]{3}$")
        .satisfies("id < 3 or name is not null", "every late row has a name")
        .unique("id", "name")
        .unique("id")
        .foreign_key("country", countries, "code", name="countries")
    )

    report, count = jobs(spark, lambda: check(suite, expect(countries, "countries").unique("code", tolerate=1), fail=False), "all")

    assert count == 2
    assert by_promise(report) == {
        "has the columns id long, name, country string": ("passed", 0, ""),
        "has 1 to 4 rows": ("passed", 0, ""),
        "has at least 5 rows": ("failed", 0, "it has 4"),
        "(id) is never null": ("passed", 0, ""),
        "(name, country) is never null": ("failed", 1, ""),
        "(name) is never null": ("passed", 1, ""),
        "age.years is between 0 and 120": ("failed", 2, ""),
        "country is one of DE, FR": ("warned", 1, ""),
        "name matches ^[a-z]{3}$": ("failed", 1, ""),
        "every late row has a name": ("failed", 1, ""),
        "(id, name) is unique": ("passed", 0, ""),
        "(id) is unique": ("failed", 1, ""),
        "country is found in countries": ("failed", 1, ""),
        "(code) is unique": ("passed", 1, ""),
    }
    samples = {result.promise: list(result.sample) for result in report.results}
    assert samples["(name, country) is never null"] == [{"id": 3, "name": None, "age.years": -1, "country": None}]
    assert sorted(row["age.years"] for row in samples["age.years is between 0 and 120"]) == [-1, 200]
    assert samples["(id) is unique"] == [{"id": 2, "copies": 2}]
    assert samples["country is found in countries"] == [{"country": "XX", "rows": 1}]
    assert samples["(code) is unique"] == samples["(name) is never null"] == []
    assert not report.passed
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
    assert spark.conf.get("spark.sql.autoBroadcastJoinThreshold") != "-1"


def test_of_many_failing_rows_a_few_are_kept_and_long_rows_are_cut(spark: "SparkSession") -> None:
    frame = spark.range(10_000).selectExpr("id", "repeat('x', 5000) as text")

    report = expect(frame).satisfies("id < 0").check(fail=False)

    [result] = report.results
    assert (result.failing, len(result.sample)) == (10_000, 5)
    assert all(isinstance(row, str) and len(row) == 2000 for row in result.sample)


def test_a_dataframe_without_rows_keeps_every_promise_but_that_of_rows(spark: "SparkSession", countries: "DataFrame") -> None:
    empty = spark.createDataFrame([], "code string")

    suite = expect(empty).rows(1).not_null("code").unique("code").foreign_key("code", countries)
    report, count = jobs(spark, lambda: suite.check(fail=False), "empty")

    assert count == 1, "no row breaks the number of rows"
    assert [result.status for result in report.results] == ["failed", "passed", "passed", "passed"]


def test_a_missing_column_fails_its_checks_without_a_job_and_no_others(spark: "SparkSession", people: "DataFrame") -> None:
    suite = expect(people).not_null("nmae").columns({"id": "string", "x": "int"}, exact=True)

    report, count = jobs(spark, lambda: suite.check(fail=False), "missing")

    assert count == 0
    assert [result.note for result in report.results] == [
        "there is no column nmae; it has id, name, age.years, country",
        "id is bigint, x is missing, name is too many, age.years is too many, country is too many",
    ]


def test_a_failure_names_its_checks_with_rows_and_is_kept_with_the_task(
    people: "DataFrame", caplog: pytest.LogCaptureFixture
) -> None:
    class Instance:
        pushed: dict[str, Any] = {"expectations": [{"promise": "of an earlier check"}]}

        def xcom_pull(self, *, key: str, default: Any) -> Any:
            return self.pushed.get(key, default)

        def xcom_push(self, key: str, value: Any) -> None:
            self.pushed[key] = value

    ti = Instance()
    with execution.current({"ti": ti}), pytest.raises(ExpectationError) as caught:
        expect(people, "people").unique("id").not_null("id").not_null("name", warn=True).check()

    assert str(caught.value) == ("1 of 3 checks failed:\n  people: (id) is unique - broken by 1 row\n    {'id': 2, 'copies': 2}")
    assert [expectation.get("status") for expectation in ti.pushed["expectations"]] == [None, "failed", "passed", "warned"]
    assert ti.pushed["expectations"][1]["sample"] == [{"id": 2, "copies": 2}]
    assert "people: (name) is never null - broken by 1 row" in caplog.text
    assert "is unique" not in caplog.text


@pytest.mark.parametrize(
    "define",
    [
        lambda suite: suite.not_null(),
        lambda suite: suite.not_null(["id"]),
        lambda suite: suite.unique(),
        lambda suite: suite.unique(["id"]),
        lambda suite: suite.columns([]),
        lambda suite: suite.columns("id"),
        lambda suite: suite.rows(),
        lambda suite: suite.rows(5, 3),
        lambda suite: suite.between("id", None, None),
        lambda suite: suite.accepted_values("country", [None]),
        lambda suite: suite.accepted_values("country", []),
        lambda suite: suite.accepted_values("country", "DE"),
        lambda suite: suite.foreign_key((), suite.frame),
        *(
            lambda suite, wrong=wrong: suite.not_null("id", tolerate=wrong) for wrong in (1.5, -1, True, "1", None)
        ),
    ],
)  # fmt: skip
def test_a_check_that_could_find_no_broken_row_is_refused_when_it_is_defined(people: "DataFrame", define: Any) -> None:
    suite = expect(people)

    with pytest.raises(ValueError, match=r"needs|takes|compares|number of rows"):
        define(suite)

    assert suite.checks == []


def test_none_among_arguments_lets_no_wrong_value_pass(people: "DataFrame") -> None:
    suite = expect(people).accepted_values("country", ["DE", None]).between("age.years", 0, None).between("age.years", None, 100)

    report = suite.check(fail=False)

    assert by_promise(report) == {
        "country is one of DE": ("failed", 2, ""),
        "age.years is at least 0": ("failed", 1, ""),
        "age.years is at most 100": ("failed", 1, ""),
    }


def test_a_check_that_spark_cannot_compute_hides_no_other(people: "DataFrame") -> None:
    numbers = people.sparkSession.createDataFrame([(1,), (9,)], "code int")
    suite = (
        expect(people).unique("id").between("name", 0, 10).matches("age.years", "[").satisfies("nope > 1").satisfies("id / 0 > 1")
        .foreign_key("country", numbers, "code").not_null("name", warn=True).rows(1)
    )  # fmt: skip

    report = suite.check(fail=False)

    assert [result.status for result in report.results] == [
        "failed", "failed", "failed", "failed", "failed", "failed", "warned", "passed",
    ]  # fmt: skip
    assert [bool(result.note) for result in report.results] == [False, True, True, True, True, True, False, False]
    notes = [result.note for result in report.results if result.note]
    assert all(note.startswith("Spark cannot check it: ") and "\n" not in note and "aborted" not in note for note in notes), notes
    assert (report.results[0].failing, report.results[0].sample) == (1, ({"id": 2, "copies": 2},))


def test_an_error_of_the_dataframe_itself_is_no_result_of_a_check(people: "DataFrame") -> None:
    broken = people.selectExpr("1 / (id - 2) as share")

    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        expect(broken).not_null("share").rows(1).check(fail=False)


def test_shares_conditions_and_measures_are_in_the_one_job(spark: "SparkSession", people: "DataFrame") -> None:
    suite = (
        expect(people, "people").not_null("country", tolerate=0.25).not_null("name", where="id = 2").rows(2, 2, where="id = 2")
        .unique("id", where="name <> 'cy'").stable().stable("nulls", "country").stable("mean", "id")
    )  # fmt: skip
    report, count = jobs(spark, suite.check, "shares")

    assert count == 1
    assert [(result.status, result.failing, result.tolerated) for result in report.results[:4]] == [
        ("passed", 1, 1), ("passed", 0, 0), ("passed", 0, 0), ("passed", 0, 0),
    ]  # fmt: skip
    assert [result.value for result in report.results[4:]] == [4, 0.25, 2]
    assert expect(people).not_null("country", tolerate=0.2).check(fail=False).results[0].status == "failed"
