"""`paceline scheduler`: one of any number of schedulers."""

import click

from scheduler.cli import options


@click.command()
def scheduler() -> None:
    """Start a scheduler; any number may run at once. SIGTERM and Ctrl-C stop it in order.

    It waits for a database or broker that does not answer yet, and says so.
    """
    from scheduler import loop

    click.get_current_context().exit(loop.run(options.settings()))
