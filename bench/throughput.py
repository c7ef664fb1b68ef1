"""The shapes: each after a warm-up, alternating with bare Celery on the same servers, so that both run under equal conditions."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench import raw, report, shapes
from bench.measure import Measured, in_turns, quantiles, run, warm_up
from bench.options import Options, Piece
from bench.raw import RawCelery, Sample, Samples
from bench.shapes import Shape
from bench.stack import Stack

#: The raw baseline with and without acknowledgments, and one run of a shape, right after each other.
Pair = tuple[Samples, Measured]


def measure(chosen: Sequence[str], options: Options, environment: Mapping[str, str] | None = None) -> Piece:
    """The pieces `shapes` and `raw` for these shapes, which share one stack with these settings."""
    known = shapes.small() if options.small else shapes.full()
    wanted = [known[name] for name in chosen]
    with Stack(shapes.files_of(wanted), environment=environment or {}) as stack:
        samples, found = on_stack(stack, wanted, options)
    return {"raw": _raw(samples), "shapes": found}


def on_stack(stack: Stack, wanted: Sequence[Shape], options: Options) -> tuple[list[Samples], dict[str, Any]]:
    """All samples of bare Celery, with as many pool processes as the stack's workers; and the figures of each shape."""
    found: dict[str, Any] = {}
    samples: list[Samples] = []
    celery, no_ack = (RawCelery(stack, ack_emulation=ack, concurrency=stack.concurrency) for ack in (True, False))
    with celery.running(), no_ack.running():
        for shape in wanted:
            options.say(f"--- {shape.name}: {shape.meaning}")
            pairs = _pairs(stack, (celery, no_ack), shape, options)
            samples += [sampled for sampled, _ in pairs]
            found[shape.name] = _summary(pairs)
    return samples, found


def _pairs(stack: Stack, both: tuple[RawCelery, RawCelery], shape: Shape, options: Options) -> list[Pair]:
    warm_up(stack, shape)
    pairs = []
    for iteration in range(options.iterations):
        pairs.append(in_turns(iteration, lambda: _samples(stack, both, options), lambda: run(stack, shape)))
        options.say(report.pair_line(*pairs[-1]))
    return pairs


def _samples(stack: Stack, both: tuple[RawCelery, RawCelery], options: Options) -> Samples:
    return Samples(*(raw.sample(stack, celery, small=options.small) for celery in both))


def _summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Medians. Each ratio is that of a run to its own sample of the baseline; the median is taken of the ratios."""
    runs = [measured for _, measured in pairs]
    hops = [quantiles(measured.hops_ms) for measured in runs]
    over = _ratios([(samples.celery, measured) for samples, measured in pairs])
    over_no_ack = _ratios([(samples.no_ack, measured) for samples, measured in pairs])
    ratios = over | {f"{name}_no_ack": values for name, values in over_no_ack.items()}
    return {
        "tasks": runs[0].tasks,
        "succeeded": min(measured.succeeded for measured in runs),
        "runs": len(runs),
        "makespan_s": round(median(measured.makespan_s for measured in runs), 4),
        "tasks_per_s": round(median(measured.tasks_per_s for measured in runs), 1),
        "hop_ms": {name: round(median(one[name] for one in hops), 3) for name in hops[0]},
        **{name: round(median(values), 3) for name, values in ratios.items()},
        "cpu_s_per_task": {
            role: round(median(measured.cpu_s_per_task[role] for measured in runs), 6) for role in runs[0].cpu_s_per_task
        },
        "wal_bytes_per_task": round(median(measured.wal_bytes / measured.tasks for measured in runs)),
        "spread": {
            "makespan_s": _ends([measured.makespan_s for measured in runs]),
            **{name: _ends(values) for name, values in ratios.items()},
        },
        "calibration_ms": round(median(measured.calibration_ms for measured in runs), 2),
    }


def _ratios(pairs: Sequence[tuple[Sample, Measured]]) -> dict[str, list[float]]:
    """By name, of each run: its share of bare Celery's tasks/s, and its hop, makespan and CPU over those of bare Celery."""
    return {
        "of_raw_celery": [measured.tasks_per_s / sample.tasks_per_s for sample, measured in pairs],
        "hop_over_raw": [quantiles(measured.hops_ms)["p50"] / sample.hop_ms for sample, measured in pairs],
        "makespan_over_raw_hops": [measured.makespan_s * 1000 / (measured.tasks * sample.hop_ms) for sample, measured in pairs],
        "cpu_over_raw": [measured.cpu_s_per_task["total"] / sample.cpu_s_per_task for sample, measured in pairs],
    }


def _raw(samples: Sequence[Samples]) -> dict[str, float]:
    found: dict[str, float] = {}
    for prefix, kind in (("celery", [both.celery for both in samples]), ("celery_no_ack", [both.no_ack for both in samples])):
        found |= {
            f"{prefix}_tasks_per_s": round(median(sample.tasks_per_s for sample in kind), 1),
            f"{prefix}_hop_ms_p50": round(median(sample.hop_ms for sample in kind), 3),
            f"{prefix}_cpu_s_per_task": round(median(sample.cpu_s_per_task for sample in kind), 6),
        }
    every = [sample for both in samples for sample in (both.celery, both.no_ack)]
    return found | {
        "pg_commits_per_s": round(median(sample.commits_per_s for sample in every), 1),
        "calibration_ms": round(median(sample.calibration_ms for sample in every), 2),
        "samples": len(samples),
    }


def _ends(values: Sequence[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]
