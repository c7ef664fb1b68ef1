"""Data quality checks of tables and DataFrames: `expect(frame).not_null("id").unique("id").check()`.

The import is pure Python; PySpark or DuckDB is needed only where the checks run, in a task.
"""

from paceline.quality.report import ExpectationError, Report, Result
from paceline.quality.suite import Suite, check, expect, propose

__all__ = ["ExpectationError", "Report", "Result", "Suite", "check", "expect", "propose"]
