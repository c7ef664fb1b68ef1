"""The `macros` of templates: date functions, and the modules that Airflow has there."""

import importlib
import json
import time
import uuid
from datetime import datetime, timedelta
from random import random
from typing import Any

from paceline.exceptions import PacelineError

__all__ = [
    "datetime", "datetime_diff_for_humans", "ds_add", "ds_format", "ds_format_locale", "json", "random", "time", "timedelta",
    "uuid",
]  # fmt: skip


def ds_add(ds: str, days: int) -> str:
    """`ds` plus a number of days: ds_add("2026-01-01", 5) is 2026-01-06."""
    return (datetime.fromisoformat(str(ds)) + timedelta(days=days)).strftime("%Y-%m-%d") if days else str(ds)


def ds_format(ds: str, input_format: str, output_format: str) -> str:
    """`ds` converted from one strftime format to another."""
    return datetime.strptime(str(ds), input_format).strftime(output_format)  # noqa: DTZ007 - a date, no moment


def ds_format_locale(ds: str, input_format: str, output_format: str, locale: Any = None) -> str:
    """`ds` converted from a strftime format to a format of Babel, in the language of `locale`, such as "de_DE".

    PacelineError unless the package Babel is installed.
    """
    dates = _loaded("babel.dates")
    moment = datetime.strptime(str(ds), input_format)  # noqa: DTZ007 - a date, no moment
    formatted: str = dates.format_datetime(moment, format=output_format, locale=locale or dates.LC_TIME or "en_US")
    return formatted


def datetime_diff_for_humans(dt: datetime, since: datetime | None = None) -> str:
    """The difference between `dt` and `since` (now) in words: "1 day before"."""
    import pendulum

    difference: str = pendulum.instance(dt).diff_for_humans(None if since is None else pendulum.instance(since))
    return difference


#: Modules that are slow to import, or not installed with Paceline.
_LATE = ("dateutil", "yaml")


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return _loaded(name)
    raise AttributeError(name)


def _loaded(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = {"yaml": "pyyaml", "babel.dates": "babel"}.get(module, module)
        raise PacelineError(f"This macro needs the package {package}: run `pip install {package}` on the workers.") from None
