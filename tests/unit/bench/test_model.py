"""The model: it does all that it is given, in the order that edges ask for, and takes as long as its costs add up to."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import shapes
from bench.scale import __main__ as simulate
from bench.scale import model
from bench.scale.model import Costs, Deployment, Graph, Model, Parameters

NOTHING = Costs(scheduler=0, worker=0, child=0, postgres=0, redis=0)
FREE = Parameters(followed=NOTHING, scheduled=NOTHING, flush_s=0, wake_s=0, beside=0, pass_s=0, pass_postgres_s=(0, 0))
#: A measured bench whose machine was its own: what bare Celery did beside each shape is the same everywhere.
CPU = {"scheduler": 0.0002, "worker": 0.0004, "worker_children": 0.001, "postgres": 0.001, "redis": 0.0001, "total": 0.0027}


def shape(tasks: int, makespan_s: float) -> dict[str, Any]:
    per_s = tasks / makespan_s
    return {"tasks": tasks, "makespan_s": makespan_s, "tasks_per_s": per_s, "of_raw_celery": per_s / 1250, "hop_over_raw": 2.0,
            "hop_ms": {"p50": 2.0}, "cpu_s_per_task": CPU, "cpu_over_raw": CPU["total"] / 0.0016}  # fmt: skip


RESULT = {
    "raw": {"pg_commits_per_s": 2500.0},
    "shapes": {"chain": shape(100, 0.5), "wide": shape(2002, 3.0), "tree": shape(1023, 1.6)},
    "standing": {"pass_postgres_ms": {"100": 1.0, "10000": 10.9}, "beat_postgres_ms": {"100": 0.3, "10000": 0.3}},
}


def finished(graph: Graph, parameters: Parameters = FREE, **deployment: int) -> Model:
    one = Model(parameters, Deployment(**deployment))
    one.trigger(graph)
    while not one.closed:
        one.env.step()
    return one


@pytest.mark.parametrize("graph", [model.row(7), model.fan(20), model.tree(31), model.grid(4, 5)])
def test_every_task_ends_once_and_after_all_above_it(graph: Graph) -> None:
    one = finished(replace(graph, seconds=1.0, busy=False), workers=2)
    ended = one.closed[0].ended
    assert one.done == len(ended) == len(graph.above)
    assert all(ended[number] + 1 <= ended[below] for number, all_below in enumerate(graph.below) for below in all_below)


def test_no_more_run_at_once_than_there_are_children() -> None:
    one = finished(replace(model.fan(20), seconds=1.0, busy=False), workers=2, children=3)
    # 1 second each for the first and the last, and four for 20 in sixes.
    assert one.env.now == pytest.approx(6.0)


def test_a_hop_is_the_sum_of_what_lies_between() -> None:
    cost = Costs(scheduler=0, worker=0.001, child=0.01, postgres=0.002, redis=0.0005)
    parameters = replace(FREE, followed=cost, scheduled=cost, flush_s=0.003, wake_s=0.0001)
    one = finished(model.row(3), parameters)
    between = 0.003 + 0.01 * model.CHILD_PUBLISH + 0.0005 + 0.0001 + 0.001 + 0.0001 + 0.01 * model.CHILD_CLAIM
    assert one.hops[1:] == pytest.approx([between + 0.002 * model.POSTGRES_CLAIM] * 2)


def test_commits_that_wait_together_share_a_flush() -> None:
    one = finished(model.fan(40), replace(FREE, flush_s=0.01), children=40)
    assert one.log.busy_s < 0.01 * 10


def test_the_graphs_are_those_of_the_shapes() -> None:
    for name, known in shapes.full().items():
        if name in simulate.SHAPES:
            graph, runs = simulate.SHAPES[name]({"fib_long": 1.0})
            assert len(graph.above) * runs == known.tasks


def test_the_fit_makes_the_chain_as_long_as_it_was() -> None:
    rows = {row["shape"]: row for row in simulate.check(simulate.fit(RESULT), RESULT)}
    assert abs(rows["chain"]["error"]) < 0.01
    assert rows["chain"]["fitted"] and not rows["tree"]["fitted"]


def test_what_grows_with_all_that_runs_shows_in_the_load_of_postgresql() -> None:
    few, many = (
        simulate.load(simulate.fit(RESULT), Deployment(workers=4, standing=standing), 50, seconds=3)["busy"]["postgres_cores"]
        for standing in (0, 10_000)
    )
    assert many > 1.5 * few


def test_it_reads_what_the_bench_printed(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("something for people\n" + json.dumps(RESULT))
    done = subprocess.run([sys.executable, "-m", "bench.scale", file], capture_output=True, text=True, check=True)
    assert [row["shape"] for row in json.loads(done.stdout)["check"]] == ["chain", "wide", "tree"]
