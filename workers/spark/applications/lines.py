"""Finds IDs and errors in the output of a driver. Pure."""

import re

from workers.spark.clusters.status import Ids

_APPLICATION = re.compile(
    r"\b[Aa]pp(?:lication)? I[Dd]:? (app-\d+-\d+|local-\d+|spark-\w+)\b|Submitted application (application_\d+_\d+)"
)
#: Spark 3 and spark-sql print the URL of the UI. Spark 4 prints only the port; the caller has the host.
_UI = re.compile(r"(?:SparkUI\b.{0,60}? started|Spark Web UI available) at (https?://[^\s,]+)")
_PORT = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
#: The output of spark-sql for a statement that failed: the error with its class, without a stack trace.
_ERROR = re.compile(r"^\[[A-Z0-9_.]+\] .+", re.MULTILINE)


def ids_in(text: str, host: str | None) -> Ids:
    """The IDs in the output of a driver that runs on `host`."""
    application, ui = _APPLICATION.search(text), _UI.search(text)
    url = ui[1] if ui else None
    if url is None and host is not None and (port := _PORT.search(text)):
        url = f"http://{host}:{port[1]}"
    return Ids(application_id=(application[1] or application[2]) if application else None, ui_url=url)


def error(text: str) -> str | None:
    """The last error on a line of its own, as spark-sql prints it."""
    errors = _ERROR.findall(text)
    return str(errors[-1]) if errors else None
