"""`python -m bench.scale RESULT`: fits the model to the chains of a bench result, checks it with the other shapes, scales it up."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import parts
from bench.measure import quantile
from bench.open_runs import BATCH
from bench.options import Options
from bench.report import machine, say
from bench.scale import graphs
from bench.scale.graphs import Graph
from bench.scale.model import NO_COSTS, PASS_S, Costs, Deployment, Line, Model, Parameters, Step, Work

ROLES = {"scheduler": "scheduler", "worker": "worker", "worker_children": "child", "postgres": "postgres", "redis": "redis"}
#: CPU seconds of both sides of a one-row commit. The rest of a commit is the wait for the disk.
COMMIT_CPU_S = 0.0001
#: The machine that the bench starts: everything on it, one scheduler, one worker of 4 children.
CORES = 2
BENCH = Deployment(shared_cores=CORES)
#: The shapes of bench/shapes.py that the model supports: the graph, and the number of runs at once.
SHAPES: Mapping[str, Callable[[Mapping[str, float]], tuple[Graph, int]]] = {
    "chain": lambda _: (graphs.row(100), 1),
    "wide": lambda _: (graphs.fan(2000), 1),
    "tree": lambda _: (graphs.tree(1023), 1),
    "grid": lambda _: (graphs.grid(20, 20), 1),
    "many": lambda _: (graphs.row(10), 100),
    "many_runs": lambda _: (graphs.row(5), 1000),
    "map": lambda _: (graphs.spread(10_000), 1),
    "fib": lambda _: (graphs.row(40), 1),
    "fib_long": lambda work: (graphs.row(10, work["fib_long"]), 1),
}
#: What the model is fitted to and checked with.
MEASURED = (*SHAPES, "raw", "by_message", "standing", "open_runs")
#: The most that the fitted waits can be, in seconds.
WAITS = {"start_s": 0.5, "wake_s": 0.02}
#: The largest error of a shape that was not fitted.
MOST_ERROR = 0.25
#: The same with in-place follow off, as in the part `by_message`.
BY_MESSAGE = replace(BENCH, in_place_s=0.0)
#: The simulated load: seconds of a task, tasks of a run, seconds of the model's time. The cost of a task for schedulers and
#: servers does not depend on its duration, and short tasks keep the model small. Half of the time is longer than a run.
TASK_S, LENGTH, SECONDS = 1.0, 10, 30.0
#: An installation keeps up if, of the task instances that are triggered, this share ends in the same time (runs are random),
#: and if 99 of 100 start within these seconds.
KEPT, WAITED_S = 0.9, 1.0
#: The load of the busiest hour over that of an average hour, and the share of children that are busy then.
PEAK, USED = 3.0, 0.6
#: default_pool_task_slot_count, which is below core.parallelism.
DEFAULT_SLOTS = 128
#: The large deployments, with their task instances a day. `raised`: pools and core.parallelism have as many slots as there are
#: children.
SIZES = (
    ("defaults", 10e6, Deployment(workers=13, children=16, slots=DEFAULT_SLOTS)),
    ("raised", 10e6, Deployment(workers=100, children=16)),
    ("raised", 10e6, Deployment(workers=1000, children=16)),
    ("raised, 2 schedulers, beats every 10 s", 10e6, Deployment(schedulers=2, workers=1000, children=16, heartbeat_s=10)),
    ("raised, 8 schedulers, 4 pools, beats every 10 s", 100e6,
     Deployment(schedulers=8, workers=1000, children=16, pools=4, heartbeat_s=10, postgres_cores=16)),
    ("raised, 8 schedulers, 8 pools, 2 brokers, beats every 30 s", 100e6,
     Deployment(schedulers=8, workers=10_000, children=16, pools=8, brokers=2, heartbeat_s=30, postgres_cores=32)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The speed of the machine while a shape was measured, from the sample of bare Celery beside it."""

    #: Cores that were free for the measurement. Other processes may have used the rest.
    cores: float
    #: CPU of a task of bare Celery, and the time of its hop, in seconds.
    cpu_s: float
    hop_s: float


def conditions(shape: Mapping[str, Any]) -> Conditions:
    """From a shape's figures and its ratios to its own samples."""
    cpu_s = shape["cpu_s_per_task"]["total"] / shape["cpu_over_raw"]
    return Conditions(
        cores=min(CORES, shape["tasks_per_s"] / shape["of_raw_celery"] * cpu_s),
        cpu_s=cpu_s,
        hop_s=shape["hop_ms"]["p50"] / shape["hop_over_raw"] / 1000,
    )


def fit(result: Mapping[str, Any]) -> Parameters:
    """The parameters of the machine while it ran the chain by message.

    Costs are the CPU of that chain, of the chain in place and of single steps. Two waits are chosen so that the model's chains
    take as long as the measured ones: `wake_s` of each message by the chain by message, and `start_s` of each run by the chain in
    place.
    """
    by_message, standing, open_runs = result["by_message"]["chain"], result["standing"], result["open_runs"]
    then, in_place = conditions(by_message), result["shapes"]["chain"]
    make, start, close = (_work(open_runs[f"{name}_ms"]) for name in ("make", "start", "close"))
    parameters = Parameters(
        followed=_costs(by_message, (make, start, close)),
        in_place=_costs(in_place, (make, start, close), then.cpu_s / conditions(in_place).cpu_s),
        mapped=_mapped(result["shapes"], then),
        make=make,
        start=start,
        close=close,
        sweep=_work(open_runs["sweep_ms"]),
        queue=_queue(open_runs["queue_ms"], _line(standing["pass_postgres_ms"])[0]),
        flush_s=max(0.0, 1 / result["raw"]["pg_commits_per_s"] - COMMIT_CPU_S),
        wake_s=0.0,
        pass_postgres_s=_line(standing["pass_postgres_ms"]),
        beat_postgres_s=_line(standing["beat_postgres_ms"]),
    )
    # Each depends on the other a little.
    for _ in range(3):
        parameters = _fitted(parameters, "start_s", in_place, then)
        parameters = _fitted(parameters, "wake_s", by_message, then)
    return parameters


def _fitted(parameters: Parameters, name: str, chain: Mapping[str, Any], then: Conditions) -> Parameters:
    """The parameters with the wait of this name with which the model's chain takes as long as this one."""
    deployment, now = BENCH if name == "start_s" else BY_MESSAGE, conditions(chain)
    low, high = 0.0, WAITS[name]
    for _ in range(20):
        middle = (low + high) / 2
        took = makespan(_under(_waiting(parameters, name, middle), then, now), "chain", {}, deployment)
        low, high = (middle, high) if took < chain["makespan_s"] else (low, middle)
    return _waiting(parameters, name, low)


def _waiting(parameters: Parameters, name: str, seconds: float) -> Parameters:
    return replace(parameters, start_s=seconds) if name == "start_s" else replace(parameters, wake_s=seconds)


def _under(parameters: Parameters, then: Conditions, now: Conditions) -> Parameters:
    """The parameters that were fitted under the conditions `then`, for the conditions `now` of the same machine."""
    cpu = now.cpu_s / then.cpu_s * then.cores / now.cores
    wake = now.hop_s / then.hop_s
    return replace(
        parameters,
        followed=_scaled(parameters.followed, cpu),
        in_place=_scaled(parameters.in_place, cpu),
        mapped=_scaled(parameters.mapped, cpu),
        queue=_times(parameters.queue, cpu),
        make=_times(parameters.make, cpu),
        start=_times(parameters.start, cpu),
        close=_times(parameters.close, cpu),
        sweep=_times(parameters.sweep, cpu),
        flush_s=parameters.flush_s * wake,
        wake_s=parameters.wake_s * wake,
        start_s=parameters.start_s * wake,
        pass_s=parameters.pass_s * cpu,
        pass_postgres_s=(parameters.pass_postgres_s[0] * cpu, parameters.pass_postgres_s[1] * cpu),
    )


def _scaled(costs: Costs, by: float) -> Costs:
    return Costs(**{name: seconds * by for name, seconds in asdict(costs).items()})


def _times(work: Work, by: float) -> Work:
    return Work(**{name: (always * by, each * by) for name, (always, each) in asdict(work).items()})


def _work(by_size: Mapping[str, Sequence[float]]) -> Work:
    """The work from milliseconds of [scheduler, PostgreSQL] by size."""
    return Work(
        scheduler=_line({size: spent for size, (spent, _) in by_size.items()}),
        postgres=_line({size: spent for size, (_, spent) in by_size.items()}),
    )


def _queue(by_length: Mapping[str, Sequence[float]], pass_postgres_s: float) -> Work:
    """The work for each task. One task of each run was queued. The passes, each for a batch, are counted separately."""
    scheduler, postgres = (sum(spent) / len(by_length) / 1000 for spent in zip(*by_length.values(), strict=True))
    of_pass = PASS_S / BATCH, pass_postgres_s / BATCH
    return Work(scheduler=(0.0, max(0.0, scheduler - of_pass[0])), postgres=(0.0, max(0.0, postgres - of_pass[1])))


def _line(by_active: Mapping[str, float]) -> Line:
    """The line through the smallest and the largest size."""
    (low, least), *_, (high, most) = sorted((int(active), ms / 1000) for active, ms in by_active.items())
    each = max(0.0, (most - least) / (high - low))
    return max(0.0, least - each * low), each


def _costs(shape: Mapping[str, Any], of_run: Sequence[Work], by: float = 1.0) -> Costs:
    """The costs of a task, without the CPU of PostgreSQL for the run itself."""
    tasks = shape["tasks"]
    run_s = sum(work.postgres[0] + work.postgres[1] * tasks for work in of_run)
    seconds = {name: shape["cpu_s_per_task"][role] * by for role, name in ROLES.items()}
    return Costs(**seconds | {"postgres": max(0.0, seconds["postgres"] - run_s / tasks)})


def _mapped(shapes: Mapping[str, Any], then: Conditions) -> Costs:
    """The CPU of a mapped task instance beyond that of one of a fan-out, if both were measured."""
    if not {"map", "wide"} <= shapes.keys():
        return NO_COSTS
    mapped, plain = (_costs(shapes[name], (), then.cpu_s / conditions(shapes[name]).cpu_s) for name in ("map", "wide"))
    return replace(NO_COSTS, child=max(0.0, mapped.child - plain.child), postgres=max(0.0, mapped.postgres - plain.postgres))


def makespan(parameters: Parameters, name: str, work: Mapping[str, float], deployment: Deployment) -> float:
    """Seconds that a shape takes on the machine of the bench."""
    graph, runs = SHAPES[name](work)
    model = Model(parameters, deployment)
    model.trigger(graph, runs)
    while len(model.closed) < runs:
        model.env.step()
    return model.env.now


def check(parameters: Parameters, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each measured shape, the time in the model under the same conditions, and the error."""
    rows = []
    then = conditions(result["by_message"]["chain"])
    for kind, deployment in (("shapes", BENCH), ("by_message", BY_MESSAGE)):
        shapes = result[kind]
        for name in (name for name in SHAPES if name in shapes):
            now, measured = conditions(shapes[name]), shapes[name]["makespan_s"]
            # Its tasks run one at a time, and each has a core to itself.
            work = {"fib_long": _fib_s(shapes)} if name == "fib_long" else {}
            modeled_s = makespan(_under(parameters, then, now), name, work, deployment)
            fitted = name == "chain"
            rows.append({
                "shape": name, "in_place": deployment is BENCH, "fitted": fitted, "measured_s": measured,
                "model_s": round(modeled_s, 4), "error": round(modeled_s / measured - 1, 3), "cores": round(now.cores, 2),
            })  # fmt: skip
    return rows


def _fib_s(shapes: Mapping[str, Any]) -> float:
    """CPU seconds of one fib(33): the difference between a task of fib_long and one of fib."""
    return float(shapes["fib_long"]["cpu_s_per_task"]["worker_children"] - shapes["fib"]["cpu_s_per_task"]["worker_children"])


def load(
    parameters: Parameters, deployment: Deployment, per_s: float, *, task_s: float = TASK_S, seconds: float = SECONDS
) -> dict[str, Any]:
    """The load of each part, the hops, and the task instances that wait at the end. The first half of the time does not count.

    Runs of LENGTH tasks of `task_s` seconds come at random times, so that `per_s` task instances become ready in a second.
    """
    model = Model(parameters, deployment)
    model.env.process(_arrivals(model, per_s, task_s, seconds))
    model.env.run(seconds / 2)
    before, at = _busy(model), model.env.now
    model.hops.clear()
    done, triggered = model.done, model.triggered
    model.env.run(seconds)
    span = model.env.now - at
    after = _busy(model)
    hops = sorted(model.hops)
    ended = (model.done - done) / max(1, model.triggered - triggered)
    return {
        "per_s": round(per_s),
        "done_per_s": round((model.done - done) / span),
        "keeps_up": ended >= KEPT and bool(hops) and quantile(hops, 0.99) <= WAITED_S,
        "busy": {name: round((after[name] - before[name]) / span, 3) for name in after},
        "hop_ms": {f"p{share}": round(quantile(hops, share / 100) * 1e3, 2) for share in (50, 99)} if hops else {},
        "waiting": sum(map(len, model.waiting)),
    }


def _arrivals(model: Model, per_s: float, task_s: float, seconds: float) -> Step:
    graph = replace(graphs.row(LENGTH, task_s), busy=False)
    # As if the load had lasted for long: the first runs are at a random point of their course.
    for _ in range(int(per_s * task_s)):
        model.env.process(_later(model, replace(graphs.row(model.dice.randint(1, LENGTH), task_s), busy=False)))
    while model.env.now < seconds:
        yield model.env.timeout(model.dice.expovariate(per_s / LENGTH))
        model.trigger(graph)


def _later(model: Model, graph: Graph) -> Step:
    yield model.env.timeout(model.dice.random() * graph.seconds)
    model.trigger(graph)


def _busy(model: Model) -> dict[str, float]:
    """Busy seconds so far of each part. Of several of a kind, those of the busiest."""
    return {
        "postgres_cores": model.postgres.busy_s,
        "disk": model.log.busy_s,
        "scheduler": max(cpu.busy_s for cpu in model.scheduler_cpus),
        "redis": max(cpu.busy_s for cpu in model.redis),
        "pool_lock": max(model.pools_held_s),
    }


def large(parameters: Parameters, wal_bytes: float | None = None) -> list[dict[str, Any]]:
    """The load of each of SIZES. `wal_bytes` are those of a task instance in PostgreSQL's log, if they were measured."""
    found = []
    for name, a_day, deployment in SIZES:
        per_s = a_day / 86400 * PEAK
        running = int(deployment.workers * deployment.children * USED)
        task_s = min(TASK_S, running / per_s)
        row = load(parameters, replace(deployment, standing=max(0, int(running - per_s * task_s))), per_s, task_s=task_s)
        row |= {"what": name, "a_day": a_day, "workers": deployment.workers, "connections": _connections(deployment),
                "running": running, "seconds_of_a_task": round(running / per_s, 2)}  # fmt: skip
        if wal_bytes is not None:
            row |= {"wal_mb_per_s": round(per_s * wal_bytes / 1e6, 2), "wal_gb_a_day": round(a_day * wal_bytes / 1e9, 1)}
        found.append(row)
    return found


def _connections(deployment: Deployment) -> int:
    """As in docs/explanation/database.md: 5 for a scheduler, 1 for a worker, and at most 1 for each of its children."""
    return 5 * deployment.schedulers + deployment.workers * (1 + deployment.children)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("result", type=Path, help="what `make bench` ended with; the last line is read")
    parser.add_argument(
        "--measure", action="store_true", help="first measure what the model needs, into this file; half an hour on a quiet machine"
    )
    parser.add_argument("--large", action="store_true", help="also the sizes of docs/explanation/scale.md; some minutes")
    options = parser.parse_args(arguments)
    if options.measure:
        measured = {"machine": machine()} | parts.measure(list(MEASURED), Options(say=say))
        options.result.write_text(json.dumps(measured) + "\n", encoding="utf-8")
    result = json.loads(options.result.read_text(encoding="utf-8").splitlines()[-1])
    parameters = fit(result)
    rows = check(parameters, result)
    for row in rows:
        say(str(row))
    wrong = [row["shape"] for row in rows if not row["fitted"] and abs(row["error"]) > MOST_ERROR]
    say(f"The error of {', '.join(wrong)} is over {MOST_ERROR:.0%}." if wrong else f"All errors are within {MOST_ERROR:.0%}.")
    found = large(parameters, result["shapes"].get("many", {}).get("wal_bytes_per_task")) if options.large else []
    for row in found:
        say(str(row))
    print(json.dumps({"parameters": asdict(parameters), "check": rows, "large": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
