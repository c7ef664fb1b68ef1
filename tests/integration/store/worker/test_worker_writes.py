"""Each write of a worker or waiter is refused once its try is not the current one; docs/explanation/worker-writes.md lists them."""

import dataclasses
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from support.run_actions import clear_
from support.scenario import Scenario, chain

from paceline.exceptions import StaleTryError
from paceline.states import TaskState
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import transact
from scheduler.store.moves.fire import Fired, fire
from scheduler.store.secrets import variables
from scheduler.store.upkeep import processes
from scheduler.store.worker import deferrals, dispatches, external_jobs, xcoms
from scheduler.store.worker.claims import Claim, Deferral, Ending
from scheduler.store.worker.dispatches import ProgressWriter
from workers.task import triggered_runs

Write = Callable[[Scenario, Claim], object]
JOB = {
    "max_tries": 0, "queue": "default", "kind": "standalone", "deploy_mode": "cluster", "master": "spark://m:7077", "reach": {},
}  # fmt: skip
DEFERRAL = Deferral(classpath="a.B", kwargs={})


def trigger(scenario: Scenario, claim: Claim, *, reset: bool = False, run_id: str | None = None) -> str:
    return triggered_runs.trigger(
        scenario.settings, "other", run_id=run_id, logical_date=None, conf={}, reset=reset, claim=claim, hot=scenario.hot,
        versions=Versions(), patient=lambda ask: ask(), created=lambda _: None,
    )  # fmt: skip


def write_progress(scenario: Scenario, claim: Claim) -> None:
    writer = ProgressWriter(scenario.settings, claim)
    try:
        writer.write({"by": claim.dispatch_id})
    finally:
        writer.close()


def with_job(scenario: Scenario, do: Callable[[external_jobs.ExternalJob], object]) -> object:
    job, *_ = external_jobs.open_of(scenario.hot.dicts, scenario.rows("select task_instance_id from external_job")[0][0])
    return do(job)


WRITES: Mapping[str, Write] = {
    "push an XCom": lambda s, c: xcoms.push(s.hot, c, "key", f'"{c.dispatch_id}"'),
    "clear XComs": lambda s, c: xcoms.clear(s.hot, c),
    "set the label of a map index": lambda s, c: dispatches.label(s.hot, c, c.dispatch_id),
    "report a success": lambda s, c: s.follower.report(c, Ending(TaskState.SUCCESS, result=f'"{c.dispatch_id}"')).is_stored,
    "report a failure": lambda s, c: s.follower.report(c, Ending(TaskState.FAILED, reason="late")).is_stored,
    "reschedule": lambda s, c: s.follower.report(c, Ending(TaskState.UP_FOR_RESCHEDULE, delay_s=9, resume={"late": 1})).is_stored,
    "defer": lambda s, c: s.follower.report(c, Ending(TaskState.DEFERRED, resume={"late": 1}, deferral=DEFERRAL)).is_stored,
    "report the end of a stopped task": lambda s, c: s.follower.end_as_requested(c),
    "claim": lambda s, c: s.hot.claim(c.id, c.dispatch_id),
    "repeat a claim": lambda s, c: dispatches.claim_again(s.hot, c),
    "set a variable": lambda s, c: s.hot.write(c.writer, variables.WRITE_OF_TASK, ("kept", c.dispatch_id, None)),
    "delete a variable": lambda s, c: s.hot.write(c.writer, variables.DELETE_OF_TASK, ("kept",)),
    "set the state of a task": lambda s, c: xcoms.put(s.hot, c, None, "kept", f'"{c.dispatch_id}"', expires_in_s=None),
    "delete the state of a task": lambda s, c: xcoms.delete(s.hot, c, None, None),
    "set the state of an asset": lambda s, c: xcoms.put(s.hot, c, "s3://a", "kept", f'"{c.dispatch_id}"', expires_in_s=None),
    "delete the state of an asset": lambda s, c: xcoms.delete(s.hot, c, "s3://a", "kept"),
    "write progress": write_progress,
    "trigger a run": trigger,
    "clear a run": lambda s, c: trigger(s, c, reset=True, run_id="there"),
    "record an application": lambda s, c: external_jobs.add(s.hot.dicts, c.writer, tag=c.dispatch_id, **JOB),  # type: ignore[arg-type]
    "take over an application": lambda s, c: with_job(s, lambda job: external_jobs.take_over(s.hot.dicts, c.writer, job)),
    "update the status of an application": lambda s, c: with_job(
        s,
        lambda job: external_jobs.note(
            s.hot.dicts, dataclasses.replace(job, dispatch_id=c.dispatch_id), state="killed", ended=True
        ),
    ),
    "fail a lost try": lambda s, c: transact(s.engine, processes.fail_lost, c.id, c.dispatch_id, "late"),
    "confirm the claim in a heartbeat": lambda s, c: transact(s.engine, processes.still_held, s.worker_id, {c.dispatch_id: c.id}),
    "fire a trigger": lambda s, c: transact(
        s.engine, fire, [Fired(ti_id=c.id, dispatch_id=c.dispatch_id, outcome={"event": 1})]
    ),
    "check awaited triggers": lambda s, c: transact(s.engine, deferrals.still_awaited, "nobody", [(c.id, c.dispatch_id)]),
}  # fmt: skip


def everything(scenario: Scenario) -> dict[str, list[str]]:
    """All rows of all tables, which reading does not change."""
    tables = [
        row[0]
        for row in scenario.rows("select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace")
    ]
    return {
        table: sorted(row[0] for row in scenario.rows(f"select t::text from {table} t")) for table in tables if table != "process"
    }


def lost(scenario: Scenario, first: Claim) -> None:
    """Declared lost: it waits for its next try."""
    transact(scenario.engine, processes.fail_lost, first.id, first.dispatch_id, "lost")


def next_try(scenario: Scenario, first: Claim) -> Claim:
    """The next try runs, follows the application and has stored things."""
    lost(scenario, first)
    scenario.sql("update task_instance set due_at = clock_timestamp() where state = 'up_for_retry'")
    scenario.turn()
    claims = [claim for message in scenario.messages() if (claim := scenario.claim(message)) is not None]
    (second,) = [one for one in claims if one.id == first.id]
    assert second.try_number == first.try_number + 1
    xcoms.clear(scenario.hot, second)
    for name in (
        "push an XCom", "set the label of a map index", "set a variable", "write progress", "take over an application",
        "set the state of a task", "set the state of an asset",
    ):  # fmt: skip
        WRITES[name](scenario, second)
    return second


def succeeded(scenario: Scenario, first: Claim) -> None:
    second = next_try(scenario, first)
    assert WRITES["report a success"](scenario, second)


def deferred(scenario: Scenario, first: Claim) -> None:
    """The next try waits for a trigger."""
    second = next_try(scenario, first)
    assert WRITES["defer"](scenario, second)


def cleared(scenario: Scenario, first: Claim) -> None:
    lost(scenario, first)
    clear_(scenario, dag_id="c", run_id="r")


STAGES: Mapping[str, Callable[[Scenario, Claim], object]] = {
    "lost": lost, "next try": next_try, "succeeded": succeeded, "deferred": deferred, "cleared": cleared,
}  # fmt: skip


@pytest.fixture
def first(scenario: Scenario) -> Claim:
    """A claim that has an application, an XCom, states and a variable, beside another DAG with a run."""
    scenario.add(chain("c", 1, task={"retries": 3}))
    scenario.start(chain("other", 1), run_id="there")
    scenario.messages()
    scenario.trigger("c", run_id="r")
    scenario.turn()
    # On a slow machine, the message for the task of the other DAG has been sent again by now.
    claims = [one for message in scenario.messages() if (one := scenario.claim(message)) is not None]
    (claim,) = [one for one in claims if one.dag_id == "c"]
    external_jobs.add(scenario.hot.dicts, claim.writer, tag="tag", **JOB)  # type: ignore[arg-type]
    for name in ("push an XCom", "set a variable", "set the state of a task", "set the state of an asset"):
        WRITES[name](scenario, claim)
    return claim


@pytest.mark.parametrize("stage", STAGES)
def test_a_try_that_is_not_the_current_one_changes_nothing(scenario: Scenario, first: Claim, stage: str) -> None:
    STAGES[stage](scenario, first)
    before = everything(scenario)
    changed = {}

    for name, write in WRITES.items():
        # The late try may note the status of an application that no other try has taken over, because its status is true.
        if stage in {"lost", "cleared"} and name == "update the status of an application":
            continue
        with suppress(StaleTryError):
            write(scenario, first)
        after = everything(scenario)
        if after != before:
            changed[name] = [table for table in before if before[table] != after[table]]
            before = after

    assert changed == {}


USER_WRITES = (
    "push an XCom", "clear XComs", "set the label of a map index", "set a variable", "delete a variable", "trigger a run",
    "clear a run", "record an application", "take over an application", "set the state of a task", "delete the state of a task",
    "set the state of an asset", "delete the state of an asset",
)  # fmt: skip
#: Nothing of these is there to be changed while a try runs.
NOT_WHILE_RUNNING = {
    "claim",
    "repeat a claim",
    "report the end of a stopped task",
    "fire a trigger",
    "check awaited triggers",
    "confirm the claim in a heartbeat",
}


def restore(scenario: Scenario, claim: Claim) -> None:
    """It runs again, as if this write had not been."""
    scenario.sql("delete from deferral")
    scenario.sql(
        "update task_instance set state = 'running', started_at = coalesce(started_at, clock_timestamp()), worker = %s,"
        " ended_at = null, due_at = null, resume = null, reason = null, dispatch_id = %s where id = %s",
        scenario.worker_id,
        claim.dispatch_id,
        claim.id,
    )


def test_the_current_try_does_change_something(scenario: Scenario, first: Claim) -> None:
    """Else the test above could not fail."""
    without_effect = []
    for name in sorted(WRITES.keys() - NOT_WHILE_RUNNING):
        before = everything(scenario)
        WRITES[name](scenario, first)
        if everything(scenario) == before:
            without_effect.append(name)
        restore(scenario, first)

    assert without_effect == []


def test_user_code_of_a_stale_try_gets_an_error(scenario: Scenario, first: Claim) -> None:
    lost(scenario, first)

    for name in USER_WRITES:
        with pytest.raises(StaleTryError, match="no longer the current one"):
            WRITES[name](scenario, first)


def test_a_claim_that_a_crash_has_undone_still_stores(scenario: Scenario, first: Claim) -> None:
    scenario.sql("update task_instance set state = 'queued', started_at = null, worker = null where id = %s", first.id)

    for name in ("set the label of a map index", "set a variable", "record an application", "trigger a run"):
        before = everything(scenario)
        WRITES[name](scenario, first)
        assert everything(scenario) != before, name


def test_a_late_try_does_not_hold_the_application_of_its_task_instance(scenario: Scenario, first: Claim) -> None:
    """So it does not end it: the next try may attach to it."""
    (job,) = external_jobs.open_of(scenario.hot.dicts, first.id)
    assert external_jobs.held_by(scenario.hot.dicts, first.writer, job)

    lost(scenario, first)

    assert not external_jobs.held_by(scenario.hot.dicts, first.writer, job)


def test_a_reaper_takes_only_applications_that_no_try_follows_at_that_moment(scenario: Scenario, first: Claim) -> None:
    assert WRITES["report a success"](scenario, first)
    (job,) = external_jobs.abandoned(scenario.hot.dicts, ["default"])
    clear_(scenario, dag_id="c", run_id="r")
    scenario.turn()
    (message,) = scenario.messages()
    second = scenario.claim(message)
    assert second is not None

    assert external_jobs.take_abandoned(scenario.hot.dicts, job, reaper=str(uuid.uuid4())) is None
    assert external_jobs.take_over(scenario.hot.dicts, second.writer, job) is not None


def test_taking_an_application_over_twice_is_once(scenario: Scenario, first: Claim) -> None:
    """The answer to the first time was lost with its connection."""
    second = next_try(scenario, first)
    (job,) = external_jobs.open_of(scenario.hot.dicts, first.id)
    asked_first = dataclasses.replace(job, dispatch_id=first.dispatch_id)

    assert external_jobs.take_over(scenario.hot.dicts, second.writer, asked_first) is not None


def test_a_lost_response_makes_no_second_run(scenario: Scenario, first: Claim) -> None:
    """The run is created and the response to its commit is lost: the same call is repeated."""

    def twice(ask: Callable[[], Any]) -> Any:
        ask()
        return ask()

    run_id = triggered_runs.trigger(
        scenario.settings, "other", run_id=None, logical_date=None, conf={}, reset=False, claim=first, hot=scenario.hot,
        versions=Versions(), patient=twice, created=lambda _: None,
    )  # fmt: skip

    assert scenario.rows("select run_id from dag_run where dag_id = 'other' and run_id <> 'there'") == [(run_id,)]


#: The setting with which each write was committed, recorded by the server itself.
SPY = """
create table spied (tab text, op text, state text, commit text);
create function spy() returns trigger language plpgsql as $$ begin
  insert into spied values (tg_table_name, tg_op, to_jsonb(coalesce(new, old)) ->> 'state', current_setting('synchronous_commit'));
  return coalesce(new, old);
end $$;
"""


def test_only_claims_and_progress_do_not_wait_for_the_disk(scenario: Scenario, first: Claim) -> None:
    tables = ("task_instance", "xcom", "variable", "external_job", "deferral", "task_progress", "dag_run")
    triggers = [
        f"create trigger spy_{one} after insert or update or delete on {one} for each row execute function spy()" for one in tables
    ]
    # As a server has it; that of the tests is fast.
    scenario.sql("do $$ begin execute format('alter database %%I set synchronous_commit = on', current_database()); end $$")
    scenario.sql(";".join((SPY, *triggers)))
    scenario.hot.close()
    scenario.engine.dispose()

    # `next_try` claims and stores on one connection.
    second = next_try(scenario, first)
    for name in (
        "push an XCom",
        "delete a variable",
        "trigger a run",
        "set the label of a map index",
        "record an application",
        "defer",
    ):
        WRITES[name](scenario, second)

    ours = scenario.rows("select distinct tab, op, commit from spied")
    late = {(table, operation) for table, operation, commit in ours if commit == "off"}
    assert ("xcom", "INSERT", "on") in ours and ("external_job", "INSERT", "on") in ours and ("variable", "DELETE", "on") in ours
    assert late <= {("task_instance", "UPDATE"), ("task_progress", "INSERT"), ("task_progress", "UPDATE")}
    states = scenario.rows("select distinct state from spied where tab = 'task_instance' and commit = 'off'")
    assert set(states) <= {("running",), ("queued",)}, "a claim, and the scheduler's note that a message was sent"


URI = "s3://lake"


def claimed(scenario: Scenario) -> Claim:
    scenario.turn()
    (claim,) = [one for message in scenario.messages() if (one := scenario.claim(message)) is not None]
    return claim


def test_the_values_of_a_task_outlive_a_clear_and_those_of_an_asset_its_run(scenario: Scenario) -> None:
    """As in Airflow 3.3.2, which keeps both when a task instance is cleared, and deletes those of a task with its run."""

    def get(claim: Claim, uri: str | None) -> Any:
        return xcoms.get(scenario.hot, claim, uri, "k", default="none")

    scenario.triggered(chain("c", 1), run_id="r1")
    first = claimed(scenario)
    for uri in (None, URI):
        xcoms.put(scenario.hot, first, uri, "k", '{"id": 7}', expires_in_s=None)
    assert scenario.follower.report(first, Ending(TaskState.SUCCESS)).is_stored
    scenario.run_to_end()

    clear_(scenario, dag_id="c", run_id="r1")
    again = claimed(scenario)
    assert (get(again, None), get(again, URI)) == ({"id": 7}, {"id": 7})
    assert scenario.follower.report(again, Ending(TaskState.SUCCESS)).is_stored
    scenario.run_to_end()

    scenario.trigger("c", run_id="r2")
    other = claimed(scenario)
    assert (get(other, None), get(other, URI)) == ("none", {"id": 7})
    assert scenario.rows("select uri, key, dag_id, run_id, task_id, map_index from asset_state") == [
        (URI, "k", "c", "r1", first.task_id, -1)
    ]
    scenario.sql("delete from dag_run where run_id = 'r1'")
    assert scenario.rows("select * from task_state") == []
    assert get(other, URI) == {"id": 7}


def test_a_value_that_has_expired_is_not_read_and_a_new_value_replaces_it(scenario: Scenario) -> None:
    scenario.triggered(chain("c", 1), run_id="r1")
    claim = claimed(scenario)
    for seconds, value in ((1e-6, "none"), (3600.0, 1), (None, 1)):
        xcoms.put(scenario.hot, claim, None, "k", "1", expires_in_s=seconds)
        assert xcoms.get(scenario.hot, claim, None, "k", default="none") == value
