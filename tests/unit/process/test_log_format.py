"""Log lines as JSON."""

import json
import logging

from scheduler.process import log_format


def test_a_record_is_one_line_with_its_fields_and_traceback() -> None:
    formatter = log_format.formatter("json", role="scheduler")
    try:
        raise ValueError("a\nb")
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("paceline.x", logging.ERROR, __file__, 1, "line %d\nü", (1,), info)
    line = formatter.format(record)
    found = json.loads(line)

    assert "\n" not in line
    assert {name: found[name] for name in ("level", "logger", "role", "message")} == {
        "level": "ERROR", "logger": "paceline.x", "role": "scheduler", "message": "line 1\nü"
    }  # fmt: skip
    assert found["at"].endswith("Z") and "ValueError: a\nb" in found["error"]


def test_text_stays_as_it_was() -> None:
    record = logging.LogRecord("paceline.x", logging.INFO, __file__, 1, "hello", (), None)

    assert log_format.formatter("text", role="x").format(record).endswith("Z INFO paceline.x: hello")
