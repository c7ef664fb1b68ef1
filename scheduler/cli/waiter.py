"""`paceline waiter`: starts a waiter."""

import click

from scheduler.cli import options


@click.command()
@click.option("--name", help="Name of this waiter. Default: derived from the host name.")
def waiter(name: str | None) -> None:
    """Start a waiter, which awaits the triggers of deferred tasks. Any number can run at once.

    On SIGTERM or Ctrl-C, the waiter releases its triggers, and another waiter takes them over immediately.
    """
    settings = options.settings()
    from scheduler.telemetry import attach
    from workers.waiter import waiter as process

    attach.attach(settings)
    click.get_current_context().exit(process.run(settings, name=name))
