"""Random DAGs end in the states that Airflow's own scheduler gives them. A new difference is reduced and kept as a test."""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.airflow_cases import by_task, ended, named
from support.airflow_differences import Difference

from differential.random_dags import Case, random_case, smallest

RECORD = Path(__file__).parents[1] / "unit" / "deciding" / "record_airflow_states.py"
#: The cases of `make test`: those with recorded results of Airflow.
KEPT = RECORD.with_name("airflow_states.jsonl")
COUNT = int(os.environ.get("AIRFLOW_DAGS", "1000"))
MOST_FOUND = 5
#: Rules that Airflow applies to a mapped task before its source has ended.
BEFORE_THE_SOURCE = {
    "always",
    "one_success",
    "one_failed",
    "one_done",
    "all_skipped",
    "all_failed",
    "all_done",
    "all_done_min_one_success",
}
Ask = Callable[[Case], Case]


@pytest.fixture(scope="module")
def ask(airflow_python: Path, airflow_home: Callable[[], dict[str, str]]) -> Iterator[Ask]:
    """Sends cases to a process with Airflow and a database of its own, which returns their final states."""
    environment = {**airflow_home(), "AIRFLOW__LOGGING__LOGGING_LEVEL": "CRITICAL"}
    process = subprocess.Popen(
        [airflow_python, "-u", RECORD], env=environment, cwd=environment["HOME"], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    given, answered = process.stdin, process.stdout

    def answer(case: Case) -> Case:
        given.write(json.dumps(case) + "\n")
        given.flush()
        for line in answered:
            if line.startswith('{"tasks"'):
                found: Case = json.loads(line)
                return found
        raise AssertionError(f"Airflow ended while it ran {case}")

    yield answer
    given.close()
    process.wait(30)
    answered.close()


def test_random_dags_end_as_in_airflow(ask: Ask, figures: dict[str, Any]) -> None:
    seed = os.environ.get("SEED") or str(random.randrange(10**9))
    found: list[Case] = []
    classes: dict[str, int] = {}
    counted: dict[str, Any] = {"seed": seed, "equal": 0, "of known classes": classes, "new": 0}
    figures["random DAGs"] = counted

    for number in range(COUNT):
        case = random_case(f"{seed} {number}")
        answer = ask(case)
        if not _differ(answer):
            counted["equal"] += 1
            continue
        known = _class_of(answer)
        if known is None:
            small = smallest(case, lambda one: _differ(one := ask(one)) and _class_of(one) is None)
            found.append(ask(small))
            counted["new"] += 1
            if len(found) == MOST_FOUND:
                break
        else:
            classes[known] = classes.get(known, 0) + 1

    if found:
        with KEPT.open("a") as file:
            file.writelines(json.dumps(one, separators=(",", ":")) + "\n" for one in found)
    assert found == [], f"SEED={seed}; these are in {KEPT.name} now"


def _differ(answer: Case) -> bool:
    run = ended(answer)
    return (by_task(named(run)), str(run.state)) != (by_task(answer["states"]), answer["run"])


def _class_of(answer: Case) -> str | None:
    """The class of differences on the parity page; None for a new one.

    Only the tasks that differ and have no upstream task that differs count: what is below them follows.
    """
    run = ended(answer)
    ours, theirs = by_task(named(run)), by_task(answer["states"])
    by_id = {task["id"]: task for task in answer["tasks"]}
    differing = {name for name in by_id if ours.get(name) != theirs.get(name)}
    first = [by_id[name] for name in differing if not _above(by_id, name) & differing]
    if not first:
        return Difference.TEARDOWN_AFTER_FAILURE if any(one.get("fail_dagrun") for one in by_id.values()) else None
    found = {_class_of_task(one, answer["states"]) for one in first}
    return None if None in found else ", ".join(sorted(map(str, found)))


def _class_of_task(one: dict[str, Any], states: dict[str, str]) -> Difference | None:
    if isinstance(one.get("expand"), str) and one.get("rule", "all_success") in BEFORE_THE_SOURCE:
        return Difference.MAPPED_OVER_RESULT
    seen = {state for name, state in states.items() if name.split("[")[0] in one["up"]}
    if one.get("rule", "all_success") == "all_success" and "skipped" in seen and seen & {"failed", "upstream_failed"}:
        return Difference.SKIP_AND_FAILURE
    return None


def _above(by_id: dict[str, Any], name: str) -> set[str]:
    above = set(by_id[name]["up"])
    return above.union(*(_above(by_id, one) for one in above))
