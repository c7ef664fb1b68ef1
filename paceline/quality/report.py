"""The report of the checks as text, in the log and as an XCom, with what they measured in earlier runs of the task."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from paceline.authoring import running
from paceline.authoring.asset import TABLE
from paceline.exceptions import FailTask, XComError

#: Not below paceline, whose records a worker writes to its own log.
log = logging.getLogger(__name__)
#: The key of the XCom with the results of all checks of a try.
KEY = "expectations"
#: The key of the XCom with the measures of this run and of those before it, which a run takes over from the one before it.
MEASURES = "measures"
#: How many runs are kept.
KEPT = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check. It passes if at most `tolerate` rows break its promise, or this share of them if it is below 1."""

    promise: str
    kind: Literal["columns", "rows", "row", "unique", "foreign_key", "measure"]
    #: The columns that it needs.
    needs: tuple[str, ...] = ()
    tolerate: float = 0
    warn: bool = False
    #: A SQL condition: only rows for which it is true are examined.
    where: str = ""
    #: kind "columns": types by name, and whether there may be others.
    types: Mapping[str, str | None] = field(default_factory=dict)
    exact: bool = False
    #: kind "rows": bounds; kind "row": what breaks it, as a word and its arguments; kind "foreign_key": the other DataFrame.
    least: int | None = None
    most: int | None = None
    broken: tuple[Any, ...] = ()
    target: Any = None
    target_columns: tuple[str, ...] = ()
    #: kind "measure": "rows", "mean", "nulls" (a share) or "newest" (seconds since 1970), the greatest change from earlier
    #: runs as a share, and the greatest age in seconds.
    measure: str = ""
    change: float = 0.0
    within_s: float = 0.0

    @property
    def is_share(self) -> bool:
        """Whether `tolerate` is a share of the rows."""
        return isinstance(self.tolerate, float) and 0 < self.tolerate < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one check.

    `frame` is the name of the DataFrame, and `promise` what was checked, in words. `status` is passed, warned or failed;
    `failing` is the number of rows that break the check, of which `tolerated` are allowed, and `sample` has some of these rows as
    dicts (as text if they are long). `note` is a remark on the check; `value` is what a check measured for later runs.
    """

    frame: str
    promise: str
    status: Literal["passed", "warned", "failed"]
    failing: int = 0
    tolerated: int = 0
    note: str = ""
    sample: tuple[Any, ...] = ()
    value: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as it is stored in the XCom."""
        names = ("frame", "promise", "status", "failing", "tolerated", "note")
        measured = {} if self.value is None else {"value": self.value}
        return {name: getattr(self, name) for name in names} | {"sample": list(self.sample)} | measured

    def __str__(self) -> str:
        where = f"{self.frame}: " if self.frame else ""
        if self.note:
            return f"{where}{self.promise} - but {self.note}"
        allowed = f", {self.tolerated:,} tolerated" if self.tolerated else ""
        broken = f"broken by {self.failing:,} row{'s' * (self.failing != 1)}{allowed}"
        return f"{where}{self.promise} - {broken}" if self.failing else f"{where}{self.promise}"


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all checks."""

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings do not count."""
        return not self.failed

    @property
    def failed(self) -> tuple[Result, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.status == "failed")

    def __str__(self) -> str:
        """The checks that did not pass, with sample rows."""
        broken = [result for result in self.results if result.status != "passed"]
        return "\n".join(f"  {result}" + "".join(f"\n    {row}" for row in result.sample) for result in broken)


class ExpectationError(FailTask):
    """The data does not pass its checks. `report` has the results of all of them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        count = len(report.failed)
        super().__init__(f"{count} of {len(report.results)} checks failed:\n{Report(report.failed)}")


def context() -> Mapping[str, Any] | None:
    """The context of the running task; None in a test or a notebook."""
    try:
        values: Mapping[str, Any] = running.get_current_context()
    except Exception:
        return None
    return values


def finish(report: Report, *, fail: bool) -> Report:
    """Store the report as an XCom of the running task, and log the checks that did not pass; ExpectationError if one failed."""
    values = context()
    if values is not None:
        _keep(report, values["ti"])
        _show(report, values.get("outlet_events"))
    logged = {"warned"} if fail else {"warned", "failed"}
    others = Report(tuple(result for result in report.results if result.status in logged))
    if others.results:
        log.warning("Checks that did not pass:\n%s", others)
    if fail and report.failed:
        raise ExpectationError(report)
    if values is not None and report.passed:
        keep_measures(report, values["ti"])
    return report


def _keep(report: Report, ti: Any) -> None:
    """Append to the results of earlier checks of this try; without sample rows if they are too large for an XCom."""
    earlier = ti.xcom_pull(key=KEY, default=[])
    results = [result.to_json() for result in report.results]
    try:
        ti.xcom_push(KEY, [*earlier, *results])
    except XComError:
        ti.xcom_push(KEY, [*earlier, *(result | {"sample": []} for result in results)])


def _show(report: Report, events: Any) -> None:
    """Add the results to the event of each table that the task updates."""
    for asset, event in (events or {}).items():
        own = [result for result in report.results if TABLE + result.frame == asset.uri]
        if own:
            known = event.extra.get("checks", {"passed": 0, "warned": []})
            event.extra["checks"] = {
                "passed": known["passed"] + sum(result.status == "passed" for result in own),
                "warned": [*known["warned"], *(str(result) for result in own if result.status == "warned")],
            }


def of_earlier_runs(values: Mapping[str, Any] | None) -> dict[str, list[tuple[str, float]]]:
    """The run ID and the value of each measure in earlier runs, up to the date of this one; the newest is the last."""
    if values is None:
        return {}
    ti = values["ti"]
    stored = ti.xcom_pull(key=MEASURES, include_prior_dates=True, default=None)
    if not isinstance(stored, dict):
        return {}
    return {name: [(run, value) for run, value in of_runs if run != ti.run_id] for name, of_runs in stored.items()}


def usual(values: list[tuple[str, float]]) -> float | None:
    """The median of earlier runs; None without one."""
    return median(value for _, value in values) if values else None


def name_of(frame: str, promise: str) -> str:
    return f"{frame}: {promise}"


def keep_measures(report: Any, ti: Any) -> None:
    """Store the measures of this run after those of earlier ones. Only checks that did not fail are a measure for others."""
    measured = {name_of(one.frame, one.promise): one.value for one in report.results if one.value is not None}
    if measured:
        known = of_earlier_runs({"ti": ti})
        # As other checks of this try have stored them.
        own = ti.xcom_pull(key=MEASURES, default=None)
        known |= {name: [tuple(one) for one in of_runs] for name, of_runs in own.items()} if isinstance(own, dict) else {}
        others = {name: [one for one in known.get(name, ()) if one[0] != ti.run_id] for name in measured}
        stored = {name: [*others[name], (ti.run_id, value)] for name, value in measured.items()}
        ti.xcom_push(MEASURES, {name: [list(one) for one in of_runs[-KEPT:]] for name, of_runs in (known | stored).items()})
