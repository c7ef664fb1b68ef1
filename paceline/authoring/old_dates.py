"""The dates in the context that Airflow 2 has and Airflow 3 has not, for unchanged files."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

#: Each is the day of a moment, with dashes and without.
_DAYS = ("prev_ds", "next_ds", "yesterday_ds", "tomorrow_ds")
NAMES = (
    "execution_date", "prev_execution_date", "next_execution_date", "prev_execution_date_success",
    *_DAYS, *(f"{name}_nodash" for name in _DAYS),
)  # fmt: skip


def of(context: Mapping[str, Any]) -> dict[str, Any]:
    """The values of NAMES; empty for a run without a logical date.

    The previous and next dates are those of neighboring data intervals. For a run by hand, both are its own date, as in Airflow.
    """
    date = context.get("logical_date")
    if date is None:
        return {}
    start, end = context["data_interval_start"], context["data_interval_end"]
    is_scheduled = context["dag_run"].run_type != "manual" and start is not None and end is not None
    before, after = (date - (end - start), date + (end - start)) if is_scheduled else (date, date)
    day = timedelta(days=1)
    moments = dict(zip(_DAYS, (before, after, date - day, date + day), strict=True))
    return {
        "execution_date": date,
        "prev_execution_date": before,
        "next_execution_date": after,
        "prev_execution_date_success": context["prev_data_interval_start_success"],
        **{name: moment.strftime("%Y-%m-%d") for name, moment in moments.items()},
        **{f"{name}_nodash": moment.strftime("%Y%m%d") for name, moment in moments.items()},
    }
