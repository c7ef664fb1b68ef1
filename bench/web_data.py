"""The data of `bench web`: 500 DAGs with a million task instances, one of 1,000 tasks in 100 runs, and a map of 10,000."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.stack import Stack
from scheduler.serialized.dag import SerializedDag
from scheduler.serialized.tasks import SerializedTask
from scheduler.settings import log_paths

WIDE, MAPPED, DEEP = "wide", "mapped", "deep"
FILL = (
    "set session_replication_role = replica",  # no triggers for events and foreign keys on each row
    """
    insert into dag_run (dag_id, run_id, run_type, state, version_id, run_after, queued_at, started_at, ended_at)
    select w.dag_id, 'run-' || n, 'manual', 'success', d.version_id, m.at, m.at, m.at, m.at + interval '9 minutes'
      from unnest(%(dags)s::text[], %(runs)s::int[]) w (dag_id, runs) join dag d on d.dag_id = w.dag_id
     cross join lateral generate_series(1, w.runs) n
     cross join lateral (select now() - n * interval '30 minutes' as at) m
    """,
    """
    insert into task_instance (dag_run_id, task_id, task_no, map_index, state, try_number, queue, pool, dispatch_id, queued_by,
                               worker, scheduled_at, queued_at, started_at, ended_at)
    select r.id, k.value->>'task_id', k.no - 1, i.index, case when r.id %% 97 = k.no %% 97 then 'failed' else 'success' end,
           1, 'default', 'default_pool', gen_random_uuid(), 's', 'w', m.at, m.at, m.at, m.at + interval '1 s'
      from dag_run r join dag_version v on v.id = r.version_id
     cross join lateral jsonb_array_elements(v.data->'tasks') with ordinality k (value, no)
     cross join lateral generate_series(case when k.value->'expand' <> 'null' then 0 else -1 end,
                                        case when k.value->'expand' <> 'null' then %(map)s - 1 else -1 end) i (index)
     cross join lateral (select r.started_at + k.no * interval '2 ms' as at) m
    """,
    "vacuum analyze dag_run",
    "vacuum analyze task_instance",
    "checkpoint",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of data."""

    dags: int = 500
    tasks: int = 10
    runs: int = 178
    wide: int = 1000
    wide_runs: int = 100
    map: int = 10_000
    nodes: int = 5000
    log_lines: int = 10_000_000
    clients: int = 20
    pages: int = 100
    seconds: float = 20.0
    engine_runs: int = 50


SMALL = Size(
    dags=5, tasks=3, runs=3, wide=20, wide_runs=5, map=30, nodes=50, log_lines=10_000, clients=2, pages=5, seconds=1.0,
    engine_runs=1,
)  # fmt: skip


def fill(stack: Stack, size: Size) -> int:
    """Store all of it, and return the number of task instances."""
    add(stack, chain(WIDE, size.wide))
    add(stack, chain(DEEP, size.nodes))
    add(stack, mapped(size.map))
    names = [f"dag_{number:03}" for number in range(size.dags)]
    for name in names:
        add(stack, chain(name, size.tasks))
    counts = {"dags": [WIDE, MAPPED, *names], "runs": [size.wide_runs, 1, *[size.runs] * len(names)], "map": size.map}
    with closing(stack.connect()) as connection, connection.cursor() as cursor:
        for statement in FILL:
            cursor.execute(statement, counts if "%(" in statement else None)
    return int(stack.rows("select count(*) from task_instance")[0][0])


def chain(dag_id: str, length: int) -> SerializedDag:
    """Tasks one after the other, in groups of ten."""
    names = [f"task_{number:04}" for number in range(length)]
    groups = tuple({"group_id": f"group_{number}", "parent": None, "tooltip": ""} for number in range((length + 9) // 10))
    return _dag(
        dag_id,
        tuple(
            _task(name, names[max(0, at - 1) : at], group=f"group_{at // 10}") for at, name in enumerate(names)
        ),
        groups,
    )  # fmt: skip


def mapped(count: int) -> SerializedDag:
    """One task, mapped over a list."""
    return _dag(MAPPED, (_task("each", (), expand={"kind": "product", "inputs": [{"literal": count}]}),), ())


def add(stack: Stack, dag: SerializedDag) -> None:
    """Store a DAG like the DAG file manager."""
    with closing(stack.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "insert into dag_version (dag_id, number, content_hash, data) values (%s, 1, %s, %s) returning id",
            (dag.dag_id, dag.content_hash, dag.to_json()),
        )
        (version,) = cursor.fetchone() or (None,)
        cursor.execute("insert into dag (dag_id, file, version_id) values (%s, %s, %s)", (dag.dag_id, dag.file, version))
        cursor.execute("insert into dag_schedule (dag_id, is_paused) values (%s, true)", (dag.dag_id,))


def write_logs(stack: Stack, size: Size) -> None:
    """Logs in the newest run of WIDE: a huge one of the first task, whose last line alone has `needle`, and some of usual size."""
    block = b"".join(b"2026-11-22T19:00:00.000Z INFO record %06d was read\n" % number for number in range(10_000))
    for number in range(min(20, size.wide)):
        with _log(stack, f"task_{number:04}").open("wb") as log:
            if number:
                log.write(block[: len(block) // 20])
                continue
            for _ in range(size.log_lines // 10_000):
                log.write(block)
            log.write(b"the needle\n")


def _log(stack: Stack, task_id: str) -> Path:
    path = log_paths.try_path(stack.settings.logs_folder, dag_id=WIDE, run_id="run-1", task_id=task_id, map_index=-1, try_number=1)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)


def _dag(dag_id: str, tasks: tuple[SerializedTask, ...], groups: tuple[dict[str, Any], ...]) -> SerializedDag:
    return SerializedDag(dag_id=dag_id, file=f"{dag_id}.py", schedule={"kind": "never"}, tasks=tasks, groups=groups)


def _task(name: str, upstream: object, **options: object) -> SerializedTask:
    return SerializedTask(task_id=name, operator="EmptyOperator", runtime="empty", upstream=tuple(upstream), **options)  # type: ignore[arg-type]
