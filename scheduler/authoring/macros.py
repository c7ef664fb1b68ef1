"""The `macros` of templates: date functions, and the modules that Airflow has there."""

import json
import random
import time
import uuid
from datetime import datetime, timedelta
from typing import Any

__all__ = ["datetime", "ds_add", "ds_format", "json", "random", "time", "timedelta", "uuid"]


def ds_add(ds: str, days: int) -> str:
    """`ds` plus a number of days: ds_add("2026-01-01", 5) is 2026-01-06."""
    return (datetime.fromisoformat(ds) + timedelta(days=days)).strftime("%Y-%m-%d") if days else ds


def ds_format(ds: str, input_format: str, output_format: str) -> str:
    """`ds` converted from one strftime format to another."""
    return datetime.strptime(ds, input_format).strftime(output_format)  # noqa: DTZ007 - a date, no moment


def __getattr__(name: str) -> Any:
    if name == "dateutil":  # loaded at first use, because it is slow to import
        import importlib

        return importlib.import_module("dateutil")
    raise AttributeError(name)
