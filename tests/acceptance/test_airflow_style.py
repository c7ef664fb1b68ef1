"""Ten DAG files written for Airflow's SDK run unchanged, and their task instances end in the states that Airflow documents."""

import difflib
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from support.stacks import StackFactory
from support.waiting import eventually

from scheduler.dagfiles.migrate.folder import rewrite
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.read import reads
from scheduler.store.runs import manual_runs

pytestmark = pytest.mark.stack

FILES = Path(__file__).parents[1] / "airflow_style"
S, F, K, UF = "success", "failed", "skipped", "upstream_failed"

#: By DAG: how its run ends, and each task instance; `task[2]` is the instance of map index 2.
EXPECTED: dict[str, tuple[str, dict[str, str]]] = {
    "taskflow": (S, dict.fromkeys(("extract", "summarize", "check_0", "check_100", "store", "explain"), S)),
    # Its asset is updated by taskflow.store.
    "taskflow_report": (S, {"write": S}),
    "classic_operators": (
        # The only leaf is `end`, which waits for all to be done and succeeds, so failures before it do not fail the run.
        S,
        dict.fromkeys(("start", "add_1", "add_10", "shell", "check_shell", "end"), S)
        | {
            "skip_by_code": K,  # skip_on_exit_code is 99
            "fail_by_code": F,
            "retried": S,  # on its second try
            "refused": F,  # AirflowFailException is not tried again
            "passed_over": K,  # AirflowSkipException
            "slow": F,  # execution_timeout
        },
    ),
    "branching": (
        S,
        {
            "one_of_three": S,
            "red": S,
            # Direct downstream tasks that are not chosen are skipped; further down the trigger rules decide.
            "green": K,
            "blue": K,
            "after_green": K,
            "join": S,  # none_failed_min_one_success
            "strict_join": K,  # all_success below a skipped task
            "two_of_three": S,
            "small": S,
            "medium": K,
            "large": S,
            # None skips everything directly below.
            "nothing": S,
            "left": K,
            "right": K,
            "either": K,  # one_success, and all were skipped
            # A group stands for its first tasks.
            "into_group": S,
            "chosen.first": S,
            "chosen.second": S,
            "passed.first": K,
            "passed.second": K,
            "past_or_through": S,
            "through": S,
            "behind": S,  # below a chosen task, so the branch does not skip it
        },
    ),
    "short_circuit": (
        S,
        {
            "goes_on": S,
            "reached": S,
            # Everything below is skipped, with any trigger rule.
            "stops": S,
            "near": K,
            "far": K,
            "cleanup": K,
            # ignore_downstream_trigger_rules=False: only direct downstream tasks; all_done further down runs.
            "polite": S,
            "polite_near": K,
            "polite_far": K,
            "polite_cleanup": S,
            "beside": S,
            "stops_too": S,
            "joined": K,
            # A manual run is never left out.
            "latest": S,
            "behind_latest": S,
        },
    ),
    "mapping": (
        # never is a leaf and upstream_failed.
        F,
        dict.fromkeys(("numbers", "letters", "empty", "keywords", "total", "check_powers", "count_none", "count_failing"), S)
        | {f"add_one[{index}]": S for index in range(3)}
        | {f"power[{index}]": S for index in range(6)}  # a cross product
        | {f"pair[{index}]": S for index in range(2)}
        | {f"pair_kwargs[{index}]": S for index in range(2)}
        | {f"add_to_doubled[{index}]": S for index in range(3)}
        | {f"zipped[{index}]": S for index in range(3)}
        | {f"commands[{index}]": S for index in range(2)}
        | {"over_none": K}  # of length 0
        | {"odd_only[0]": S, "odd_only[1]": K, "odd_only[2]": S}
        | {"fail_at_two[0]": S, "fail_at_two[1]": F, "fail_at_two[2]": S, "never": UF},
    ),
    "task_groups": (
        # collect is a leaf and upstream_failed.
        F,
        dict.fromkeys(("start", "end", "outer.inner.one", "outer.inner.two", "outer.last", "without_prefix"), S)
        | {"decorated.show": S, "decorated.check": S, "sizes": S}
        | {"process.prepare[0]": S, "process.prepare[1]": F, "process.prepare[2]": S}
        # Instance i of a mapped group waits for instance i alone.
        | {"process.finish[0]": S, "process.finish[1]": UF, "process.finish[2]": S}
        | {"collect": UF, "collect_what_is_there": S},
    ),
    "sensors": (
        # after_hard is a leaf and upstream_failed.
        F,
        {
            "value_ready": S,
            "use": S,
            "rescheduled": S,
            "after_rescheduled": S,
            "soft": K,  # soft_fail
            "after_soft": K,
            "hard": F,  # timed out, and not tried again
            "after_hard": UF,
            "after_hard_anyway": S,
            "long_ago": S,
            "shell": S,
            "file": S,
        },
    ),
    "templates": (
        F,
        # Undefined names are errors: template_undefined is jinja2.StrictUndefined.
        {"check": S, "shell": S, "environment": S, "decorated": S, "undefined": F},
    ),
    "setup_teardown": (
        F,
        {
            "make_cluster": S,
            "work": S,
            "drop_cluster": S,
            "open": S,
            "broken_work": F,
            "more_work": UF,
            "close": S,  # a teardown runs after any end of the work
            "bad_setup": F,
            "needs_it": UF,
            "needs_it_too": UF,  # all_done, but an indirect setup failed
            "unused": UF,  # a teardown none of whose setups succeeded
        },
    ),
    # A teardown's failure does not fail the run.
    "teardown_fails": (S, {"opened": S, "inside": S, "closed": F}),
}

RULES = (
    "all_success", "all_failed", "all_done", "all_skipped", "one_success", "one_failed", "one_done", "none_failed",
    "none_failed_min_one_success", "none_skipped", "all_done_min_one_success", "always",
)  # fmt: skip
#: In the order of RULES, below these tasks: good succeeds, bad fails, skipped is skipped, below_bad is upstream_failed.
BELOW = {
    "good": (S, K, S, K, S, K, S, S, S, S, S, S),
    "bad": (UF, S, S, K, UF, S, S, UF, UF, S, UF, S),
    "skipped": (K, K, S, S, K, K, K, S, K, K, K, S),
    "good_and_bad": (UF, K, S, K, S, S, S, UF, UF, S, S, S),
    "good_and_skipped": (K, K, S, K, S, K, S, S, S, K, K, S),
    # one_done counts tasks that ran: upstream_failed is not one.
    "below_bad": (UF, S, S, K, UF, S, K, UF, UF, S, UF, S),
}
EXPECTED["trigger_rules"] = (
    F,
    {"good": S, "bad": F, "skipped": K, "below_bad": UF}
    | {f"{above}__{rule}": state for above, states in BELOW.items() for rule, state in zip(RULES, states, strict=True)},
)

CONF = {"templates": {"number": 7}}
#: Made by the update of an asset, not by a trigger.
FOLLOWS = {"taskflow_report"}


def sources() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(FILES.glob("*.py"))}


def test_the_rewrite_changes_only_import_lines() -> None:
    assert len(sources()) == 10
    for name, old in sources().items():
        found = rewrite(old.encode())
        lines = difflib.ndiff(old.splitlines(), found.content.decode().splitlines())
        different = [line for line in lines if line[0] in "+-"]
        assert different and all(line[2:].startswith(("from airflow", "from paceline")) for line in different), name
        assert b"import airflow" not in found.content and b"from airflow" not in found.content, name
        assert found.unsupported == (), name


def test_they_end_as_airflow_documents(stack_factory: StackFactory) -> None:
    stack = stack_factory(sources(), schedulers=1, workers=[("default", 4)], env={"PACELINE_CORE_AIRFLOW_IMPORTS": "true"})
    engine = database.create(stack.settings)
    try:
        eventually(
            lambda: {dag["dag_id"] for dag in transact(engine, reads.dags)} == EXPECTED.keys(),
            timeout=120,
            interval=0.2,
            message=lambda: str([(one["file"], one["message"]) for one in transact(engine, reads.import_errors)]),
        )
        for dag_id in EXPECTED.keys() - FOLLOWS:
            transact(engine, manual_runs.trigger, dag_id, run_id="style", conf=CONF.get(dag_id, {}))
        eventually(
            lambda: {run["dag_id"] for run in transact(engine, reads.runs) if run["ended_at"]} == EXPECTED.keys(),
            timeout=150,
            interval=0.2,
            message=lambda: str({dag_id: differences(outcome(engine, dag_id), EXPECTED[dag_id]) for dag_id in EXPECTED}),
        )

        different = {dag_id: differences(outcome(engine, dag_id), expected) for dag_id, expected in EXPECTED.items()}
    finally:
        engine.dispose()
    assert {dag_id: what for dag_id, what in different.items() if what} == {}


def outcome(engine: Engine, dag_id: str) -> tuple[str, dict[str, str]]:
    """How the newest run of a DAG ended, and each of its task instances."""
    for run in transact(engine, reads.runs, dag_id=dag_id, limit=1):
        tasks = transact(engine, reads.task_instances, dag_id, run["run_id"])
        names = [f"{task['task_id']}[{task['map_index']}]" if task["map_index"] >= 0 else task["task_id"] for task in tasks]
        return run["state"], {name: str(one["state"]) for name, one in zip(names, tasks, strict=True)}
    return "never made", {}


def differences(found: tuple[str, dict[str, str]], expected: tuple[str, dict[str, str]]) -> dict[str, tuple[Any, Any]]:
    """The differences: the actual and the expected value."""
    is_, should = ({"(the run)": state} | tasks for state, tasks in (found, expected))
    return {name: (is_.get(name), should.get(name)) for name in is_.keys() | should if is_.get(name) != should.get(name)}
