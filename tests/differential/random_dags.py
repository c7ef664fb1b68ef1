"""Random small DAGs as data, in the form that record_airflow_states.py reads, and the smallest DAG that keeps a difference."""

import random
from collections.abc import Callable, Iterator
from typing import Any

Task = dict[str, Any]
Case = dict[str, Any]

RULES = (
    "all_success", "all_failed", "all_done", "all_skipped", "one_success", "one_failed", "one_done", "none_failed",
    "none_failed_min_one_success", "none_skipped", "all_done_min_one_success", "always",
)  # fmt: skip
OUTCOMES = ("success", "success", "success", "failed", "skipped")
MOST_TASKS = 9


def random_case(seed: str) -> Case:
    """A DAG of up to MOST_TASKS tasks with mapped tasks, a mapped group, a setup and a teardown. Equal seeds give equal DAGs."""
    dice = random.Random(seed)
    names = [f"t{number}" for number in range(dice.randint(3, MOST_TASKS))]
    tasks = [_task(dice, name, names[:at]) for at, name in enumerate(names)]
    if dice.random() < 0.4:
        _group(dice, tasks)
    if dice.random() < 0.4:
        _setup_and_teardown(dice, tasks)
    by_id = {task["id"]: task for task in tasks}
    for task in tasks:
        if isinstance(task.get("expand"), str):
            by_id[task["expand"]].setdefault("returns", dice.randint(0, 3))
    return {"tasks": tasks, "order": dice.choice(("first", "last"))}


def _task(dice: random.Random, name: str, earlier: list[str]) -> Task:
    one: Task = {"id": name, "out": dice.choice(OUTCOMES)}
    one["up"] = sorted(dice.sample(earlier, dice.randint(0, min(3, len(earlier)))))
    if dice.random() < 0.5:
        one["rule"] = dice.choice(RULES)
    if dice.random() < 0.25:
        one["expand"] = dice.randint(0, 3) if not earlier or dice.random() < 0.4 else dice.choice(earlier)
        one["out"] = {"*": dice.choice(OUTCOMES), "1": dice.choice(OUTCOMES)}
        if isinstance(one["expand"], str):
            one["up"] = sorted({*one["up"], one["expand"]})
    return one


def _group(dice: random.Random, tasks: list[Task]) -> None:
    """Map two or three neighbors as one group. `always` is not allowed there, and no task in it is mapped itself."""
    first = dice.randrange(max(1, len(tasks) - 2))
    members = tasks[first : first + dice.randint(2, 3)]
    earlier = [task["id"] for task in tasks[:first] if task.get("expand") is None]
    expand = dice.randint(0, 3) if not earlier or dice.random() < 0.5 else dice.choice(earlier)
    for at, one in enumerate(members):
        one.pop("expand", None)
        one |= {"group": "g", "expand": expand}
        if one.get("rule") == "always":
            del one["rule"]
        if isinstance(one["out"], dict):
            one["out"] = one["out"]["*"]
        if at and dice.random() < 0.7:
            one["up"] = sorted({*one["up"], members[at - 1]["id"]})
    inside = {member["id"] for member in members}
    for one in tasks:
        # A result of a mapped task is a list of lists; both systems map over it, but not in the same way as over one list.
        if one.get("expand") in inside and one["id"] not in inside:
            one["expand"] = 2


def _setup_and_teardown(dice: random.Random, tasks: list[Task]) -> None:
    work = dice.sample(tasks, dice.randint(1, min(3, len(tasks))))
    tasks.insert(0, {"id": "s", "setup": True, "out": dice.choice(OUTCOMES), "up": []})
    for one in work:
        one["up"] = sorted({*one["up"], "s"})
    tasks.append({
        "id": "z", "teardown": True, "out": dice.choice(("success", "failed")), "fail_dagrun": dice.random() < 0.3,
        "up": sorted({"s", *(one["id"] for one in work)}),
    })  # fmt: skip


def smallest(case: Case, differs: Callable[[Case], bool]) -> Case:
    """A case from which nothing can be removed, or set to its default, without losing the difference."""
    while True:
        found = next((smaller for smaller in _smaller(case) if differs(smaller)), None)
        if found is None:
            return case
        case = found


def _smaller(case: Case) -> Iterator[Case]:
    tasks = case["tasks"]
    for task in tasks:
        kept = [_without(other, task["id"]) for other in tasks if other is not task]
        if all(other.get("expand") != task["id"] for other in kept):
            yield case | {"tasks": kept}
    for at, task in enumerate(tasks):
        for name in ("rule", "setup", "teardown", "fail_dagrun", "group", "expand"):
            if task.get(name):
                yield case | {"tasks": [*tasks[:at], {k: v for k, v in task.items() if k != name}, *tasks[at + 1 :]]}
        for above in task["up"]:
            if above != task.get("expand"):
                yield case | {"tasks": [*tasks[:at], _without(task, above), *tasks[at + 1 :]]}
        if task["out"] != "success":
            yield case | {"tasks": [*tasks[:at], task | {"out": "success"}, *tasks[at + 1 :]]}


def _without(one: Task, name: str) -> Task:
    return one | {"up": [above for above in one["up"] if above != name]}
