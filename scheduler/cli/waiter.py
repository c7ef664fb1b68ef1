"""`paceline waiter`: awaits the triggers of deferred task instances."""

import click

from scheduler.cli import options


@click.command()
@click.option("--name", help="Name of this waiter; made from the host name if left out.")
def waiter(name: str | None) -> None:
    """Start a waiter, which awaits the triggers of deferred tasks; any number may run at once.

    SIGTERM and Ctrl-C let it give its triggers back, so that another waiter takes them over at once.
    """
    settings = options.settings()
    from workers import waiter as process

    click.get_current_context().exit(process.run(settings, name=name))
