"""What the pieces on Spark need beside Paceline, none of which `make setup` installs: the jar of Iceberg, and the data of TPC-H."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scheduler.settings import Paths, Settings
from scheduler.settings.sections import Tables
from workers.spark import iceberg
from workers.spark.iceberg import JarsMissingError

#: The variables with the folder of the jar of Iceberg for the installed Spark: that of the tests, and that of the setting.
JARS, SETTING = "PACELINE_TEST_ICEBERG_JARS", "PACELINE_TABLES_SPARK_JARS"
#: Where spark-submit puts the jar that it fetches without these variables.
FETCHED = Path(__file__).parents[2] / "build" / "iceberg"
GENERATOR = "tpchgen-cli"
GENERATE_S = 300.0


class MissingError(Exception):
    """The machine lacks what a piece needs; the message is one sentence that says what to do."""


def jars() -> str:
    """The jars of Iceberg for the installed Spark, separated by commas. MissingError."""
    given = os.environ.get(JARS) or os.environ.get(SETTING, "")
    try:
        return ",".join(iceberg.jars(Settings(paths=Paths(home=FETCHED), tables=Tables(spark_jars=given))))
    except JarsMissingError as missing:
        raise MissingError(str(missing)) from None


def generator() -> str:
    """The program that generates the data of TPC-H. MissingError."""
    beside = Path(sys.executable).with_name(GENERATOR)
    found = str(beside) if beside.exists() else shutil.which(GENERATOR)
    if found is None:
        raise MissingError(
            f"The data of TPC-H need {GENERATOR}: run .venv/bin/python -m pip install --constraint constraints.txt --group tpch."
        )
    return found


def generate(folder: Path, scale: float) -> None:
    """Write the tables of TPC-H into a folder, as <table>.parquet. MissingError."""
    command = [generator(), "parquet", "--scale-factor", str(scale), "--output-dir", str(folder)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=GENERATE_S, check=True)
