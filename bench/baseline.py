"""The part `raw`: bare Celery with and without acknowledgments, with messages sent before and during work; durable commits."""

from statistics import median

from bench import report
from bench.measure import calibrate
from bench.options import Options, Piece
from bench.raw import MESSAGES, RawCelery, commits_per_s
from bench.stack import Stack


def measure(options: Options) -> Piece:
    """Medians. Keys with `no_ack` are measured with ack_emulation off, all others with Celery's defaults."""
    messages, hops = (100, (10, 2)) if options.small else (MESSAGES, ())
    found: dict[str, list[float]] = {}
    with Stack({}, schedulers=0, workers=0) as stack:
        for iteration in range(options.iterations):
            # In alternating order, so that a machine that becomes slower gives neither an advantage.
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
