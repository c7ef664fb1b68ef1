"""Data quality checks of DataFrames, run as one Spark job: `expect(frame).not_null("id").unique("id").check()`.

The import is pure Python; PySpark is needed only where the checks run, in a PySpark task.
"""

from paceline.quality.report import ExpectationError, Report, Result
from paceline.quality.suite import Suite, check, expect

__all__ = ["ExpectationError", "Report", "Result", "Suite", "check", "expect"]
