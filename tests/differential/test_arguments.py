"""The committed table of Airflow's arguments is that of the installed Airflow; a unit test compares it with Paceline."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__)


def test_the_table_of_arguments_is_airflows(ask_airflow: Callable[..., Any]) -> None:
    committed = HERE.parents[1] / "unit" / "authoring" / "airflow_arguments.json"

    assert ask_airflow(HERE.with_name("arguments.py").read_text(encoding="utf-8")) == json.loads(
        committed.read_text(encoding="utf-8")
    )
