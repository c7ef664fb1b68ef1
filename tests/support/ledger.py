"""The ledger: tasks record what really ran, over their own connection, and `Ledger.check` compares the database with that record.

A task of a ledger DAG enters a row when its code starts and completes it when its code ends. The check uses nothing
that Paceline stored until it compares the two: each success in the database must have run, and nothing may have run twice.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent, indent
from types import MappingProxyType
from typing import Any

import psycopg2

Key = tuple[Any, ...]

#: The interval of an execution lies within the true one: entered after the code started, completed before it ended.
TABLE = """
create table if not exists ledger (
    execution uuid primary key, dag_id text not null, run_id text not null, task_id text not null, map_index int not null,
    try_number int not null, dispatch_id text not null, worker_pid int not null, backend_pid int not null,
    backend_start timestamptz, started_at timestamptz not null default clock_timestamp(), ended_at timestamptz, outcome text,
    beside uuid[] not null default '{}', process text not null default '', child_pid int, given json, returned json
);
create index if not exists ledger_of_ti on ledger (dag_id, run_id, task_id, map_index);
"""

#: Every change of state of a task instance, recorded by the database itself: see Ledger.witness.
WITNESS = """
create table witness (
    ti_id bigint, try_number int, dispatch_id uuid, before text, after text, at timestamptz default clock_timestamp()
);
-- As the owner, for every process that moves a task instance: the role of workers may not write here.
create function witness() returns trigger language plpgsql security definer as $$ begin
    insert into witness values (new.id, new.try_number, new.dispatch_id, old.state, new.state);
    return null;
end $$;
create trigger witness after update of state on task_instance for each row
    when (old.state is distinct from new.state) execute function witness();
"""

#: The start of each ledger DAG file. It retries for a while to reach the ledger, and records an execution once, however often it
#: retries. `beside` lists older executions of the same task instance whose process is still connected, so still running.
PRELUDE = '''
import contextlib, json, os, sys, time, types, uuid
from datetime import datetime, timedelta, timezone
import psycopg2
from paceline import DAG, dag, task, get_current_context
from paceline.exceptions import SkipTask

#: One connection for all DAG files of a process, also after one of them is loaded again.
_open = sys.__dict__.setdefault("_ledger", {{}})

def _ask(statement, parameters):
    deadline = time.monotonic() + 60
    while True:
        try:
            if _open.get("pid") != os.getpid():
                connection = psycopg2.connect({url!r}, application_name="ledger", connect_timeout=5)
                connection.autocommit = True
                _open.update(pid=os.getpid(), connection=connection)
            with _open["connection"].cursor() as cursor:
                cursor.execute(statement, parameters)
            return
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            _open.clear()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)

@contextlib.contextmanager
def entry(given=None):
    """Around the code of a task: what is inside ran once for each row. `given` is what the task got, `.returned` what it returns.

    The outcome is done, skipped, raised (by the task itself) or stopped (from outside)."""
    ti = get_current_context()["ti"]
    execution, who = str(uuid.uuid4()), (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
    _ask(
        """
        insert into ledger (execution, dag_id, run_id, task_id, map_index, try_number, dispatch_id, worker_pid, backend_pid,
                            backend_start, beside, process, child_pid, given)
        select %s, %s, %s, %s, %s, %s, %s, %s, pg_backend_pid(),
               (select backend_start from pg_stat_activity where pid = pg_backend_pid()),
               array(select l.execution from ledger l
                       join pg_stat_activity a on a.pid = l.backend_pid and a.backend_start = l.backend_start
                      where (l.dag_id, l.run_id, l.task_id, l.map_index) = (%s, %s, %s, %s) and l.ended_at is null),
               %s, %s, %s
        on conflict (execution) do nothing
        """,
        (execution, *who, ti.try_number, ti.external_executor_id, os.getppid(), *who,
         os.environ.get("LEDGER_PROCESS", ""), os.getpid(), json.dumps(given)),
    )
    entered, outcome = types.SimpleNamespace(returned=None), "stopped"
    try:
        yield entered
        outcome = "done"
    except SkipTask:
        outcome = "skipped"
        raise
    except Exception:
        outcome = "raised"
        raise
    finally:
        _ask(
            "update ledger set ended_at = clock_timestamp(), outcome = %s, returned = %s where execution = %s",
            (outcome, json.dumps(entered.returned), execution),
        )

def work(seconds=0.0):
    with entry():
        time.sleep(seconds)
'''


@dataclass(frozen=True, slots=True)
class Verdict:
    """The violations that were found. `overtaken` is not a violation: a try that was declared lost, because its worker was
    stopped or disconnected, still ran when the next one started (at-least-once).
    """

    tis: int
    executions: int
    #: A success in the database whose try did not run to its end exactly once, or an execution that the database lacks.
    lost: list[str] = field(default_factory=list)
    #: Unfinished, or in an unfinished run.
    stuck: list[str] = field(default_factory=list)
    #: A try that ran more than once, or two tries of a task instance at once although the first was not declared lost.
    double_running: list[str] = field(default_factory=list)
    double_success: list[str] = field(default_factory=list)
    overtaken: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        names = ("lost", "stuck", "double_running", "double_success")
        return {"tis": self.tis, "executions": self.executions, **{name: len(getattr(self, name)) for name in names}}

    @property
    def ok(self) -> bool:
        return not (self.lost or self.stuck or self.double_running or self.double_success)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger at `url`: a separate database, on a separate server if the test harms PostgreSQL."""

    url: str

    def create(self) -> "Ledger":
        """Create the table if it does not exist."""
        self.rows(TABLE)
        return self

    def prelude(self) -> str:
        """The start of a DAG file whose tasks call `work(seconds)` or `with entry(): ...`."""
        return PRELUDE.format(url=self.url)

    def dag(self, dag_id: str, body: str, **options: object) -> str:
        """The source of a DAG file: `body` goes inside `with DAG(...)`, and the options are arguments of the DAG."""
        # repr writes datetime.timedelta(...), but the prelude imports the names of the module.
        given = "".join(f", {name}={value!r}".replace("datetime.", "") for name, value in {"schedule": None, **options}.items())
        return f"{self.prelude()}\nwith DAG({dag_id!r}{given}):\n{indent(dedent(body).strip(), '    ')}\n"

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows that a statement returns from the ledger."""
        return ask(self.url, statement, *parameters)

    @staticmethod
    def witness(database_url: str) -> None:
        """Have Paceline's database record each change of state, for Verdict.double_success. Call it before anything runs."""
        ask(database_url, WITNESS)

    def check(
        self,
        database_url: str,
        dag_ids: Iterable[str] | None = None,
        *,
        cleared: Mapping[Key, int] = MappingProxyType({}),
        marked: Collection[Key] = (),
    ) -> Verdict:
        """Compare Paceline's database with the ledger. Every task of `dag_ids` (None: of all DAGs) writes into it, but for
        empty ones, sensors, triggers of runs and the gates of loops. Tasks are (DAG id, run id, task id): how often each was
        cleared, so that it may succeed once more, and those that a person marked, which need not have run.
        """
        chosen = None if dag_ids is None else list(dag_ids)
        tis = ask(database_url, TASK_INSTANCES, {"dags": chosen})
        names = {_key(row): row for row in tis}
        states = {(*_key(row), row[5]): row[4] for row in tis}
        for *key, number, state in ask(database_url, EARLIER_TRIES, {"dags": chosen}):
            states.setdefault((*key, number), state)
        lost_tries = {tuple(row) for row in ask(database_url, LOST_TRIES, {"dags": chosen})}
        executions = [row for row in self.rows(EXECUTIONS) if chosen is None or row[0] in chosen]
        done: dict[tuple[Any, ...], int] = {}
        for row in executions:
            done[row[:5]] = done.get(row[:5], 0) + (row[8] == "done")
        verdict = Verdict(tis=len(tis), executions=len(executions))
        for key, row in names.items():
            if row[4] == "success" and not row[7] and key[:3] not in marked and done.get((*key, row[5]), 0) != 1:
                verdict.lost.append(f"{_label(key)}: try {row[5]} is a success that ran {done.get((*key, row[5]), 0)} times")
            if row[4] not in FINISHED or row[6] not in ("success", "failed"):
                verdict.stuck.append(f"{_label(key)} is {row[4]} in a run that is {row[6]}")
        verdict.lost.extend(f"{_label(key)} ran and is unknown" for key in {row[:4] for row in executions} - names.keys())
        verdict.double_success.extend(_double_successes(states, database_url, cleared))
        _note_overlaps(verdict, executions, lost_tries)
        return verdict


FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
TASK_INSTANCES = """
select r.dag_id, r.run_id, t.task_id, t.map_index, t.state, t.try_number, r.state,
       v.data->'tasks'->t.task_no->>'runtime' = 'empty' or v.data->'tasks'->t.task_no->>'operator' like '%%Sensor'
       or v.data->'tasks'->t.task_no->>'operator' = 'TriggerDagRunOperator' or t.task_id like '%%.loop_gate'
  from task_instance t join dag_run r on r.id = t.dag_run_id join dag_version v on v.id = r.version_id
 where %(dags)s::text[] is null or r.dag_id = any(%(dags)s)
"""
EARLIER_TRIES = """
select r.dag_id, r.run_id, t.task_id, t.map_index, y.try_number, y.state
  from task_try y join task_instance t on t.id = y.task_instance_id join dag_run r on r.id = t.dag_run_id
 where %(dags)s::text[] is null or r.dag_id = any(%(dags)s)
"""
#: Tries that schedulers declared lost because their worker sent no heartbeats.
LOST_TRIES = """
with tries as (
    select task_instance_id, try_number, reason from task_try union all select id, try_number, reason from task_instance
)
select r.dag_id, r.run_id, t.task_id, t.map_index, y.try_number
  from tries y join task_instance t on t.id = y.task_instance_id join dag_run r on r.id = t.dag_run_id
 where y.reason like '%%sent no heartbeat%%' and (%(dags)s::text[] is null or r.dag_id = any(%(dags)s))
"""
SUCCESSES = """
select r.dag_id, r.run_id, t.task_id, t.map_index, count(*)
  from witness w join task_instance t on t.id = w.ti_id join dag_run r on r.id = t.dag_run_id
 where w.after = 'success' group by 1, 2, 3, 4 having count(*) > 1
"""
EXECUTIONS = """
select dag_id, run_id, task_id, map_index, try_number, execution::text, started_at, ended_at, outcome, beside::text[]
  from ledger order by started_at
"""


def ask(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of one statement over a new connection. Parameters are positional, or one mapping of names."""
    given: Any = parameters[0] if len(parameters) == 1 and isinstance(parameters[0], Mapping) else parameters or None
    connection = psycopg2.connect(url)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, given)
            return list(cursor.fetchall()) if cursor.description else []
    finally:
        connection.close()


def _double_successes(states: dict[Key, str], database_url: str, cleared: Mapping[Key, int]) -> list[str]:
    """Task instances with two successful tries, by the stored tries, and by the witness if there is one."""
    found: dict[Key, int] = {}
    for (*key, _number), state in states.items():
        found[tuple(key)] = found.get(tuple(key), 0) + (state == "success")
    doubles = [f"{_label(key)} has {count} successful tries" for key, count in found.items() if count > 1 + cleared.get(key[:3], 0)]
    if ask(database_url, "select to_regclass('witness') is not null")[0][0]:
        doubles += [
            f"{_label(key)} became a success {count} times"
            for *key, count in ask(database_url, SUCCESSES)
            if count > 1 + cleared.get(tuple(key[:3]), 0)
        ]
    return doubles


def _note_overlaps(verdict: Verdict, executions: list[tuple[Any, ...]], lost_tries: set[Key]) -> None:
    by_ti: dict[Key, list[tuple[Any, ...]]] = {}
    for row in executions:
        by_ti.setdefault(row[:4], []).append(row)
    for key, rows in by_ti.items():
        for place, later in enumerate(rows):
            for earlier in rows[:place]:
                if earlier[4] == later[4]:
                    verdict.double_running.append(f"{_label(key)}: try {later[4]} ran twice")
                elif earlier[5] in later[9] or (earlier[7] is not None and earlier[7] > later[6]):
                    overtaken = (*key, earlier[4]) in lost_tries
                    text = f"{_label(key)}: try {earlier[4]} was still there when try {later[4]} began"
                    (verdict.overtaken if overtaken else verdict.double_running).append(text)


def _key(row: tuple[Any, ...]) -> Key:
    return tuple(row[:4])


def _label(key: Key) -> str:
    return f"{key[0]}.{key[2]}{'' if key[3] < 0 else f'[{key[3]}]'} (run {key[1]})"
