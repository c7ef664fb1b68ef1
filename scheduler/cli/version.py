"""`paceline version`."""

import importlib.metadata

import click


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(importlib.metadata.version("paceline"))
