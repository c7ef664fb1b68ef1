"""The part `fanin`: the cost of a task upstream of a join of 100, 1,000 and 10,000 tasks."""

from statistics import median

from bench import measure as measuring
from bench import shapes
from bench.options import Options, Piece
from bench.shapes import Shape
from bench.stack import Stack

#: Number of upstream tasks of the join -> sequential runs of one sample, so that each sample has thousands of tasks.
WIDTHS = {100: 30, 1_000: 4, 10_000: 1}
SMALL = {3: 2, 6: 1}


def measure(options: Options) -> Piece:
    """`fanin`: CPU seconds of all processes per task, and tasks/s, by width; ratio of the CPU of the widest to the narrowest."""
    widths = SMALL if options.small else WIDTHS
    fans = {width: _shape(width) for width in widths}
    cpu: dict[int, list[float]] = {width: [] for width in widths}
    pace: dict[int, list[float]] = {width: [] for width in widths}
    with Stack(shapes.files_of(fans.values()), environment={"PACELINE_SCHEDULER_MIN_FILE_PROCESS_INTERVAL": "3600"}) as stack:
        for fan in fans.values():
            measuring.run(stack, fan, 600)
        for iteration in range(options.iterations):
            for width in widths if iteration % 2 == 0 else reversed(widths):
                samples = [measuring.run(stack, fans[width], 600) for _ in range(widths[width])]
                cpu[width].append(sum(one.cpu_s_per_task["total"] for one in samples) / len(samples))
                pace[width].append(sum(one.tasks for one in samples) / sum(one.makespan_s for one in samples))
                options.say(f"{width:,} into one: {cpu[width][-1] * 1000:.3f} ms CPU a task, {pace[width][-1]:.0f} tasks/s")
    narrow, wide = min(widths), max(widths)
    return {
        "fanin": {
            str(width): {"cpu_s_per_task": round(median(cpu[width]), 6), "tasks_per_s": round(median(pace[width]), 1)}
            for width in widths
        },
        "ratios": {"fanin": round(median(cpu[wide]) / median(cpu[narrow]), 3)},
    }


def _shape(width: int) -> Shape:
    dag_id = f"fanin_{width}"
    body = f"""\
    join = noop.override(task_id="join")()
    for i in range({width}):
        noop.override(task_id=f"t{{i:05}}")() >> join
"""
    text = f'{shapes.NOOP}with DAG("{dag_id}", schedule=None, catchup=False, {shapes.WIDE}):\n{body}'
    return Shape(name=dag_id, meaning=f"{width:,} into one", files={f"{dag_id}.py": text}, dag_ids=(dag_id,), tasks=width + 1)
