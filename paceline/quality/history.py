"""What checks measured in earlier runs of the task, by the name of the DataFrame and the promise of the check."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

#: The key of the XCom with the measures of this run and of those before it, which a run takes over from the one before it.
KEY = "measures"
#: How many runs are kept.
KEPT = 15


def of_earlier_runs(values: Mapping[str, Any] | None) -> dict[str, list[tuple[str, float]]]:
    """The run ID and the value of each measure in earlier runs, up to the date of this one; the newest is the last."""
    if values is None:
        return {}
    ti = values["ti"]
    stored = ti.xcom_pull(key=KEY, include_prior_dates=True, default=None)
    if not isinstance(stored, dict):
        return {}
    return {name: [(run, value) for run, value in of_runs if run != ti.run_id] for name, of_runs in stored.items()}


def usual(values: list[tuple[str, float]]) -> float | None:
    """The median of earlier runs; None without one."""
    return median(value for _, value in values) if values else None


def name_of(frame: str, promise: str) -> str:
    return f"{frame}: {promise}"


def keep(report: Any, ti: Any) -> None:
    """Store the measures of this run after those of earlier ones. Only checks that did not fail are a measure for others."""
    measured = {name_of(one.frame, one.promise): one.value for one in report.results if one.value is not None}
    if measured:
        known = of_earlier_runs({"ti": ti})
        # As other checks of this try have stored them.
        own = ti.xcom_pull(key=KEY, default=None)
        known |= {name: [tuple(one) for one in of_runs] for name, of_runs in own.items()} if isinstance(own, dict) else {}
        others = {name: [one for one in known.get(name, ()) if one[0] != ti.run_id] for name in measured}
        stored = {name: [*others[name], (ti.run_id, value)] for name, value in measured.items()}
        ti.xcom_push(KEY, {name: [list(one) for one in of_runs[-KEPT:]] for name, of_runs in (known | stored).items()})
