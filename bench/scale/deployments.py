"""Large deployments in the model: the load of each part, and whether the deployment keeps up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.measure import quantile
from bench.scale import graphs
from bench.scale.graphs import Graph
from bench.scale.hardware import Step
from bench.scale.model import POSTGRES_REPORT, Model
from bench.scale.parameters import Connections, Deployment, Parameters, connections

#: The runs of a deployment, with the share of each kind: rows of 10 tasks, fan-outs to 30, and 50 mapped over a list.
MIX: Sequence[tuple[float, Graph]] = ((0.8, graphs.row(10)), (0.15, graphs.fan(30)), (0.05, graphs.spread(50)))
#: The load of the busiest hour over that of an average hour, and the share of the pool processes that is busy then.
PEAK, USED = 3.0, 0.6
#: The simulated load: seconds of a task at most, and seconds of the model's time, of which the second half counts. What a task
#: costs schedulers and servers does not depend on its duration, and short tasks keep the model small: the others run all the time.
TASK_S, SECONDS = 1.0, 30.0
#: The same for changes that overload a deployment.
OVERLOADED_S = 20.0
#: An installation keeps up if the task instances that are ready and have not started are at most those of so many seconds, also
#: counting those of runs that are not created yet; if 95 of 100 start within these seconds; and if its connections are allowed.
BACKLOG_S, LAG_S = 1.0, 1.0
#: Seconds in which a model must end. One that is so overloaded that it does not is stopped, and does not keep up.
MOST_STEPS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A deployment with its task instances a day, and whether it should keep up."""

    name: str
    a_day: float
    deployment: Deployment
    expected: bool = True

    @property
    def per_s(self) -> float:
        """Task instances in a second of the busiest hour."""
        return self.a_day / 86400 * PEAK

    @property
    def running(self) -> int:
        """Task instances that run in the busiest hour."""
        return int(self.deployment.processes * USED)

    @property
    def task_s(self) -> float:
        """Seconds of a task with which the workers are as busy as that."""
        return self.running / self.per_s

    @property
    def connections(self) -> Connections:
        return connections(self.deployment, self.per_s, self.task_s)


LARGE = Deployment(workers=10_000, children=16, schedulers=8, pools=8, brokers=2, heartbeat_s=30, postgres_cores=32)
#: Pools and core.parallelism have as many slots as there are pool processes.
SCENARIOS = (
    Scenario(name="10 million, 100 workers", a_day=10e6,
             deployment=Deployment(workers=100, children=16, postgres_cores=32)),
    Scenario(name="100 million, 10,000 workers", a_day=100e6,
             deployment=replace(LARGE, connections_of_worker=1, max_connections=25_000)),
    Scenario(name="100 million, 10,000 workers, a connection for each pool process", a_day=100e6,
             deployment=replace(LARGE, max_connections=25_000), expected=False),
    Scenario(name="100 million, 1,000 workers", a_day=100e6,
             deployment=replace(LARGE, workers=1000, brokers=1, heartbeat_s=10, connections_of_worker=1)),
)  # fmt: skip


def load(
    parameters: Parameters, deployment: Deployment, per_s: float, *, task_s: float = TASK_S, seconds: float = SECONDS
) -> dict[str, Any]:
    """The load of each part while `per_s` task instances of MIX become ready in a second, in runs that come at random times.

    Each takes `task_s`. As many more run all the time as would run if tasks took longer, see `Deployment.standing`.
    """
    opened = connections(deployment, per_s, task_s + deployment.standing / per_s).opened_per_s / per_s
    model = Model(parameters, deployment, opened)
    model.env.process(_arrivals(model, per_s, task_s, seconds))
    complete = model.run(seconds / 2, MOST_STEPS // 2)
    before, at_s, bytes_before = busy(model), model.env.now, model.log.bytes
    model.hops.clear()
    done = model.done
    complete &= model.run(seconds, MOST_STEPS // 2)
    span_s = max(model.env.now - at_s, 1e-9)
    after, hops = busy(model), sorted(model.hops)
    return {
        "per_s": round(per_s),
        "done_per_s": round((model.done - done) / span_s),
        "backlog": model.backlog,
        "lag_s": {f"p{share}": round(quantile(hops, share / 100), 4) for share in (50, 95, 99)} if hops else {},
        "busy": {name: round((after[name] - before[name]) / span_s, 3) for name in after},
        "run_lock": round(model.runs_held_s / max(model.runs_open_s, 1e-9), 5),
        "disk_mb_per_s": round((model.log.bytes - bytes_before) / span_s / 1e6, 2),
        "simulated_s": round(model.env.now, 1),
        "complete": complete,
    }


def _arrivals(model: Model, per_s: float, task_s: float, seconds: float) -> Step:
    kinds = [replace(graph, seconds=task_s, busy=False) for _, graph in MIX]
    shares = [share for share, _ in MIX]
    tasks_of_run = sum(share * len(graph.above) for share, graph in MIX)
    # As if the load had lasted for long: rows, which take longest, are at a random point of their course at first.
    share, row = MIX[0]
    for _ in range(int(per_s * task_s * share * len(row.above) / tasks_of_run)):
        model.env.process(_later(model, replace(graphs.row(model.dice.randint(1, len(row.above)), task_s), busy=False)))
    while model.env.now < seconds:
        yield model.env.timeout(model.dice.expovariate(per_s / tasks_of_run))
        model.plan(model.dice.choices(kinds, shares)[0])


def _later(model: Model, graph: Graph) -> Step:
    yield model.env.timeout(model.dice.random() * graph.seconds)
    model.plan(graph)


def busy(model: Model) -> dict[str, float]:
    """Busy seconds so far of each part. Of several of a kind, those of the busiest."""
    return {
        "postgres_cores": model.postgres.busy_s,
        "disk": model.log.busy_s,
        "scheduler": max(cpu.busy_s for cpu in model.scheduler_cpus),
        "redis": max(cpu.busy_s for cpu in model.redis),
        "pool_lock": max(model.pools_held_s),
    }


def simulate(parameters: Parameters, scenario: Scenario, seconds: float = SECONDS) -> dict[str, Any]:
    """The busiest hour of a scenario, and why it does not keep up, if it does not."""
    deployment, per_s = scenario.deployment, scenario.per_s
    task_s = min(TASK_S, scenario.task_s)
    standing = max(0, int(scenario.running - per_s * task_s))
    row = load(parameters, replace(deployment, standing=standing), per_s, task_s=task_s, seconds=seconds)
    wal = parameters.wal
    tasks_of_run = sum(share * len(graph.above) for share, graph in MIX)
    row |= {
        "scenario": scenario.name,
        "expected": scenario.expected,
        "postgres_cores": deployment.postgres_cores,
        "a_day": scenario.a_day,
        "seconds_of_a_task": round(scenario.task_s, 2),
        "running": scenario.running,
        "connections": asdict(scenario.connections),
        "registration_s": round(deployment.workers * parameters.register_s, 1),
        "wal_gb_a_day": round(scenario.a_day * (wal.of_task + wal.of_run / tasks_of_run) / 1e9, 1),
    }
    reasons = too_much(row, deployment)
    return row | {"keeps_up": not reasons, "why_not": reasons}


def too_much(row: Mapping[str, Any], deployment: Deployment) -> list[str]:
    """Why a deployment with this load does not keep up."""
    found = []
    if not row["complete"]:
        found.append(f"the model ended after {row['simulated_s']} simulated seconds, because too much happens in each")
    if row["backlog"] > (most := BACKLOG_S * row["per_s"]):
        found.append(f"{row['backlog']} task instances are ready and have not started, more than {most:.0f}")
    if (lag_s := row["lag_s"].get("p95", float("inf"))) > LAG_S:
        found.append(f"95 of 100 start after up to {lag_s:.2f} s, more than {LAG_S:g}")
    if (wanted := row["connections"]["open"]) > deployment.max_connections:
        found.append(f"{wanted} connections, more than max_connections ({deployment.max_connections})")
    return found


def overloads(parameters: Parameters, scenario: Scenario, row: Mapping[str, Any]) -> list[tuple[str, Parameters, Scenario]]:
    """Changes with which a scenario cannot keep up, by what they are: a model that says that it does is wrong.

    `row` is the load of the scenario without them. It tells which hardware is just enough for it.
    """
    report = replace(parameters.followed, postgres=parameters.followed.postgres * (1 + POSTGRES_REPORT))
    enough = replace(scenario.deployment, postgres_cores=max(1, math.ceil(row["busy"]["postgres_cores"])))
    slow = replace(scenario.deployment, disk_bytes_per_s=max(1.0, row["disk_mb_per_s"] * 1e6 / 2))
    return [
        ("reports take twice the CPU, on as many cores as are just enough", replace(parameters, followed=report),
         replace(scenario, deployment=enough)),
        ("the disk writes half of the bytes that it has to", parameters, replace(scenario, deployment=slow)),
    ]  # fmt: skip
