"""What the checks found: in words, in the log, as an XCom."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scheduler.authoring import running
from scheduler.exceptions import FailTask, XComError

log = logging.getLogger("paceline.quality")

#: The XCom that holds what all checks of a try found.
KEY = "expectations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one check ended: the rows that break it, and some of them as dicts (as text if they are long)."""

    frame: str
    promise: str
    status: Literal["passed", "warned", "failed"]
    failing: int = 0
    tolerated: int = 0
    note: str = ""
    sample: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        names = ("frame", "promise", "status", "failing", "tolerated", "note")
        return {name: getattr(self, name) for name in names} | {"sample": list(self.sample)}

    def __str__(self) -> str:
        where = f"{self.frame}: " if self.frame else ""
        if self.note:
            return f"{where}{self.promise} - but {self.note}"
        allowed = f", {self.tolerated:,} tolerated" if self.tolerated else ""
        broken = f"broken by {self.failing:,} row{'s' * (self.failing != 1)}{allowed}"
        return f"{where}{self.promise} - {broken}" if self.failing else f"{where}{self.promise}"


@dataclass(frozen=True, slots=True)
class Report:
    """How every check ended."""

    results: tuple[Result, ...]

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.status == "failed")

    def __str__(self) -> str:
        """Those that did not pass, with rows that break them."""
        broken = [result for result in self.results if result.status != "passed"]
        return "\n".join(f"  {one}" + "".join(f"\n    {row}" for row in one.sample) for one in broken)


class ExpectationError(FailTask):
    """The data is not what it must be."""

    def __init__(self, report: Report) -> None:
        self.report = report
        count = len(report.failed)
        super().__init__(f"{count} of {len(report.results)} checks failed:\n{Report(report.failed)}")


def finish(report: Report, *, fail: bool) -> Report:
    """Keep the report with the task that runs, say what did not pass; ExpectationError if something failed."""
    try:
        values: Mapping[str, Any] | None = running.get_current_context()
    except Exception:  # no task runs: a test, or a notebook
        values = None
    if values is not None:
        _keep(report, values["ti"])
    others = Report(tuple(one for one in report.results if one.status == "warned" or (one.status == "failed" and not fail)))
    if others.results:
        log.warning("Checks that did not pass:\n%s", others)
    if fail and report.failed:
        raise ExpectationError(report)
    return report


def _keep(report: Report, ti: Any) -> None:
    """After those of earlier checks of this try; without the sample rows if they are too many for an XCom."""
    known = ti.xcom_pull(key=KEY, default=[])
    found = [result.to_json() for result in report.results]
    try:
        ti.xcom_push(KEY, [*known, *found])
    except XComError:
        ti.xcom_push(KEY, [*known, *(result | {"sample": []} for result in found)])
