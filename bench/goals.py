"""The goals of the project for the figures of a bench, and which of them a result has met."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.connections import WORKERS

Result = Mapping[str, Any]
MET, MISSED = "met", "MISSED"
#: The least and the aim of a shape: the share of plain Celery's tasks/s, and the hop as a multiple of a plain hop.
SHARES = {"wide": (1.1, 1.4), "tree": (1.0, 1.4), "many": (1.0, 1.3), "many_runs": (1.0, 1.3), "map": (1.0, 1.4)}
HOPS = {"chain": (0.6, 0.45)}
#: The most and the aim of the CPU of a task, as a multiple of plain Celery's.
CPU = {"chain": (0.8, 0.6), "wide": (0.9, 0.6), "many": (1.1, 0.6)}
#: The most and the aim of Paceline's time over that of another engine, by engine and shape. Measured by `bench peers --engines`.
ENGINES = {("absurd", "chain"): (1.0, 0.8), ("absurd", "many"): (1.0, 0.7), ("restate", "many"): (1.5, 1.0)}


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure with its limit: the least allowed value, or with `at_most` the largest."""

    figure: str
    of: Callable[[Result], float]
    limit: float
    at_most: bool = True

    @property
    def text(self) -> str:
        return f"at {'most' if self.at_most else 'least'} {self.limit:g}"

    def is_met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


def _at(*keys: str) -> Callable[[Result], float]:
    def of(result: Result) -> float:
        found: Any = result
        for key in keys:
            found = found[key]
        return float(found)

    return of


def _over(part: str, name: str, upper: str, lower: str) -> Callable[[Result], float]:
    return lambda result: float(result[part][name][upper] / result[part][name][lower])


def _of_all_workers(*keys: str) -> Callable[[Result], float]:
    """A figure of `connections`. A machine that cannot run all its workers has not measured it."""

    def of(result: Result) -> float:
        measured = result["connections"]
        return _at(*keys)(measured if measured["workers"] == WORKERS else {})

    return of


GOALS = (
    *(Goal(f"`{name}`: share of plain Celery's tasks/s", _at("shapes", name, "of_raw_celery"), least, at_most=False)
      for name, (least, _) in SHARES.items()),
    *(Goal(f"`{name}`: hop, over plain Celery's", _at("shapes", name, "hop_over_raw"), most) for name, (most, _) in HOPS.items()),
    *(Goal(f"`{shape}`: time, over that of {engine}", _at("engines", engine, "shapes", shape, "time_over"), most)
      for (engine, shape), (most, _) in ENGINES.items()),
    Goal("`fib`: time per task, over plain Celery's hop", _at("shapes", "fib", "makespan_over_raw_hops"), 1),
    *(Goal(f"`{name}`: CPU of a task, over plain Celery's", _at("shapes", name, "cpu_over_raw"), most)
      for name, (most, _) in CPU.items()),
    Goal("`creation`: start of a run that is due, over an insert of its rows", _at("creation", "over_insert", "plain"), 4),
    Goal("`creation`: start of a run that a client triggers, over an insert", _at("creation", "over_insert", "by_hand"), 4),
    Goal("`first`: ms from a trigger to the start of the first task", _at("first", "ms", "triggered"), 5),
    Goal("`schedulers`: tasks/s of `many` with three, over one", _over("schedulers", "many", "3", "1"), 0.9, at_most=False),
    Goal("`standing`: pass of the queue service with 10,000 running tasks, over 100",
         _over("standing", "pass_postgres_ms", "10000", "100"), 2),
    Goal("`history`: time with the finished task instances of a long history, over none", _at("ratios", "history"), 1.05),
    Goal("`history`: s for retention of a million task instances", _at("history", "retention", "seconds_per_million"), 1),
    Goal("`history`: ms of the longest statement of retention", _at("history", "retention", "longest_statement_ms"), 100),
    Goal("`churn`: size of tables and indexes after a second day, over the first", _at("churn", "last_over_before"), 1.05),
    Goal("`fanin`: task upstream of a join of 10,000, over 100", _at("ratios", "fanin"), 1.25),
    Goal("`idle`: cores of an idle stack with 1,000 DAGs", _at("idle_cores"), 0.05),
    Goal("`parse`: saved file to version, over its parsing time", _at("parse", "saved_over_parse"), 4),
    Goal("`memory`: MB of a scheduler with its parser", _at("memory_mb", "scheduler_with_parser", "rss"), 110),
    Goal("`memory`: MB of a pool process", _at("memory_mb", "worker_child", "rss"), 60),
    Goal("`connections`: most at once, of 50 workers with tasks of 60 s", _of_all_workers("open", "most"), 70),
    Goal("`connections`: most at once, of 50 workers with tasks of 10 ms", _of_all_workers("short", "open", "most"), 70),
    Goal("`connections`: the same with `worker.connections` 1, tasks of 60 s", _of_all_workers("shared", "open", "most"), 70),
    Goal("`connections`: the same with `worker.connections` 1, tasks of 10 ms",
         _of_all_workers("shared", "short", "open", "most"), 70),
    Goal("`connections`: refused in a burst of 400 reports", _of_all_workers("burst", "refused_attempts"), 0),
    Goal("`spark`: s to the first line in a warm JVM", _at("warm_start_s_p50"), 0.25),
    Goal("`spark`: start in a new JVM, over a warm one", _at("spark", "starts", "cold_over_warm"), 20, at_most=False),
    Goal("`spark`: small jobs, over spark-submit", _at("small_jobs_speedup"), 10, at_most=False),
    Goal("`spark`: heap after 1,000 tasks, over 100", _at("spark", "heap", "last_over_first"), 1.1),
    Goal("`spark`: demo, over the same with spark-submit", _at("demo_over_submit"), 0.33),
    Goal("`spark`: demo, over one script", _at("demo_over_script"), 1.3),
    Goal("`frames`: seven tasks with selections, cold, over one script", _at("frames", "pruned", "cold_over_script"), 1.1),
    Goal("`frames`: the same, warm", _at("frames", "pruned", "warm_over_script"), 1.5),
    Goal("`tables`: ms of PostgreSQL for a report that publishes three tables, more than for a plain one",
         _at("tables", "publish", "more", "database_ms"), 5),
    Goal("`tables`: commits of such a report, more than of a plain one", _at("tables", "publish", "more", "commits"), 0),
    Goal("`tables`: TPC-H in SQL tasks, over one session", _at("tables", "tpch", "over_session"), 1.1),
    Goal("`tables`: answers of TPC-H that are equal to DuckDB's", _at("tables", "tpch", "equal"), 22, at_most=False),
    Goal("`tables`: small tasks that write a table, over one session", _at("tables", "small", "over_session"), 1.2),
)  # fmt: skip


def verdicts(result: Result) -> list[tuple[str, str, str, str]]:
    """Figure, value, goal, and `met` or `MISSED`, for each goal whose figure was measured."""
    rows = []
    for goal in GOALS:
        try:
            value = goal.of(result)
        except KeyError:  # its part was not chosen, or has failed
            continue
        rows.append((goal.figure, f"{value:.3g}", goal.text, MET if goal.is_met(value) else MISSED))
    return rows
