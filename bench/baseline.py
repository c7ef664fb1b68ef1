"""The part `raw`: bare Celery with and without acknowledgments, sent before and while a worker runs; durable commits."""

from statistics import median

from bench import report
from bench.measure import calibrate
from bench.options import Options, Piece
from bench.raw import MESSAGES, RawCelery, commits_per_s
from bench.stack import Stack


def measure(options: Options) -> Piece:
    """Medians; keys with `no_ack` are with ack_emulation False, all others with Celery as it comes."""
    messages, hops = (100, (10, 2)) if options.small else (MESSAGES, ())
    found: dict[str, list[float]] = {}
    with Stack({}, schedulers=0, workers=0) as stack:
        for iteration in range(options.iterations):
            # Every other time in the opposite order, so that a machine that gets slower is no advantage for either.
            for ack in (True, False) if iteration % 2 == 0 else (False, True):
                celery, prefix = RawCelery(stack, ack_emulation=ack), "celery" if ack else "celery_no_ack"
                row = {f"{prefix}_sent_before_tasks_per_s": celery.sent_before(messages)}
                with celery.running():
                    row[f"{prefix}_tasks_per_s"] = celery.sent_while_running(messages)
                    row[f"{prefix}_hop_ms_p50"] = median(celery.hops(*hops))
                row["pg_commits_per_s"] = commits_per_s(stack, 0.1 if options.small else 1.0)
                options.say(report.row_line(row, calibrate()))
                for key, value in row.items():
                    found.setdefault(key, []).append(value)
    return {"raw": {key: round(median(values), 3) for key, values in found.items()}}
