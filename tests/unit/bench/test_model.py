"""The model of the bench: it runs all its tasks, in the order of the edges, and takes the sum of its costs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import shapes
from bench.scale import deployments, fit, graphs, report
from bench.scale.deployments import SCENARIOS, Scenario
from bench.scale.graphs import Graph
from bench.scale.model import FEW_WORKERS, Model
from bench.scale.parameters import Costs, Deployment, Parameters, Wal, Work, connections

NOTHING = Costs(scheduler=0, worker=0, child=0, postgres=0, redis=0)
FREE = Parameters(
    followed=NOTHING, in_place=NOTHING, flush_s=0, wake_s=0, beside=0, pass_s=0, pass_postgres_s=(0, 0), beat_postgres_s=(0, 0)
)
#: A measured bench on an idle machine: the results of bare Celery beside each shape are the same everywhere.
CPU = {"scheduler": 0.0002, "worker": 0.0004, "worker_children": 0.001, "postgres": 0.001, "redis": 0.0001, "total": 0.0027}


def shape(tasks: int, makespan_s: float) -> dict[str, Any]:
    per_s = tasks / makespan_s
    return {"tasks": tasks, "makespan_s": makespan_s, "tasks_per_s": per_s, "of_raw_celery": per_s / 1250, "hop_over_raw": 2.0,
            "hop_ms": {"p50": 2.0}, "cpu_s_per_task": CPU, "cpu_over_raw": CPU["total"] / 0.0016}  # fmt: skip


RESULT = {
    "raw": {"pg_commits_per_s": 2500.0},
    "shapes": {"chain": shape(100, 0.3), "wide": shape(2002, 3.0), "tree": shape(1023, 1.6)},
    "by_message": {"chain": shape(100, 0.5)},
    "open_runs": {name: {"5": [0.5, 0.5], "50": [0.6, 0.6]} for name in ("make_ms", "begin_ms", "start_ms", "close_ms", "queue_ms")}
    | {"sweep_ms": {"100": [5.0, 2.0], "1000": [50.0, 10.0]}, "begin_by_workers_ms": {"100": [0.5, 0.5], "10000": [0.5, 10.4]}},
    "standing": {"pass_postgres_ms": {"100": 1.0, "10000": 10.9}, "beat_postgres_ms": {"100": 0.3, "10000": 0.3}}
    | {f"{name}_by_workers_ms": {"100": 1.0, "10000": 2.0} for name in ("pass", "beat", "register")}
    | {"connection_ms": 8.0},
}


@pytest.fixture(scope="module")
def fitted() -> Parameters:
    """The parameters of RESULT."""
    return fit.fit(RESULT)


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
    then = fit.conditions(RESULT["by_message"]["chain"])
    assert fit.of_mapped(RESULT["shapes"], then) == NOTHING
    assert fit.of_mapped(measured["shapes"], then) == replace(NOTHING, child=pytest.approx(0.0003))


def test_a_chain_in_place_takes_a_message_when_its_budget_is_used_up() -> None:
    parameters = replace(FREE, in_place=COST, wake_s=1.0)
    one = finished(graphs.row(30), parameters, in_place_s=0.1)
    assert 2 <= sum(hop > 1 for hop in one.hops) <= 5


WORK = Work(scheduler=(0.1, 0.01), postgres=(0.2, 0.02))


@pytest.mark.parametrize(("length", "names"), [(10, {"begin", "close"}), (200, {"make", "start", "close"})])
def test_a_run_costs_its_creation_and_its_end_and_a_large_one_its_start(length: int, names: set[str]) -> None:
    for name in ("make", "begin", "start", "close"):
        took = finished(graphs.row(length), replace(FREE, **{name: WORK})).env.now
        assert took == pytest.approx(0.3 + 0.03 * length if name in names else 0.0), name


def test_tasks_that_end_at_the_same_time_close_their_run_once() -> None:
    model = Model(replace(FREE, flush_s=0.1), Deployment(workers=1, children=20))
    model.trigger(replace(graphs.spread(20), seconds=1.0, busy=False), 2)
    model.env.run(60.0)
    assert (len(model.closed), model.open) == (2, 0)


def test_a_client_queues_the_first_task_and_a_scheduler_leaves_it_to_a_pass() -> None:
    parameters = replace(FREE, queue=Work(scheduler=(0.5, 0.0)))
    assert finished(graphs.row(3), parameters, in_place_s=60.0).env.now == 0.0
    planned = Model(parameters, Deployment(in_place_s=60.0))
    planned.plan(graphs.row(3))
    planned.env.run(1.0)
    assert planned.hops == pytest.approx([0.5, 0.0, 0.0])


def test_creating_a_run_with_its_first_task_holds_the_pool_and_costs_more_with_many_workers() -> None:
    parameters = replace(FREE, begin=Work(postgres=(0.1, 0.0)), begin_of_worker_s=0.01)
    one = finished(graphs.row(1), parameters, workers=FEW_WORKERS)
    assert one.env.now == pytest.approx(0.1 + 0.01 * FEW_WORKERS) == one.pools_held_s[0]


def test_a_slice_takes_longer_while_another_core_is_busy() -> None:
    slow = replace(FREE, slowdown=2.0)
    one, two = (finished(graphs.row(1, 1.0), slow, count, shared_cores=2).env.now for count in (1, 2))
    assert (one, two) == (pytest.approx(1.0), pytest.approx(2.0, rel=0.01))


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


@pytest.mark.parametrize("known", [*shapes.full().values(), *shapes.small().values()], ids=lambda known: known.name)
def test_the_graphs_are_those_of_the_shapes(known: shapes.Shape) -> None:
    graph, runs = fit.graph_of(known.name, known.tasks)
    assert (len(graph.above) * runs, runs) == (known.tasks, len(known.dag_ids))


def test_a_size_that_no_shape_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chain of 7 task instances is no shape of bench/shapes\.py"):
        fit.graph_of("chain", 7)


def test_the_fit_makes_the_fitted_shapes_as_long_as_they_were(fitted: Parameters) -> None:
    rows = [row for row in fit.check(fitted, RESULT) if row["fitted"]]
    assert [(row["shape"], row["in_place"]) for row in rows] == [("chain", True), ("wide", True), ("chain", False)]
    assert all(abs(row["error"]) < 0.02 for row in rows)


def test_the_chain_by_message_uses_the_cpu_that_was_measured(fitted: Parameters) -> None:
    """Its processes slow each other in the model, as they did in the bench."""
    model = fit.simulated(fitted, "chain", 100, fit.BY_MESSAGE)
    slowed = model.postgres.slowed_s / model.postgres.busy_s
    assert slowed > 1.05
    assert fitted.followed.child * slowed == pytest.approx(CPU["worker_children"], rel=0.05)


def test_a_process_waits_for_each_answer_and_in_place_for_one_a_task() -> None:
    one = finished(graphs.row(5), replace(FREE, answer_s=1.0), in_place_s=60.0)
    assert one.env.now == pytest.approx(6.0)


def test_work_beside_a_task_is_that_of_a_message() -> None:
    parameters = replace(FREE, beside=0.5, followed=replace(NOTHING, child=1.0), in_place=replace(NOTHING, child=1.0))
    (run,) = finished(graphs.row(3), parameters, in_place_s=60.0).closed
    assert run.ended[0] < 0.6
    assert run.ended[2] - run.ended[1] == pytest.approx(1.0)


def test_a_shape_whose_error_is_too_large_is_named() -> None:
    row = {"in_place": True, "fitted": False, "measured_s": 2.0, "model_s": 1.6, "error": -0.2, "cores": 1.5}
    rows = [row | {"shape": "tree"}, row | {"shape": "wide", "in_place": False, "model_s": 1.0, "error": -0.5}]
    assert fit.wrong(rows) == ["wide by message"]
    assert report.check_line(rows) == "The error of wide by message is over 25%."
    assert report.check_line(rows[:1]) == "All errors are within 25%."
    assert "| `tree` | 2 s | 1.6 s | -20% | 1.5 |" in report.check_table(rows)


def test_bytes_of_a_run_are_what_short_runs_write_beyond_their_tasks() -> None:
    wide, many_runs = shape(2002, 3.0) | {"wal_bytes_per_task": 2000}, shape(5000, 9.0) | {"wal_bytes_per_task": 2600}
    found = fit.wal({"wide": wide, "many_runs": many_runs}, {})
    assert (found.of_task, found.of_run) == (2000, 3000)
    one = finished(graphs.row(10), replace(FREE, wal=found))
    assert one.log.bytes == 10 * 2000 + 3000


def test_the_disk_writes_no_faster_than_it_can() -> None:
    parameters = replace(FREE, wal=Wal(of_task=1000))
    assert finished(graphs.fan(100), parameters, disk_bytes_per_s=10_000).env.now == pytest.approx(10.2, rel=0.01)


@pytest.mark.parametrize(
    ("deployment", "per_s", "task_s", "open_", "opened_per_s"),
    [
        # Shorter than the idle time: each pool process keeps its own.
        (Deployment(workers=100, children=16), 347.2, 2.77, 1705, 0),
        # 3 s after a claim and 3 s after a report, which opens another one; the next claim uses it or opens a third.
        (Deployment(workers=100, children=16), 10, 60, 105 + 60, 20),
        (Deployment(workers=100, children=16, idle_connection_s=0), 10, 60, 1705, 0),
        (Deployment(workers=100, children=16, connections_of_worker=1), 10, 60, 105, 0),
    ],
)
def test_connections_close_when_they_are_idle(
    deployment: Deployment, per_s: float, task_s: float, open_: int, opened_per_s: float
) -> None:
    found = connections(deployment, per_s, task_s)
    assert (found.open, found.opened_per_s) == (open_, pytest.approx(opened_per_s))


def test_each_connection_costs_postgresql() -> None:
    def load(idle_s: float) -> dict[str, Any]:
        config = Deployment(workers=100, children=16, idle_connection_s=idle_s, standing=900)
        return deployments.load(replace(FREE, connection_s=0.01), config, 50, task_s=0.5, seconds=10)

    assert load(0)["busy"]["postgres_cores"] == 0
    # A task of 18 s opens one for its claim and one for its report.
    row = load(3)
    assert row["busy"]["postgres_cores"] == pytest.approx(row["done_per_s"] * 2 * 0.01, rel=0.4)


def test_heartbeats_cost_as_much_as_there_are_workers() -> None:
    def cores(workers: int) -> float:
        parameters = replace(FREE, beat_postgres_s=(0.001, 0.0), beat_of_worker_s=0.000001)
        return float(deployments.load(parameters, Deployment(workers=workers), 10, seconds=4)["busy"]["postgres_cores"])

    assert cores(100) == pytest.approx(100 / 2 * 0.0011, rel=0.1)
    assert cores(1000) == pytest.approx(1000 / 2 * 0.002, rel=0.1)


def test_costs_that_grow_with_running_tasks_show_in_the_load_of_postgresql(fitted: Parameters) -> None:
    few, many = (
        deployments.load(fitted, Deployment(workers=4, standing=standing), 50, seconds=3)["busy"]["postgres_cores"]
        for standing in (0, 10_000)
    )
    assert many > 1.5 * few


@pytest.mark.parametrize("workers", [2, 2 * FEW_WORKERS])
def test_many_workers_run_as_many_tasks_as_few_with_as_many_processes(workers: int) -> None:
    one = finished(replace(graphs.fan(160), seconds=1.0, busy=False), workers=workers, children=80 // workers)
    assert one.env.now == pytest.approx(4.0)


#: A deployment on which a report may take 12 ms of a core: 0.65 of 10 ms, of 200 in a second, are 1.3 of 2 cores.
NEAR = Scenario(name="near its limit", a_day=200 * 86400 / deployments.PEAK,
                deployment=Deployment(workers=100, children=16, postgres_cores=3, schedulers=2))  # fmt: skip
DEAR = replace(FREE, followed=replace(NOTHING, postgres=0.010), wal=Wal(of_task=5000))


def test_a_deployment_keeps_up_if_tasks_start_as_they_become_ready() -> None:
    row = deployments.simulate(DEAR, NEAR, seconds=20)
    assert row["keeps_up"] and row["why_not"] == []
    assert row["busy"]["postgres_cores"] == pytest.approx(2.0, rel=0.15)
    assert row["disk_mb_per_s"] == pytest.approx(1.0, rel=0.15)
    assert row["seconds_of_a_task"] == pytest.approx(1600 * deployments.USED / 200, rel=0.01)


def test_a_deployment_with_reports_that_take_twice_the_cpu_does_not_keep_up() -> None:
    row = deployments.simulate(DEAR, NEAR, seconds=8)
    for what, parameters, scenario in deployments.overloads(DEAR, NEAR, row):
        changed = deployments.simulate(parameters, scenario, seconds=16)
        assert not changed["keeps_up"], what
        assert changed["why_not"]


def test_more_connections_than_allowed_do_not_keep_up() -> None:
    row = deployments.simulate(FREE, replace(NEAR, deployment=replace(NEAR.deployment, max_connections=100)), seconds=2)
    assert row["why_not"] == ["1310 connections, more than max_connections (100)"]


def test_a_model_in_which_too_much_happens_ends() -> None:
    one = Model(FREE, Deployment())
    one.trigger(graphs.row(10), 100)
    assert not one.run(1.0, 50)


def test_the_scenarios_are_those_of_the_page() -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    assert all(page.count(mark) == 1 for mark in (*report.CHECK_MARKS, *report.LARGE_MARKS))
    assert {(one.a_day, one.deployment.workers) for one in SCENARIOS if one.expected} >= {(10e6, 100), (100e6, 10_000)}
    assert all(one.deployment.postgres_cores == 32 for one in SCENARIOS)


def test_the_page_keeps_the_tables(fitted: Parameters, tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("\n".join(["a", *report.CHECK_MARKS, "b", *report.LARGE_MARKS, "c"]))
    rows, large = fit.check(fitted, RESULT), [deployments.simulate(FREE, NEAR, seconds=2)]
    report.keep({"cpus": 2, "cpu": "x", "commit": "abc"}, rows, large, page)
    text = page.read_text()
    assert report.check_table(rows) in text and report.large_table(large) in text and "Paceline at abc." in text


#: Quick to fit: the shapes of a smoke test.
SMALL = RESULT | {
    "shapes": {"chain": shape(5, 0.03), "wide": shape(12, 0.03), "tree": shape(7, 0.02)},
    "by_message": {"chain": shape(5, 0.04)},
}


def modeled(tmp_path: Path, result: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "result.json"
    file.write_text("something for people\n" + json.dumps(result))
    return subprocess.run([sys.executable, "-m", "bench.scale", file], capture_output=True, text=True, check=False)


def test_it_reads_the_output_of_the_bench(tmp_path: Path) -> None:
    done = modeled(tmp_path, SMALL)
    assert [row["shape"] for row in json.loads(done.stdout)["check"]] == ["chain", "wide", "tree", "chain"], done.stderr
    assert "| `tree` | 0.02 s |" in done.stderr


def test_a_result_whose_parts_failed_is_refused(tmp_path: Path) -> None:
    done = modeled(tmp_path, SMALL | {"failed": {"standing": "StackError: x"}})
    assert done.returncode == 2
    assert "the parts standing have failed, so the model lacks their costs" in done.stderr
