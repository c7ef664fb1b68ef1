"""Which teardowns still run after a person or a timeout has ended the other tasks of a run. Pure.

A teardown runs if one of its setups succeeded, no matter what ended the tasks between the two.
"""

from collections.abc import Mapping

from paceline.states import FINISHED, STARTED, SUSPENDED
from paceline.states import TaskState as S
from scheduler.deciding.evaluate import States, evaluate
from scheduler.serialized.dag import SerializedDag

#: A setup in one of these may have made what its teardown removes.
MAY_HAVE_MADE = STARTED | SUSPENDED | {S.UP_FOR_RETRY}
#: The task number and the map index of a task instance.
Place = tuple[int, int]


def still_to_run(dag: SerializedDag, states: States, ended: Mapping[Place, S]) -> frozenset[Place]:
    """The unfinished teardowns in `ended` that are to run, if all others in it get the state that it names.

    `states` are those before. A setup that has succeeded counts as such; one that has made nothing counts as skipped, even if
    it is marked success.
    """
    kept = {
        (no, index)
        for no, index in ended
        if no < len(dag.tasks) and dag.tasks[no].is_teardown and states[no][index] not in FINISHED
    }
    if not kept:
        return frozenset()
    after = {no: dict(of_task) for no, of_task in states.items()}
    for (no, index), state in ended.items():
        if (no, index) not in kept:
            before = states[no][index]
            is_setup = no < len(dag.tasks) and dag.tasks[no].is_setup
            if not (is_setup and before is S.SUCCESS):
                after[no][index] = S.SKIPPED if is_setup and before not in MAY_HAVE_MADE else state
    runs = {(no, index) for no, index in kept if after[no][index] is not S.NONE}
    # An outer teardown is decided after the inner ones, so let each round end the teardowns that it decides.
    while decisions := evaluate(dag, after).decisions:
        for one in decisions:
            place = (one.task_no, one.map_index)
            is_ready = one.state is S.SCHEDULED
            after[one.task_no][one.map_index] = S.SUCCESS if is_ready and place in kept else one.state
            if is_ready and place in kept:
                runs.add(place)
    undecided = {(no, index) for no, index in kept if after[no][index] is S.NONE}
    return frozenset(runs | undecided)
