"""`paceline notices list`: waiting and failed notices."""

from support.scenario import Scenario, dag

from paceline.states import TaskState
from scheduler.services.notify import Notify
from scheduler.store.db.database import transact
from scheduler.store.upkeep import notices

from .conftest import Cli


def test_waiting_and_failed_notices_are_listed(cli: Cli, scenario: Scenario) -> None:
    scenario.schedulers[0].service(Notify).close()
    scenario.triggered(
        dag("d", {"a": []}, task={"notify": ("on_failure", "email_failure"), "email": ("a@example.org",)}), run_id="r"
    )
    scenario.run_to_end(outcome=lambda _: TaskState.FAILED)
    assert cli.json("notices", "list", "--failed") == []
    assert cli.json("notices", "list", "--dag", "pair") == []

    (callback,) = transact(scenario.engine, notices.claim, "s", emails=False, lease_s=60, limit=20)
    transact(scenario.engine, notices.end, callback.id, "s", error="ValueError: no such channel")

    (failed,) = cli.json("notices", "list", "--failed", "--dag", "d")
    assert (failed["kind"], failed["error"]) == ("on_failure", "ValueError: no such channel")
    (waiting,) = cli.json("notices", "list")
    names = ("kind", "dag_id", "run_id", "task_id", "map_index", "try_number", "attempts")
    assert [waiting[name] for name in names] == ["email_failure", "d", "r", "a", -1, 1, 0]
    assert "ValueError: no such channel" in cli("notices", "list", "--failed", COLUMNS="200").output
    assert cli("notices", "list", "--dag", "nobody").exit_code == 3
