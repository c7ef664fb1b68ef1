"""The shapes: each after a warm-up, in turns with bare Celery on the same servers, so that both meet the same machine."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from bench import raw, report, shapes
from bench.measure import Measured, quantiles, run
from bench.options import Options, Piece
from bench.raw import RawCelery, Sample
from bench.shapes import Shape
from bench.stack import Stack

#: One sample of the raw baseline and one run of a shape, right after each other.
Pair = tuple[Sample, Measured]


def measure(chosen: Sequence[str], options: Options) -> Piece:
    """The pieces `shapes` and `raw` for these shapes; all share one stack."""
    known = shapes.small() if options.small else shapes.full()
    wanted = [known[name] for name in chosen]
    found: dict[str, Any] = {}
    samples: list[Sample] = []
    with Stack({name: text for shape in wanted for name, text in shape.files.items()}) as stack:
        celery = RawCelery(stack)
        with celery.running():
            for shape in wanted:
                options.say(f"--- {shape.name}: {shape.meaning}")
                pairs = _pairs(stack, celery, shape, options)
                samples += [sample for sample, _ in pairs]
                found[shape.name] = _summary(pairs)
    return {"raw": _raw(samples), "shapes": found}


def _pairs(stack: Stack, celery: RawCelery, shape: Shape, options: Options) -> list[Pair]:
    run(stack, shape)  # warm-up: after it every pool child has read the file
    pairs = []
    for iteration in range(options.iterations):
        # A B B A ...: a machine that gets slower is no advantage for either.
        if iteration % 2 == 0:
            sample = raw.sample(stack, celery, small=options.small)
            measured = run(stack, shape)
        else:
            measured = run(stack, shape)
            sample = raw.sample(stack, celery, small=options.small)
        pairs.append((sample, measured))
        options.say(report.pair_line(sample, measured))
    return pairs


def _summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Medians. Each ratio is that of a run to its own sample of the baseline, before the median is taken."""
    runs = [measured for _, measured in pairs]
    hops = [quantiles(measured.hops_ms) for measured in runs]
    shares = [measured.tasks_per_s / sample.tasks_per_s for sample, measured in pairs]
    over_raw = [quantiles(measured.hops_ms)["p50"] / sample.hop_ms for sample, measured in pairs]
    rows = [measured.makespan_s * 1000 / (measured.tasks * sample.hop_ms) for sample, measured in pairs]
    return {
        "tasks": runs[0].tasks,
        "succeeded": min(measured.succeeded for measured in runs),
        "runs": len(runs),
        "makespan_s": round(median(measured.makespan_s for measured in runs), 4),
        "tasks_per_s": round(median(measured.tasks_per_s for measured in runs), 1),
        "hop_ms": {name: round(median(one[name] for one in hops), 3) for name in hops[0]},
        "of_raw_celery": round(median(shares), 3),
        "hop_over_raw": round(median(over_raw), 2),
        "makespan_over_raw_hops": round(median(rows), 2),
        "cpu_s_per_task": {
            role: round(median(measured.cpu_s_per_task[role] for measured in runs), 6) for role in runs[0].cpu_s_per_task
        },
        "cpu_over_raw": round(median(measured.cpu_s_per_task["total"] / sample.cpu_s_per_task for sample, measured in pairs), 2),
        "spread": {
            "makespan_s": _ends([measured.makespan_s for measured in runs]),
            "of_raw_celery": _ends(shares),
            "hop_over_raw": _ends(over_raw),
        },
        "calibration_ms": round(median(measured.calibration_ms for measured in runs), 2),
    }


def _raw(samples: Sequence[Sample]) -> dict[str, float]:
    return {
        "celery_tasks_per_s": round(median(sample.tasks_per_s for sample in samples), 1),
        "celery_hop_ms_p50": round(median(sample.hop_ms for sample in samples), 3),
        "celery_cpu_s_per_task": round(median(sample.cpu_s_per_task for sample in samples), 6),
        "pg_commits_per_s": round(median(sample.commits_per_s for sample in samples), 1),
        "calibration_ms": round(median(sample.calibration_ms for sample in samples), 2),
        "samples": len(samples),
    }


def _ends(values: Sequence[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]
