"""What holds back a task instance that nobody has decided: upstream tasks, setups, the past, an expansion to come. Pure."""

from scheduler.deciding import wording
from scheduler.deciding.rules import Upstream, decide
from scheduler.deciding.situation import Situation
from scheduler.states import TaskState as S


def undecided(facts: Situation) -> list[str]:
    if facts.expands_over is not None:
        open_ones = [one for one in facts.expands_over if not wording.all_ended(one)]
        if open_ones:
            return [f"How many instances it becomes is not known yet: it waits for the result of {wording.names(open_ones)}."]
    return [*_upstream(facts), *_setups(facts), *_scope(facts), *_past(facts)]


def _upstream(facts: Situation) -> list[str]:
    counts: dict[S, int] = {}
    for one in facts.upstream:
        for state, count in one.states.items():
            counts[state] = counts.get(state, 0) + count
    upstream = Upstream.of(state for state, count in counts.items() for _ in range(count))
    if decide(facts.trigger_rule, upstream).state is not None:
        return []
    open_ones = [one for one in facts.upstream if not wording.all_ended(one)]
    if not open_ones:
        return [f"Its trigger rule {facts.trigger_rule} can never be met: upstream, {wording.names(facts.upstream)}."]
    return [
        f"It waits for upstream {wording.tasks(open_ones)} {wording.names(open_ones)}; its trigger rule is {facts.trigger_rule}."
    ]


def _setups(facts: Situation) -> list[str]:
    direct = {one.task_id for one in facts.upstream}
    open_ones = [one for one in facts.setups if one.task_id not in direct and not wording.all_ended(one)]
    return [f"It waits for its setup {wording.tasks(open_ones)} {wording.names(open_ones)}."] if open_ones else []


def _scope(facts: Situation) -> list[str]:
    direct = {one.task_id for one in facts.upstream}
    open_ones = [one for one in facts.scope if one.task_id not in direct and not wording.all_ended(one)]
    return [f"It is a teardown and waits for {wording.names(open_ones)} between its setup and itself."] if open_ones else []


def _past(facts: Situation) -> list[str]:
    return [f"It waits for the run before: {facts.past}."] if facts.past else []
