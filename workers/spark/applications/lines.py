"""What the lines of a driver's output say of its ids and of its error: pure."""

import re

from workers.spark.clusters.status import Ids

_APPLICATION = re.compile(
    r"\b[Aa]pp(?:lication)? I[Dd]:? (app-\d+-\d+|local-\d+|spark-\w+)\b|Submitted application (application_\d+_\d+)"
)
#: Spark 3 and spark-sql say where the UI is; Spark 4 says the port, and its host is known to whoever started it.
_UI = re.compile(r"(?:SparkUI\b.{0,60}? started|Spark Web UI available) at (https?://[^\s,]+)")
_PORT = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
#: What spark-sql prints of a statement that failed: the error with its class, and no trace.
_ERROR = re.compile(r"^\[[A-Z0-9_.]+\] .+", re.MULTILINE)


def heard(text: str, host: str | None) -> Ids:
    """The ids in some lines of a driver that runs on `host`."""
    application, ui = _APPLICATION.search(text), _UI.search(text)
    url = ui[1] if ui else None
    if url is None and host is not None and (port := _PORT.search(text)):
        url = f"http://{host}:{port[1]}"
    return Ids(application_id=(application[1] or application[2]) if application else None, ui_url=url)


def error(text: str) -> str | None:
    """The last error that stands alone in some lines, as spark-sql prints it."""
    found = _ERROR.findall(text)
    return str(found[-1]) if found else None
