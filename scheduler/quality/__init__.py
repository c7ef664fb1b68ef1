"""What must hold of a DataFrame: `expect(frame).not_null("id").unique("id").check()`, all of it as one Spark job.

Pure Python to import; PySpark is needed where the checks run, in a PySpark task.
"""

from scheduler.quality.report import ExpectationError, Report, Result
from scheduler.quality.suite import Suite, check, expect

__all__ = ["ExpectationError", "Report", "Result", "Suite", "check", "expect"]
