"""The model of the bench: it runs all its tasks, in the order of the edges, and takes the sum of its costs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import shapes
from bench.scale import __main__ as simulate
from bench.scale import graphs
from bench.scale.graphs import Graph
from bench.scale.model import Costs, Deployment, Model, Parameters, Work
from scheduler.settings import Settings

NOTHING = Costs(scheduler=0, worker=0, child=0, postgres=0, redis=0)
FREE = Parameters(followed=NOTHING, in_place=NOTHING, flush_s=0, wake_s=0, beside=0, pass_s=0, pass_postgres_s=(0, 0))
#: A measured bench on an idle machine: the results of bare Celery beside each shape are the same everywhere.
CPU = {"scheduler": 0.0002, "worker": 0.0004, "worker_children": 0.001, "postgres": 0.001, "redis": 0.0001, "total": 0.0027}


def shape(tasks: int, makespan_s: float) -> dict[str, Any]:
    per_s = tasks / makespan_s
    return {"tasks": tasks, "makespan_s": makespan_s, "tasks_per_s": per_s, "of_raw_celery": per_s / 1250, "hop_over_raw": 2.0,
            "hop_ms": {"p50": 2.0}, "cpu_s_per_task": CPU, "cpu_over_raw": CPU["total"] / 0.0016}  # fmt: skip


RESULT = {
    "raw": {"pg_commits_per_s": 2500.0},
    "shapes": {"chain": shape(100, 0.4), "wide": shape(2002, 3.0), "tree": shape(1023, 1.6)},
    "by_message": {"chain": shape(100, 0.5)},
    "open_runs": {name: {"5": [0.5, 0.5], "50": [0.6, 0.6]} for name in ("make_ms", "start_ms", "close_ms", "queue_ms")}
    | {"sweep_ms": {"100": [5.0, 2.0], "1000": [50.0, 10.0]}},
    "standing": {"pass_postgres_ms": {"100": 1.0, "10000": 10.9}, "beat_postgres_ms": {"100": 0.3, "10000": 0.3}},
}


def finished(graph: Graph, parameters: Parameters = FREE, runs: int = 1, **deployment: Any) -> Model:
    one = Model(parameters, Deployment(**deployment))
    one.trigger(graph, runs)
    while len(one.closed) < runs:
        one.env.step()
    return one


@pytest.mark.parametrize("graph", [graphs.row(7), graphs.fan(20), graphs.spread(20), graphs.tree(31), graphs.grid(4, 5)])
def test_every_task_ends_once_and_after_all_above_it(graph: Graph) -> None:
    one = finished(replace(graph, seconds=1.0, busy=False), workers=2)
    ended = one.closed[0].ended
    assert one.done == len(ended) == len(graph.above)
    assert all(ended[number] + 1 <= ended[below] for number, all_below in enumerate(graph.below) for below in all_below)


def test_no_more_run_at_once_than_there_are_children() -> None:
    one = finished(replace(graphs.fan(20), seconds=1.0, busy=False), workers=2, children=3)
    # 1 second each for the first and the last, and four for 20 in sixes.
    assert one.env.now == pytest.approx(6.0)


COST = Costs(scheduler=0, worker=0.001, child=0.01, postgres=0.002, redis=0.0005)


def test_a_hop_by_message_is_the_sum_of_its_steps() -> None:
    parameters = replace(FREE, followed=COST, flush_s=0.003, wake_s=0.0001)
    one = finished(graphs.row(3), parameters, in_place_s=0.0)
    assert one.hops[1:] == pytest.approx([0.01 + 0.002 + 0.003 + 0.0005 + 0.0001 + 0.001 + 0.0001] * 2)


def test_a_hop_in_place_is_a_report() -> None:
    parameters = replace(FREE, in_place=COST, flush_s=0.003)
    one = finished(graphs.row(4), parameters, in_place_s=60.0)
    assert one.hops[2:] == pytest.approx([0.01 + 0.002 + 0.003] * 2)


def test_only_mapped_task_instances_read_their_values() -> None:
    parameters = replace(FREE, mapped=replace(NOTHING, child=0.01, postgres=0.02))
    assert finished(graphs.spread(4), parameters, workers=1, children=1).env.now == pytest.approx(4 * 0.03)
    assert finished(graphs.fan(4), parameters).env.now == 0.0


def test_a_mapped_task_instance_costs_what_it_takes_beyond_one_of_a_fan_out() -> None:
    dear = shape(10_001, 10.0) | {
        "cpu_s_per_task": CPU | {"worker_children": 0.0013, "total": 0.003},
        "cpu_over_raw": 0.003 / 0.0016,
    }
    measured = RESULT | {"shapes": RESULT["shapes"] | {"map": dear}}
    assert simulate.fit(RESULT).mapped == NOTHING
    assert simulate.fit(measured).mapped == replace(NOTHING, child=pytest.approx(0.0003))


def test_a_run_waits_before_its_first_task() -> None:
    one = finished(graphs.row(3), replace(FREE, start_s=0.02), in_place_s=60.0)
    assert one.env.now == pytest.approx(0.02)
    assert one.hops[0] == pytest.approx(0.02)


def test_a_chain_in_place_takes_a_message_when_its_budget_is_used_up() -> None:
    parameters = replace(FREE, in_place=COST, wake_s=1.0)
    one = finished(graphs.row(30), parameters, in_place_s=0.1)
    assert 2 <= sum(hop > 1 for hop in one.hops) <= 5


def test_a_run_costs_its_creation_its_start_and_its_end() -> None:
    work = Work(scheduler=(0.1, 0.01), postgres=(0.2, 0.02))
    for name in ("make", "start", "close"):
        assert finished(graphs.row(10), replace(FREE, **{name: work})).env.now == pytest.approx(0.1 + 0.1 + 0.2 + 0.2), name


def test_the_first_tasks_of_all_runs_rank_before_the_last_of_any() -> None:
    one = finished(replace(graphs.row(2), seconds=1.0, busy=False), runs=3, workers=1, children=1)
    first, last = ([run.ended[number] for run in one.closed] for number in (0, 1))
    assert max(first) < min(last)


def test_no_more_run_than_a_pool_has_slots() -> None:
    one = finished(replace(graphs.fan(20), seconds=1.0, busy=False), workers=2, children=10, slots=4)
    assert one.env.now == pytest.approx(7.0)


def test_a_sweep_costs_as_much_as_the_open_runs_with_new_ends() -> None:
    def busy_s(work: Work) -> float:
        one = Model(replace(FREE, sweep=work), Deployment(workers=4))
        one.trigger(replace(graphs.row(10), seconds=1.0, busy=False), 50)
        one.env.run(5.5)
        return one.scheduler_cpus[0].busy_s

    assert busy_s(Work(scheduler=(0.001, 0.0))) == pytest.approx(0.005, rel=0.3)
    assert busy_s(Work(scheduler=(0.0, 0.001))) > 0.03


def test_commits_that_wait_together_share_a_flush() -> None:
    one = finished(graphs.fan(40), replace(FREE, flush_s=0.01), children=40)
    assert one.log.busy_s < 0.01 * 10


def test_the_graphs_are_those_of_the_shapes() -> None:
    for name, known in shapes.full().items():
        if name in simulate.SHAPES:
            graph, runs = simulate.SHAPES[name]({"fib_long": 1.0})
            assert len(graph.above) * runs == known.tasks


def test_the_fit_makes_the_chain_as_long_as_it_was() -> None:
    rows = simulate.check(simulate.fit(RESULT), RESULT)
    fitted = [row for row in rows if row["fitted"]]
    assert [(row["shape"], row["in_place"]) for row in fitted] == [("chain", True), ("chain", False)]
    assert all(abs(row["error"]) < 0.01 for row in fitted)


def test_rows_with_the_defaults_run_no_more_than_the_defaults_allow() -> None:
    for name, _, deployment in simulate.SIZES:
        running = deployment.workers * deployment.children * simulate.USED
        if name == "defaults":
            assert deployment.slots == Settings().core.default_pool_task_slot_count <= Settings().core.parallelism
            assert running <= deployment.slots
        else:
            assert name.startswith("raised")


def test_costs_that_grow_with_running_tasks_show_in_the_load_of_postgresql() -> None:
    few, many = (
        simulate.load(simulate.fit(RESULT), Deployment(workers=4, standing=standing), 50, seconds=3)["busy"]["postgres_cores"]
        for standing in (0, 10_000)
    )
    assert many > 1.5 * few


@pytest.mark.parametrize(("children", "keeps_up"), [(16, True), (1, False)])
def test_an_installation_keeps_up_if_tasks_end_as_they_come(children: int, keeps_up: bool) -> None:
    row = simulate.load(FREE, Deployment(workers=1, children=children), 50, task_s=0.05, seconds=20)
    assert row["keeps_up"] is keeps_up


def test_it_reads_the_output_of_the_bench(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("something for people\n" + json.dumps(RESULT))
    done = subprocess.run([sys.executable, "-m", "bench.scale", file], capture_output=True, text=True, check=True)
    assert [row["shape"] for row in json.loads(done.stdout)["check"]] == ["chain", "wide", "tree", "chain"]
