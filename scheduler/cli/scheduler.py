"""`paceline scheduler`: starts a scheduler."""

import click

from scheduler.cli import options


@click.command()
def scheduler() -> None:
    """Start a scheduler. Any number can run at once. SIGTERM or Ctrl-C shuts it down gracefully.

    If the database or the broker is not reachable yet, the scheduler logs that and waits.
    """
    settings = options.settings()
    from scheduler.services import loop
    from scheduler.telemetry import attach

    attach.attach(settings)
    click.get_current_context().exit(loop.run(settings))
