"""The end of a try: it is reported, and the tasks that can run next are queued, in one transaction; then a message is sent.

deciding/following.py decides what follows, and store/worker/hot_path.py stores it. That costs O(direct downstream tasks), whatever
the size of the DAG. DatabaseStore repeats each call until the database answers; it also has the reads and writes of user code.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

import psycopg2
from tenacity import wait_random_exponential

from paceline.authoring.triggers import Counts, Target
from paceline.exceptions import StaleTryError
from paceline.states import FINISHED, SUSPENDED, RunState, TaskState
from scheduler.catalog.access import Access
from scheduler.deciding.following import NO_MOVES, Plan, Ranges, plan_of, undecided
from scheduler.messaging.message import Message
from scheduler.messaging.publisher import PUBLISH_ERRORS, Publisher
from scheduler.messaging.wakeups import Wakeups
from scheduler.process import fault_points, retries
from scheduler.serialized.dag import SerializedDag
from scheduler.settings import Settings
from scheduler.store.dags.versions import Versions
from scheduler.store.db import sqlstates
from scheduler.store.runs.runs import CreatedRun
from scheduler.store.worker import claims, dispatches, external_runs, table_tries, xcoms
from scheduler.store.worker.claims import Claim, Ending, Moved, NextInPlace, Refused, Reported, Undecided
from scheduler.store.worker.hot_path import HotPath, UndoneError
from workers.process.logs import worker_log
from workers.process.secrets_backend import StoreBackend
from workers.tables import access
from workers.task import triggered_runs
from workers.task.report_lock import ReportLock
from workers.task.store import StoredEvents, StoredStates

R = TypeVar("R")

#: Pauses of 0.05 to 0.1 s, then up to twice as long each time, and at most 5 s.
AGAIN = retries.repeated(sqlstates.is_passing, pause_s=wait_random_exponential(0.1, max=5, min=0.05))
#: Seconds. A task instance that is due later than this is found by the poll of the scheduler.
SOON_S = 1.0


class _RefusedError(UndoneError):
    """The report was refused, so its tables must not be published either."""

    def __init__(self, answer: Refused) -> None:
        super().__init__("The report was refused.")
        self.answer = answer


class Follower:
    """Reports the tries of one pool process, and sends the messages that follow.

    After a temporary psycopg2.Error, call `report` again; see is_passing in scheduler/store/db/sqlstates.py.
    """

    def __init__(self, hot: HotPath, publisher: Publisher, wakeups: Wakeups, *, enabled: bool, aging: bool = False) -> None:
        self._hot = hot
        self._publisher = publisher
        self._wakeups = wakeups
        self._enabled = enabled
        self._aging = aging

    def report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Reported | Refused:
        """Store the end of a try and follow it. Refused if the task instance no longer belongs to this dispatch.

        With `next_in_place`, the next task instance may run in this process. Then it needs no message: the answer has its claim.

        The outcome of a task must not depend on its downstream tasks: after an error there, the end is stored alone, and the
        scheduler decides the downstream tasks.
        """
        try:
            return self._follow(claim, ending, next_in_place, self._hot.dag(claim.version_id))
        except Exception as error:
            if sqlstates.is_passing(error) or isinstance(error, UndoneError):
                raise
            worker_log.exception(
                "The downstream tasks of %s.%s (run %s) could not be followed; the scheduler decides them",
                claim.dag_id, claim.task_id, claim.run_id,
            )  # fmt: skip
            return self._follow(claim, ending, next_in_place, None)

    def created(self, run: CreatedRun) -> None:
        """Send the message of the first task of a new run, or wake the services that start it."""
        self._publisher.try_publish(run.messages)
        self._wakeups.wake(*run.tokens)

    def end_as_requested(self, claim: Claim) -> bool:
        """Apply the state that a clear or mark requested, once the user code has stopped. False if none was requested."""
        ended = dispatches.end_as_requested(self._hot, claim)
        if ended:
            self._wakeups.wake(f"run:{claim.dag_run_id}", "queue")
        return ended

    def _follow(
        self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None, dag: SerializedDag | None
    ) -> Reported | Refused:
        """Plan and report; if a join may be ready, lock it, plan and report again; then announce. Without `dag`, nothing moves."""
        plan = NO_MOVES if dag is None or not self._enabled else plan_of(dag, claim, ending.state, ending.skip)
        answer: Reported | Undecided | Refused
        if ending.state in SUSPENDED:
            answer = self._hot.suspend(claim, ending)
        elif ending.tables is None:
            answer = self._hot.report(claim, ending, plan, next_in_place, aging=self._aging)
        else:
            answer = Undecided(frozenset())  # its tables are published under the same locks
        waiting = answer.waiting
        if isinstance(answer, Undecided):
            try:
                answer = self._report_locked(claim, ending, next_in_place, dag, plan=plan, waiting=waiting)
            except _RefusedError as error:
                answer = error.answer
        assert not isinstance(answer, Undecided), "under locks, nothing is left to ask about"
        if isinstance(answer, Reported):
            certain = not plan.needs_scheduler and waiting.issuperset(plan.left)
            needs_scheduler = dag is None or not certain or self._is_last(claim, dag, plan, answer)
            self._announce(claim, ending, dag, answer, needs_scheduler=needs_scheduler)
        return answer

    def _report_locked(
        self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None, dag: SerializedDag | None,
        *, plan: Plan, waiting: frozenset[int],
    ) -> Reported | Undecided | Refused:  # fmt: skip
        """Report under the locks of the downstream joins; the tables of the try become visible with the same commit."""
        if ending.tables is not None:
            fault_points.point("publish.before")
        with self._hot.locked(claim, plan, waiting) as states:
            fault_points.point("follow.locked")
            if ending.tables is not None:
                table_tries.publish(self._hot, claim, ending.tables)
                fault_points.point("publish.moved")
            decided = plan if dag is None or plan is NO_MOVES else plan_of(dag, claim, ending.state, ending.skip, states)
            answer = self._hot.report(claim, ending, decided, next_in_place, aging=self._aging, is_locked=True)
            if ending.tables is not None and isinstance(answer, Refused):
                raise _RefusedError(answer)
            fault_points.point("follow.commit")
        return answer

    def _is_last(self, claim: Claim, dag: SerializedDag, plan: Plan, reported: Reported) -> bool:
        """Whether no later report can decide the remaining downstream tasks or end the run, although the plan assumed one would.

        A task instance that waited when the report began can start and end before the report is stored.
        """
        if not (plan.joins or plan.left) and (reported.moved or reported.slots_passed_to or not reported.others_wait):
            return False  # as after most tasks
        moved = {dag.number[each.task_id] for each in (*reported.moved, reported.slots_passed_to) if each is not None}
        asked = Ranges.above(dag, undecided(dag, plan, moved))
        if not asked.tasks and (moved or not reported.others_wait):
            return False
        try:
            return self._hot.needs_scheduler(claim, asked)
        except psycopg2.Error:
            # The report is stored, and must be announced.
            return True

    def _announce(
        self, claim: Claim, ending: Ending, dag: SerializedDag | None, reported: Reported, *, needs_scheduler: bool
    ) -> None:
        """Send the messages of queued task instances, then wake the services that have something to do."""
        fault_points.point("report.after")
        moved = (*reported.moved, reported.slots_passed_to)
        messages = [_message(claim, each) for each in moved if each is not None and each.state is TaskState.QUEUED]
        if dag is None:
            tokens = ["queue", f"run:{claim.dag_run_id}", f"next:{claim.dag_run_id}", "notify", "plan"]
        elif ending.state in SUSPENDED:
            tokens = _tokens_of_suspension(claim, ending, dag, reported)
        else:
            tokens = wakeup_tokens(claim, dag, reported, needs_scheduler=needs_scheduler)
        # The rescue service finds queued task instances without a message, so nothing is lost while the broker is down.
        with contextlib.suppress(*PUBLISH_ERRORS):
            if messages:
                self._publisher.publish(messages)
        fault_points.point("follow.published")
        if (
            dag is not None
            and self._enabled
            and ending.state in FINISHED
            and may_end(dag, reported, needs_scheduler=needs_scheduler)
        ):
            tokens = self._close(claim, tokens)
        if tokens:
            self._wakeups.wake(*tokens)
        if ending.deferral is not None:
            self._wakeups.wake_waiters()
        fault_points.point("follow.woken")

    def _close(self, claim: Claim, tokens: list[str]) -> list[str]:
        """Close the run of this report, if it was the last one and the run succeeded. The wakeups that are still to be sent.

        Two last task instances may end at the same time: each looks after its commit, so one of them sees both ends.
        """
        try:
            after = self._hot.close_run(claim)
        except psycopg2.Error:
            return tokens
        fault_points.point("follow.closed")
        if after is None or (after.state == RunState.RUNNING and not after.goes_on):
            return tokens
        if after.state != RunState.RUNNING and after.others_wait:
            return [*tokens, "plan"]
        return [token for token in tokens if not token.startswith("run:")]


def _tokens_of_suspension(claim: Claim, ending: Ending, dag: SerializedDag, reported: Reported) -> list[str]:
    tokens = ["queue"] if reported.pool_has_waiting or _frees_limit(claim, dag) else []
    if ending.delay_s is not None and ending.delay_s < SOON_S:
        tokens.append(f"run:{claim.dag_run_id}")
    return tokens


def wakeup_tokens(claim: Claim, dag: SerializedDag, reported: Reported, *, needs_scheduler: bool) -> list[str]:
    """The wakeups to send: for queue, if a waiting task instance may start; for the run, if it may end or the
    scheduler must decide something; for the next run, if its tasks wait for this one; and for the services of notices.
    """
    tokens = []
    if _may_find_capacity(claim, reported) or _frees_limit(claim, dag):
        tokens.append("queue")
    if needs_scheduler or _leaves_decisions(dag, reported) or not reported.others_wait:
        tokens.append(f"run:{claim.dag_run_id}")
    if dag.depends_on_past:
        tokens.append(f"next:{claim.dag_run_id}")
    if claim.task_no < len(dag.tasks) and dag.tasks[claim.task_no].notify:
        tokens += ["notify", *(("plan",) if dag.tasks[claim.task_no].outlets else ())]
    return tokens


def may_end(dag: SerializedDag, reported: Reported, *, needs_scheduler: bool) -> bool:
    """Whether a scheduler would have nothing to do for the run, except to close it."""
    goes_on = any(moved.state not in FINISHED for moved in (*reported.moved, reported.slots_passed_to) if moved is not None)
    return not (needs_scheduler or _leaves_decisions(dag, reported) or reported.others_wait or goes_on)


def _leaves_decisions(dag: SerializedDag, reported: Reported) -> bool:
    """Whether only a scheduler decides some downstream tasks: those of a moved task that is finished, and those not moved."""
    ended = any(moved.state in FINISHED and dag.downstream[dag.number[moved.task_id]] for moved in reported.moved)
    return ended or not reported.all_moved


def _frees_limit(claim: Claim, dag: SerializedDag) -> bool:
    """Whether others of its task may be parked behind a limit that it has left, see store/queueing/parking."""
    return claim.task_no in dag.limited


def _may_find_capacity(claim: Claim, reported: Reported) -> bool:
    """Whether the report may have freed slots for a waiting task instance without the queue service."""
    ready = [moved for moved in reported.moved if moved.state is TaskState.SCHEDULED]
    successor = next((moved for moved in reported.moved if moved.dispatch_id is not None), None)
    first = reported.slots_passed_to
    if (new := successor or first) is not None and new.pool_slots < claim.pool_slots and (ready or reported.pool_has_waiting):
        return True
    if first is not None:
        # The ready tasks have a lower rank. `first` waited for slots of its pool and a place in its queue, so there is no
        # capacity for others that need both. Or a pass of the queue service had chosen `first`; then it misses it and another
        # pass follows (see `lost` in services/queue).
        return any((moved.pool, moved.queue) != (first.pool, first.queue) for moved in ready)
    return bool(ready) or (reported.pool_has_waiting and successor is None)


def _message(claim: Claim, moved: Moved) -> Message:
    assert moved.dispatch_id is not None
    return Message(
        ti_id=moved.id,
        dispatch_id=moved.dispatch_id,
        queue=moved.queue,
        dag_id=claim.dag_id,
        run_id=claim.run_id,
        task_id=moved.task_id,
        map_index=moved.map_index,
        priority_weight=moved.priority_weight,
    )


@dataclass(slots=True)
class DatabaseStore:
    """The reads and writes of one pool process, over its own connection. See workers/task/store.py."""

    settings: Settings
    hot: HotPath
    follower: Follower
    over: xcoms.MappedOver = field(default_factory=xcoms.MappedOver)
    lock: ReportLock = field(default_factory=ReportLock)
    #: Of the runs that tasks trigger.
    versions: Versions = field(default_factory=Versions)

    def claim(self, ti_id: int, dispatch_id: str, worker_id: str, is_ours: Callable[[], bool] = lambda: True) -> Claim | None:
        self.hot.worker_id = worker_id
        attempts = itertools.count()
        return self.patient(lambda: self._claim(ti_id, dispatch_id, next(attempts) > 0, is_ours))

    def _claim(self, ti_id: int, dispatch_id: str, is_repeated: bool, is_ours: Callable[[], bool]) -> Claim | None:
        """Claim, in turn only in a burst of reports and after a failed attempt: turns would delay the start of quick tasks."""
        if self.hot.is_open or not (self.hot.is_contended or self.lock.others_wait()):
            claim = self.hot.claim(ti_id, dispatch_id, is_repeated)
        else:
            with self._turn():
                claim = self.hot.claim(ti_id, dispatch_id, is_repeated)
                if claim is None and self.lock.others_wait():
                    self.hot.close_for_others()
        # After an attempt that was not stored, another process of this worker may have received the message again, and claimed it.
        return claim if not is_repeated or is_ours() else None

    def dag(self, version_id: int) -> SerializedDag:
        return self.patient(lambda: self.hot.dag(version_id))

    def report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None = None) -> Reported | Refused:
        """Store the ending. If the report is refused because the task was cleared or marked, store the requested state."""
        fault_points.point("report.before")
        has_tables = bool(self.settings.tables.warehouse) and ending.state is TaskState.SUCCESS
        if has_tables and access.publishes(claim, lambda: self._continues(claim)):
            ending = replace(ending, tables=self.settings.tables.catalog)
            answer = access.repeated(
                lambda: self.patient(lambda: self._report(claim, ending, next_in_place)),
                lambda error: self.patient(lambda: access.move(self.settings, self.hot, claim, error)),
            )
        else:
            answer = self.patient(lambda: self._report(claim, ending, next_in_place))
        if not answer.is_stored and self.patient(lambda: dispatches.claim_again(self.hot, claim)):
            # The heartbeat confirms only tasks in user code. Without this, the task would run a second time.
            worker_log.warning("dispatch %s was claimed again: a crash of PostgreSQL undid the claim", claim.dispatch_id)
            again = None if next_in_place is None else next_in_place.asked_again()
            answer = self.patient(lambda: self.follower.report(claim, ending, again))
        if not answer.is_stored and self.patient(lambda: self.follower.end_as_requested(claim)):
            worker_log.info("stopped %s.%s (run %s) as asked", claim.dag_id, claim.task_id, claim.run_id)
        elif not answer.is_stored:
            worker_log.warning(
                "report %s of %s.%s (run %s, try %d) refused: dispatch %s is no longer the current one",
                ending.state.value, claim.dag_id, claim.task_id, claim.run_id, claim.try_number, claim.dispatch_id,
            )  # fmt: skip
        return answer

    def _continues(self, claim: Claim) -> bool:
        try:
            return self.patient(lambda: table_tries.continues(self.hot.dicts, claim))
        except StaleTryError:
            return False  # the report is refused

    def _report(self, claim: Claim, ending: Ending, next_in_place: NextInPlace | None) -> Reported | Refused:
        """Report; if the connection has to be opened for it, wait for the reports of other pool processes that do the same.

        An attempt after an error opens it again, so it gets here too.
        """
        if self.hot.is_open:
            return self.follower.report(claim, ending, next_in_place)
        with self._turn():
            answer = self.follower.report(claim, ending, None if next_in_place is None else next_in_place.asked_again())
            if answer.continues is None and self.lock.others_wait():
                # Each of them would keep its connection for a while.
                self.hot.close_for_others()
            return answer

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """The turn of this pool process to open a connection. If others wait for theirs, it stays open only briefly."""
        with self.lock.turn():
            self.hot.is_contended = self.hot.is_contended or self.lock.others_wait()
            yield

    def clear_xcoms(self, claim: Claim) -> None:
        self.patient(lambda: xcoms.clear(self.hot, claim))

    def push_xcom(self, claim: Claim, key: str, json_text: str) -> None:
        self.patient(lambda: xcoms.push(self.hot, claim, key, json_text))

    def pull_xcom(self, claim: Claim, task_id: str, key: str, map_index: int, default: Any) -> Any:
        return self.patient(lambda: xcoms.pull(self.hot, claim.dag_run_id, task_id, key, map_index, default=default))

    def pull_xcoms(self, claim: Claim, task_no: int, key: str) -> list[Any]:
        number = self._number(claim, task_no)
        return self.patient(lambda: xcoms.of_instances(self.hot, claim.dag_run_id, number, key))

    def pull_other(self, claim: Claim, source: xcoms.Source, key: str, map_index: int | None) -> list[tuple[int, Any]]:
        return self.patient(lambda: xcoms.other(self.hot, source, key, map_index))

    def count_entries(self, claim: Claim, task_no: int, key: str, *, is_mapped: bool) -> int | None:
        run, number = claim.dag_run_id, self._number(claim, task_no)
        return self.patient(lambda: xcoms.length(self.hot, run, number, key, is_mapped=is_mapped, over=self.over))

    def entry(self, claim: Claim, task_no: int, key: str, place: int, *, is_mapped: bool) -> Sequence[Any]:
        run, number = claim.dag_run_id, self._number(claim, task_no)
        return self.patient(lambda: xcoms.entry(self.hot, run, number, key, place, is_mapped=is_mapped, over=self.over))

    def _number(self, claim: Claim, task_no: int) -> xcoms.Number:
        """The task that has this number in the version of the claim."""
        return xcoms.Number(claim.dag_run_id, task_no, self.dag(claim.version_id).tasks[task_no].task_id)

    def label(self, claim: Claim, text: str) -> None:
        self.patient(lambda: dispatches.label(self.hot, claim, text))

    def count_instances(self, claim: Claim) -> int:
        place = ([0], [claim.dag_run_id], [claim.task_no], [claim.task_id])
        return sum(count for _, _, count in self.patient(lambda: self.hot.read(external_runs.INSTANCES, place)))

    def now(self) -> datetime:
        return self.patient(self.hot.now)

    def count_states(self, targets: Sequence[Target]) -> list[Counts]:
        return self.patient(lambda: external_runs.states(self.hot, self.hot.dag, targets))

    def describe_dag(self, dag_id: str) -> Mapping[str, Sequence[str]] | None:
        return self.patient(lambda: external_runs.describe(self.hot, self.hot.dag, dag_id))

    def is_paused(self, dag_id: str) -> bool:
        return bool(self.patient(lambda: self.hot.value(external_runs.PAUSED, (dag_id,))))

    def trigger_run(self, claim: Claim, dag_id: str, **options: Any) -> str:
        return triggered_runs.trigger(
            self.settings, dag_id, claim=claim, hot=self.hot, versions=self.versions, created=self.follower.created,
            patient=self.patient, **options,
        )  # fmt: skip

    def first_start(self, claim: Claim, first_try: int) -> datetime:
        return self.patient(lambda: claims.first_start(self.hot, claim, first_try))

    def previous_success(self, claim: Claim) -> Sequence[datetime | None] | None:
        return self.patient(lambda: external_runs.previous_success(self.hot, claim.dag_run_id))

    def tables(self, claim: Claim) -> Access:
        return access.of(self.settings, claim, self.ask)

    def follow_tables(self, claim: Claim) -> None:
        table_tries.follow(self.ask, claim)

    def secrets(self, claim: Claim) -> StoreBackend:
        return StoreBackend(settings=self.settings, claim=claim, hot=self.hot, patient=self.patient)

    def events(self, claim: Claim) -> StoredEvents:
        return StoredEvents(claim, self.hot, self.patient)

    def state_backend(self, claim: Claim) -> StoredStates:
        return StoredStates(self.settings.core, claim, self.hot, self.patient)

    def ask(self, statement: str, row: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
        return self.patient(lambda: self.hot.dicts(statement, row))

    def patient(self, ask: Callable[[], R]) -> R:
        """Return `ask()`. It is called again over a new connection while the database is away, or accepts no writes."""
        try:
            return ask()  # not by AGAIN, which would add 3 % to the time of a short task
        except psycopg2.Error as error:
            if not sqlstates.is_passing(error):
                raise
            worker_log.warning("PostgreSQL does not answer (%s); trying until it does", str(error).strip())
        return AGAIN.copy(before=lambda _: self.hot.close())(ask)
