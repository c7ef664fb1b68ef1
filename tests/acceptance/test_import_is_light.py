"""Importing `scheduler` loads authoring only."""

import subprocess
import sys

HEAVY = ("sqlalchemy", "celery", "kombu", "redis", "pyspark", "psycopg2", "pydantic", "jinja2", "croniter")


def test_importing_scheduler_loads_nothing_heavy() -> None:
    code = f"import scheduler, sys; print([m for m in {HEAVY} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
