"""The statements of workers, actions and services that may wait for a lock, each with the state that it needs."""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline.authoring import timetable
from paceline.authoring.asset import Asset
from paceline.states import RunState
from paceline.states import TaskState as S
from scheduler.deciding.following import NO_MOVES
from scheduler.services.assets import Assets
from scheduler.services.deadlines import Deadlines
from scheduler.services.plan import Plan
from scheduler.services.timeouts import Timeouts
from scheduler.store.actions import backfills, delete, mark
from scheduler.store.dags import dags
from scheduler.store.db.database import transact
from scheduler.store.moves import prepared
from scheduler.store.moves.fire import Fired, fire
from scheduler.store.moves.queue import dispatch_again
from scheduler.store.runs import deadlines
from scheduler.store.upkeep import notices, processes, retention
from scheduler.store.worker import dispatches, xcoms
from scheduler.store.worker.claims import Claim, Deferral, Ending, MovedInPlace, NextInPlace
from scheduler.store.worker.hot_path import HotPath
from scheduler.store.worker.pooled import Request
from scheduler.store.worker.pooler import of_steps
from support.interleavings import Interleaving
from support.run_actions import ALL, clear_, mark_, running
from support.scenario import dag

SUCCESS = Ending(S.SUCCESS)
BUSY = ("running", "shutdown")
TEARDOWN = {
    "below": {"down": ["join"]},
    "options": {"down": {"is_teardown": True, "trigger_rule": "all_done_setup_success", "setups": ("z",), "scope": ("join",)}},
}
ASSET = Asset("x", "s3://x")
#: What the DAG of a statement has beside its edges.
DAGS: dict[str, dict[str, Any]] = {
    "end a run with teardowns": TEARDOWN,
    "timeouts": TEARDOWN,
    "assets": {"options": {"a": {"outlets": (ASSET.uri,), "notify": ("asset",)}}},
    "pause if failing": {"max_consecutive_failed_dag_runs": 1},
    "deadlines": {"options": {"a": {"sla_s": 3600.0, "email": ("a@example.org",)}}},
    "notices": {"options": {"a": {"notify": ("on_success",)}}},
}


def interleaving(scenario: Any, statement: str) -> Interleaving:
    """The run that this statement needs."""
    return Interleaving(scenario, **DAGS.get(statement, {}))


def _claim(one: Interleaving) -> Callable[[], Any]:
    def claim() -> None:
        one.claimed = one.hot.claim(*one.messages["a"])

    return claim


def _report(one: Interleaving, ending: Ending = SUCCESS, *, in_place: bool = False) -> Callable[[], Any]:
    claim = one.claim_a()
    return _reported(one, claim, ending, in_place=in_place)


def _reported(one: Interleaving, claim: Claim, ending: Ending, *, in_place: bool) -> Callable[[], bool]:
    following = NextInPlace(str(uuid.uuid4())) if in_place else None

    def report() -> bool:
        one.reported = one.follower.report(claim, ending, following)
        return one.reported.is_stored

    return report


def _report_in_general(one: Interleaving) -> Callable[[], Any]:
    """A report that does not try to be a step."""
    report = _report(one, in_place=True)
    one.hot._without_steps = 1
    return report


class Together(HotPath):
    """Sends a step as a pooler does that has several: with one whose try does not exist."""

    def _step(self, parameters: Mapping[str, Any]) -> list[MovedInPlace]:
        other = {**parameters, "ti_id": -1, "dispatch_id": str(uuid.uuid4()), "dag_run_id": -1}
        requests = [Request(self.worker_id, None, each) for each in (other, parameters)]
        return self.objects(MovedInPlace, f"{prepared.HOLD_STEPS.execute}; {prepared.STEPS.execute}", of_steps(requests))


def _steps(one: Interleaving) -> Callable[[], Any]:
    one.use(Together(one.scenario.settings, one.scenario.worker_id))
    return _report(one, in_place=True)


def _report_join(one: Interleaving) -> Callable[[], Any]:
    z = one.scenario.claim(one.messages["z"])
    assert z is not None and one.scenario.follower.report(one.claim_a(), Ending(S.SUCCESS)).is_stored
    b = running(one.scenario)
    assert one.scenario.follower.report(b, Ending(S.SUCCESS)).is_stored
    return _reported(one, z, Ending(S.SUCCESS), in_place=True)


def _close(one: Interleaving) -> Callable[[], Any]:
    """All tasks have succeeded, and the process of the last one has yet to close the run."""
    report, z = one.scenario.follower.report, one.scenario.claim(one.messages["z"])
    assert z is not None and report(z, SUCCESS).is_stored and report(one.claim_a(), SUCCESS).is_stored
    assert report(running(one.scenario), SUCCESS).is_stored
    join = running(one.scenario)
    assert one.hot.report(join, SUCCESS, NO_MOVES).is_stored

    def check() -> None:
        if one.scenario.rows("select 1 from dag_run where state = 'success'"):
            assert set(one.scenario.states().values()) <= {"success", "removed"}, "the run has ended before its tasks"

    one.checks.append(check)
    return lambda: one.hot.close_run(join)


def _suspend(one: Interleaving, *, deferred: bool) -> Callable[[], Any]:
    if deferred:
        return _report(one, Ending(S.DEFERRED, delay_s=60, deferral=Deferral(classpath="x.Y", kwargs={})))
    return _report(one, Ending(S.UP_FOR_RESCHEDULE, delay_s=0))


def _write(one: Interleaving) -> Callable[[], Any]:
    claim = one.claim_a()
    return lambda: xcoms.push(one.hot, claim, "key", "1")


def _lose(one: Interleaving) -> Callable[[], Any]:
    claim = one.claim_a()
    engine = one.scenario.engine

    def check() -> None:
        left = one.scenario.rows("select state from task_instance where dispatch_id = %s and state in %s", claim.dispatch_id, BUSY)
        assert not left, f"the process is lost, and its task is still {left}"

    one.checks.append(check)
    return lambda: transact(engine, processes.fail_lost, claim.id, claim.dispatch_id, "its process ended", at_once=True)


def _stop(one: Interleaving) -> Callable[[], Any]:
    claim = one.claim_a()
    one.is_of_worker = False
    clear_(one.scenario, ALL)
    return lambda: dispatches.end_as_requested(one.hot, claim)


def _stop_marked(one: Interleaving) -> Callable[[], Any]:
    """A person has marked `a` as failed while it ran; its worker has yet to stop it."""
    claim = one.claim_a()
    one.is_of_worker, one.has_written = False, True
    xcoms.push(one.hot, claim, "key", "1")
    mark_(one.scenario, S.FAILED, "a")

    def check() -> None:
        if one.scenario.states().get("a") == "none":
            assert not one.scenario.rows("select 1 from xcom"), "a cleared task keeps its XComs"
            assert one.scenario.rows("select 1 from task_try"), "the try of a cleared task is not kept"

    one.checks.append(check)
    return lambda: dispatches.end_as_requested(one.hot, claim)


def _fire(one: Interleaving) -> Callable[[], Any]:
    claim = one.claim_a()
    ending = Ending(S.DEFERRED, delay_s=60, deferral=Deferral(classpath="x.Y", kwargs={}))
    assert one.scenario.follower.report(claim, ending).is_stored
    fired = Fired(ti_id=claim.id, dispatch_id=claim.dispatch_id, outcome={"event": 1})
    return lambda: transact(one.scenario.engine, fire, [fired])


def _action(call: Callable[[Any], Any]) -> Callable[[Interleaving], Callable[[], Any]]:
    def prepare(one: Interleaving) -> Callable[[], Any]:
        one.claim_a()
        one.is_of_worker = False
        return lambda: call(one.scenario)

    return prepare


def _turn(one: Interleaving) -> Callable[[], Any]:
    """A turn decides and queues `b`, starts a run of another DAG; a retry is due. The server is taken to have crashed before."""
    one.is_of_worker = False
    late = one.scenario.triggered(dag("late", {"again": []}))
    one.scenario.sql(
        f"update task_instance set state = 'up_for_retry', due_at = clock_timestamp(), try_number = 1 where dag_run_id = {late}"
    )
    mark_(one.scenario, S.SUCCESS, "a")
    one.scenario.add(dag("s", {"started": []}))
    one.scenario.trigger("s")

    def turn() -> None:
        one.scenario.turn()
        transact(one.scenario.engine, dispatch_again)

    return turn


def _delete(one: Interleaving) -> Callable[[], Any]:
    one.is_of_worker = False
    return lambda: transact(one.scenario.engine, delete.delete_run, "d", "r")


def _mark_run(one: Interleaving) -> Callable[[], Any]:
    one.claim_a()
    one.is_of_worker, one.marks_the_run = False, True
    return lambda: transact(one.scenario.engine, mark.mark_run, "d", "r", RunState.SUCCESS)


def _after_setup(one: Interleaving) -> None:
    """The setup `z` has succeeded, and `a` runs."""
    one.is_of_worker = False
    setup = one.scenario.claim(one.messages["z"])
    assert setup is not None and one.scenario.follower.report(setup, SUCCESS).is_stored
    one.claim_a()


def _end_with_teardowns(one: Interleaving) -> Callable[[], Any]:
    _after_setup(one)
    return lambda: transact(one.scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)


def _timeouts(one: Interleaving) -> Callable[[], Any]:
    _after_setup(one)
    one.scenario.sql("update dag_run set timeout_at = clock_timestamp()")
    return one.scenario.schedulers[0].service(Timeouts).run_once


def _cancel_backfill(one: Interleaving) -> Callable[[], Any]:
    """The run is a queued one of a backfill."""
    one.is_of_worker = False
    clear_(one.scenario, ALL)
    one.scenario.sql(
        "with b as (insert into backfill (dag_id, version_id, from_date, to_date, max_active_runs, reprocess)"
        " select 'd', version_id, now(), now(), 1, 'none' from dag returning id)"
        " update dag_run set backfill_id = b.id, backfill_ordinal = 1, run_type = 'backfill' from b"
    )
    (backfill_id,) = one.scenario.rows("select id from backfill")[0]
    return lambda: transact(one.scenario.engine, backfills.cancel, backfill_id)


def _pause_if_failing(one: Interleaving) -> Callable[[], Any]:
    """The last run has failed, unless a person clears it first."""
    one.is_of_worker = False
    transact(one.scenario.engine, mark.mark_run, "d", "r", RunState.FAILED)

    def check() -> None:
        states = one.scenario.rows("select r.state from dag_run r join dag_schedule s using (dag_id) where s.is_paused")
        assert states in ([], [("failed",)]), f"the DAG is paused, and its run is {states}"

    one.checks.append(check)
    return lambda: transact(one.scenario.engine, dags.pause_if_failing, [one.run])


def _plan(one: Interleaving) -> Callable[[], Any]:
    """Another DAG is due."""
    one.is_of_worker = False
    schedule = {"kind": "cron", "expression": "0 * * * *", "timezone": "UTC"}
    one.scenario.add(dag("p", {"planned": []}, schedule=schedule, start_date="2026-01-01T00:00:00+00:00"))
    return lambda: one.scenario.schedulers[0].service(Plan).run_once(datetime.now(UTC))


def _assets(one: Interleaving) -> Callable[[], Any]:
    """`a` has updated an asset, for which another DAG waits."""
    one.is_of_worker = False
    one.scenario.add(dag("e", {"updated": []}, schedule=timetable.WhenUpdated(ASSET).to_spec()))
    service = one.scenario.schedulers[0].service(Assets)
    service.run_once(datetime.now(UTC))
    assert one.scenario.follower.report(one.claim_a(), SUCCESS).is_stored

    def distribute() -> None:
        service.run_once(datetime.now(UTC))

    return distribute


def _deadlines(one: Interleaving) -> Callable[[], Any]:
    """The SLA of `a` is over, unless a person marks it as a success first."""
    one.is_of_worker = False
    one.claim_a()
    one.scenario.sql("update dag_run set run_type = 'scheduled', logical_date = run_after")
    transact(one.scenario.engine, deadlines.plan, one.old, one.run)
    one.scenario.sql("update deadline set due_at = clock_timestamp()")

    def check() -> None:
        missed = one.scenario.rows("select 1 from notice where kind = 'email_sla'")
        assert not missed or one.scenario.states()["a"] != "success", "a succeeded before its SLA was found to be over"

    one.checks.append(check)
    return one.scenario.schedulers[0].service(Deadlines).settle


def _notices(one: Interleaving) -> Callable[[], Any]:
    """A callback of `a` is due. Nobody calls it who lost the claim."""
    one.is_of_worker = False
    assert one.scenario.follower.report(one.claim_a(), SUCCESS).is_stored
    engine = one.scenario.engine
    called: list[int] = []

    def call() -> None:
        for notice in transact(engine, notices.claim, "s/1", emails=False, lease_s=60, limit=10):
            if transact(engine, notices.begin, notice.id, "s/1", lease_s=60) is not None:
                called.append(notice.id)
                transact(engine, notices.end, notice.id, "s/1")

    def check() -> None:
        again = transact(engine, notices.claim, "s/2", emails=False, lease_s=60, limit=10)
        assert not {notice.id for notice in again} & set(called), "a callback is called twice"

    one.checks.append(check)
    return call


def _retention(one: Interleaving) -> Callable[[], Any]:
    """The run is old, unless a person clears it first."""
    one.is_of_worker = False
    for message in one.messages.values():  # they are not in the broker any more
        claim = one.scenario.claim(message)
        assert claim is not None and one.scenario.follower.report(claim, SUCCESS).is_stored
    one.scenario.run_to_end(turns=40)
    one.scenario.sql("update dag_run set ended_at = ended_at - interval '100 days'")
    one.scenario.sql("update task_instance set ended_at = ended_at - interval '100 days'")
    before = datetime.now(UTC) - timedelta(days=30)
    deleted: list[str] = []

    def delete_old() -> None:
        deleted.extend(run.run_id for run in transact(one.scenario.engine, retention.delete_runs, before).runs)

    def check() -> None:
        assert not deleted or not one.scenario.rows("select 1 from dag_run"), "a run is deleted, and its log with it, and is there"

    one.checks.append(check)
    return delete_old


#: The statements of workers, actions and services that may wait for a lock. Each prepares its state, and returns its call.
STATEMENTS: dict[str, Callable[[Interleaving], Callable[[], Any]]] = {
    "claim": _claim,
    "report": _report,
    "step": lambda one: _report(one, in_place=True),
    "steps": _steps,
    "report in place": _report_in_general,
    "report of a failure": lambda one: _report(one, Ending(S.UP_FOR_RETRY, delay_s=0)),
    "report below a join": _report_join,
    "close a run": _close,
    "suspend": lambda one: _suspend(one, deferred=False),
    "defer": lambda one: _suspend(one, deferred=True),
    "write of a task": _write,
    "lose": _lose,
    "end as requested": _stop,
    "end as marked": _stop_marked,
    "fire": _fire,
    "clear": _action(lambda scenario: clear_(scenario, ALL)),
    "mark": _action(lambda scenario: mark_(scenario, S.SUCCESS, "a")),
    "mark the run": _mark_run,
    "end a run with teardowns": _end_with_teardowns,
    "cancel a backfill": _cancel_backfill,
    "delete": _delete,
    "services": _turn,
    "pause if failing": _pause_if_failing,
    "plan": _plan,
    "assets": _assets,
    "timeouts": _timeouts,
    "deadlines": _deadlines,
    "notices": _notices,
    "retention": _retention,
}
