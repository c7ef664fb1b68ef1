"""What a pass of the queue service asks of the database: few statements, whatever waits."""

from collections import Counter
from collections.abc import Callable

from sqlalchemy import event
from support.scenario import Scenario, dag

from scheduler.services.promote import Promote
from scheduler.services.queue import Queue

#: Locks of pools, `parallelism` and runs, two counts, the line and the rest of it, the update, whether slots are handed on; then
#: the stamp with its setting.
MOST_STATEMENTS = 11


def statements_of_a_pass(scenario: Scenario) -> Counter[str]:
    asked: Counter[str] = Counter()
    with scenario.engine.connect():
        pass  # what a new connection is told is not counted

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked[" ".join(statement.split())[:60]] += 1

    event.listen(scenario.engine, "before_cursor_execute", note)
    scenario.schedulers[0].service(Queue).queue()
    event.remove(scenario.engine, "before_cursor_execute", note)
    return asked


def test_a_pass_that_fills_a_queue_asks_few_questions(make_scenario: Callable[..., Scenario]) -> None:
    scenario = make_scenario(scheduler={"queue_headroom": 8})
    scenario.add(dag("w", {f"t{number:03}": [] for number in range(300)}))
    scenario.trigger("w")
    scenario.schedulers[0].service(Promote).examine()

    asked = statements_of_a_pass(scenario)

    assert scenario.rows("select count(*) from task_instance where state = 'queued'") == [(72,)]
    assert asked.total() <= MOST_STATEMENTS, asked


def test_a_pass_with_nothing_to_do_asks_one(scenario: Scenario) -> None:
    assert statements_of_a_pass(scenario).total() == 1
