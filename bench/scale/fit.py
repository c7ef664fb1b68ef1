"""Fits the parameters of the model to a result of the bench, and compares the model with every shape of that result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.open_runs import BATCH
from bench.scale import graphs
from bench.scale.graphs import Graph
from bench.scale.model import Model
from bench.scale.parameters import NO_COSTS, PASS_S, Costs, Deployment, Line, Parameters, Wal, Work, at

ROLES = {"scheduler": "scheduler", "worker": "worker", "worker_children": "child", "postgres": "postgres", "redis": "redis"}
#: CPU seconds of both sides of a one-row commit. The rest of a commit is the wait for the disk.
COMMIT_CPU_S = 0.0001
#: The machine that the bench starts: everything on it, one scheduler, one worker of 4 children.
CORES = 2
BENCH = Deployment(shared_cores=CORES)
#: The same with in-place follow off, as in the part `by_message`.
BY_MESSAGE = replace(BENCH, in_place_s=0.0)
#: The shapes of bench/shapes.py that the model knows: the graph of a size, and the sizes and runs there and in a smoke test.
SHAPES: Mapping[str, tuple[Callable[..., Graph], tuple[tuple[int, ...], int], tuple[tuple[int, ...], int]]] = {
    "chain": (graphs.row, ((100,), 1), ((5,), 1)),
    "wide": (graphs.fan, ((2000,), 1), ((10,), 1)),
    "tree": (graphs.tree, ((1023,), 1), ((7,), 1)),
    "grid": (graphs.grid, ((20, 20), 1), ((3, 3), 1)),
    "many": (graphs.row, ((10,), 100), ((2,), 3)),
    "many_runs": (graphs.row, ((5,), 1000), ((2,), 5)),
    "map": (graphs.spread, ((10_000,), 1), ((10,), 1)),
    "fib": (graphs.row, ((40,), 1), ((3,), 1)),
    "fib_long": (graphs.row, ((10,), 1), ((2,), 1)),
}
#: The parts of the bench that the model is fitted to and compared with.
MEASURED = (*SHAPES, "raw", "by_message", "standing", "open_runs", "waits")
#: The fitted parameters, each with the makespan that it is fitted to, and its smallest and largest value.
FITTED = {
    "answer_s": ("shapes", "chain", 0.0, 0.002),
    "wake_s": ("by_message", "chain", 0.0, 0.02),
    "slowdown": ("shapes", "wide", 1.0, 3.0),
}
#: The shape in which each of these costs was measured. Fitting and dividing by the slowdown are repeated so often.
MEASURED_IN = {"followed": ("by_message", "chain"), "in_place": ("shapes", "chain"), "mapped": ("shapes", "wide")}
FITS = 4
#: The largest error of a shape, as a share of its measured time.
MOST_ERROR = 0.25


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

    Costs are the CPU of that chain, of the chain in place and of single steps. Three parameters make the model's time of a shape
    the measured one: `wake_s` of each message that of the chain by message, `answer_s` of each statement that of the chain in
    place, and `slowdown` that of the fan-out. Processes that ran beside each other have slowed each other, so the CPU that was
    measured of a shape is divided by the slowdown that it has in the model.
    """
    by_message, standing, open_runs = result["by_message"]["chain"], result["standing"], result["open_runs"]
    then, in_place = conditions(by_message), result["shapes"]["chain"]
    make, begin, start, close = (_work(open_runs[f"{name}_ms"]) for name in ("make", "begin", "start", "close"))
    measured: dict[str, Any] = {
        "followed": _costs(by_message, (begin, close)),
        "in_place": _costs(in_place, (begin, close), then.cpu_s / conditions(in_place).cpu_s),
        "mapped": of_mapped(result["shapes"], then),
    }
    parameters = Parameters(
        **measured,
        make=make,
        begin=begin,
        start=start,
        close=close,
        sweep=_work(open_runs["sweep_ms"]),
        queue=_queue(open_runs["queue_ms"], _line(standing["pass_postgres_ms"])[0]),
        flush_s=max(0.0, 1 / result["raw"]["pg_commits_per_s"] - COMMIT_CPU_S),
        wake_s=0.0,
        pass_postgres_s=_line(standing["pass_postgres_ms"]),
        beat_postgres_s=_line(standing["beat_postgres_ms"]),
        pass_of_worker_s=_line(standing["pass_by_workers_ms"])[1],
        beat_of_worker_s=_line(standing["beat_by_workers_ms"])[1],
        begin_of_worker_s=_work(open_runs["begin_by_workers_ms"]).postgres[1],
        register_s=max(standing["register_by_workers_ms"].values()) / 1000,
        connection_s=standing["connection_ms"] / 1000,
        wal=wal(result["shapes"], result.get("waits", {})),
    )
    # Each depends on the others a little.
    for _ in range(FITS):
        alone: dict[str, Any] = {
            name: costs.times(1 / _slowed(parameters, *MEASURED_IN[name], result)) for name, costs in measured.items()
        }
        parameters = replace(parameters, **alone)
        for name in FITTED:
            parameters = _fitted(parameters, name, result, then)
    return parameters


def _slowed(parameters: Parameters, kind: str, shape: str, result: Mapping[str, Any]) -> float:
    """How many times as long the CPU of a shape takes in the model, because its processes run beside each other."""
    if shape not in result[kind]:
        return 1.0
    model = simulated(parameters, shape, result[kind][shape]["tasks"], BENCH if kind == "shapes" else BY_MESSAGE)
    return model.postgres.slowed_s / model.postgres.busy_s


def _fitted(parameters: Parameters, name: str, result: Mapping[str, Any], then: Conditions) -> Parameters:
    """The parameters with the value of this name with which the model takes as long as the shape of FITTED."""
    kind, shape, low, high = FITTED[name]

    def with_value(value: float) -> Parameters:
        found: dict[str, Any] = {name: value}
        return replace(parameters, **found)

    measured = result[kind].get(shape)
    if measured is None:
        return parameters
    now, deployment = conditions(measured), BENCH if kind == "shapes" else BY_MESSAGE
    for _ in range(10):
        middle = (low + high) / 2
        took = makespan(under(with_value(middle), then, now), shape, measured["tasks"], deployment)
        low, high = (middle, high) if took < measured["makespan_s"] else (low, middle)
    return with_value(low)


def under(parameters: Parameters, then: Conditions, now: Conditions) -> Parameters:
    """The parameters that were fitted under the conditions `then`, for the conditions `now` of the same machine."""
    return parameters.times(cpu=now.cpu_s / then.cpu_s * then.cores / now.cores, wait=now.hop_s / then.hop_s)


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


def _line(by_size: Mapping[str, float]) -> Line:
    """The line through the smallest and the largest size."""
    (low, least), *_, (high, most) = sorted((int(size), ms / 1000) for size, ms in by_size.items())
    each = max(0.0, (most - least) / (high - low))
    return max(0.0, least - each * low), each


def _costs(shape: Mapping[str, Any], of_run: Sequence[Work], by: float = 1.0) -> Costs:
    """The costs of a task, without the CPU of PostgreSQL for the run itself."""
    tasks = shape["tasks"]
    run_s = sum(at(work.postgres, tasks) for work in of_run)
    seconds = {name: shape["cpu_s_per_task"][role] * by for role, name in ROLES.items()}
    return Costs(**seconds | {"postgres": max(0.0, seconds["postgres"] - run_s / tasks)})


def of_mapped(shapes: Mapping[str, Any], then: Conditions) -> Costs:
    """The CPU of a mapped task instance beyond that of one of a fan-out, if both were measured."""
    if not {"map", "wide"} <= shapes.keys():
        return NO_COSTS
    mapped, plain = (_costs(shapes[name], (), then.cpu_s / conditions(shapes[name]).cpu_s) for name in ("map", "wide"))
    return replace(NO_COSTS, child=max(0.0, mapped.child - plain.child), postgres=max(0.0, mapped.postgres - plain.postgres))


def wal(shapes: Mapping[str, Any], waits: Mapping[str, Any]) -> Wal:
    """Bytes of a task from `wide`, which is one run, and those of a run from `many_runs`, whose runs are short."""
    if not {"wide", "many_runs"} <= shapes.keys() or "wal_bytes_per_task" not in shapes["wide"]:
        return Wal()
    wide, many_runs = shapes["wide"], shapes["many_runs"]
    of_task = wide["wal_bytes_per_task"]
    return Wal(
        of_task=of_task,
        of_run=max(0.0, many_runs["wal_bytes_per_task"] - of_task) * len(graph_of("many_runs", many_runs["tasks"])[0].above),
        to_tables=waits.get("written", {}).get("table_bytes_per_task", 0.0),
    )


def graph_of(name: str, tasks: int, busy_s: float = 0.0) -> tuple[Graph, int]:
    """The graph and the runs of a measured shape, which had so many task instances. Each uses a core for `busy_s`."""
    make, *sizes = SHAPES[name]
    for size, runs in sizes:
        graph = make(*size)
        if len(graph.above) * runs == tasks:
            return replace(graph, seconds=busy_s), runs
    raise ValueError(f"{name} of {tasks} task instances is no shape of bench/shapes.py")


def makespan(parameters: Parameters, name: str, tasks: int, deployment: Deployment, busy_s: float = 0.0) -> float:
    """Seconds that a shape takes on the machine of the bench."""
    return simulated(parameters, name, tasks, deployment, busy_s).env.now


def simulated(parameters: Parameters, name: str, tasks: int, deployment: Deployment, busy_s: float = 0.0) -> Model:
    """The model after it has run a shape on the machine of the bench."""
    graph, runs = graph_of(name, tasks, busy_s)
    model = Model(parameters, deployment)
    model.trigger(graph, runs)
    while len(model.closed) < runs:
        model.env.step()
    return model


def check(parameters: Parameters, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each measured shape, the time in the model under the same conditions, and the error."""
    rows = []
    then = conditions(result["by_message"]["chain"])
    for kind, deployment in (("shapes", BENCH), ("by_message", BY_MESSAGE)):
        shapes = result[kind]
        for name in (name for name in SHAPES if name in shapes):
            now, measured = conditions(shapes[name]), shapes[name]["makespan_s"]
            # Its tasks run one at a time, and each has a core to itself.
            busy_s = _fib_s(shapes) if name == "fib_long" else 0.0
            modeled_s = makespan(under(parameters, then, now), name, shapes[name]["tasks"], deployment, busy_s)
            fitted = any((kind, name) == of[:2] for of in FITTED.values())
            rows.append({
                "shape": name, "in_place": deployment is BENCH, "fitted": fitted, "measured_s": measured,
                "model_s": round(modeled_s, 4), "error": round(modeled_s / measured - 1, 3), "cores": round(now.cores, 2),
            })  # fmt: skip
    return rows


def _fib_s(shapes: Mapping[str, Any]) -> float:
    """CPU seconds of one fib(33): the difference between a task of fib_long and one of fib."""
    long, short = (shapes[name]["cpu_s_per_task"]["worker_children"] for name in ("fib_long", "fib"))
    return max(0.0, float(long - short))


def wrong(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The shapes whose error is too large."""
    return [row["shape"] if row["in_place"] else f"{row['shape']} by message" for row in rows if abs(row["error"]) > MOST_ERROR]
