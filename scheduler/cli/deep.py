"""`paceline doctor --deep`: the rows of the database and the messages of the broker that contradict each other."""

from dataclasses import asdict

from scheduler.cli import options, output

COLUMNS = ["invariant", "dag_id", "run_id", "task_id", "map_index", "what", "since"]


def examine(*, json_wanted: bool) -> bool:
    """Print every row that violates an invariant; whether there is none."""
    from scheduler.messaging.wakeups import client
    from scheduler.services import invariants

    settings = options.settings()
    with client(settings) as broker:
        broken = invariants.find(invariants.Tools(options.engine(), settings, broker))
    rows = [{"invariant": one.name} | asdict(one) for one in broken]
    if json_wanted:
        output.print_json({"ok": not rows, "broken": [{name: row[name] for name in COLUMNS} for row in rows]})
    else:
        output.table(rows, COLUMNS, empty="Every invariant holds.")
        if rows:
            output.say(
                f"{len(rows)} to look at. What exceeds a limit ends by itself. For any other row, clear or mark the task instance,"
                " and report a bug."
            )
    return not rows
