"""`paceline alive`: the short form of `paceline doctor --role`."""

import click

from scheduler.cli import health


@click.command()
@click.argument("role", metavar="KIND", type=click.Choice(health.ROLES))
def alive(role: str) -> None:
    """Exit 0 if the scheduler, worker or waiter on this machine is healthy, else 1. Short form of `paceline doctor --role`."""
    health.examine(role)
