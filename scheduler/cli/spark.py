"""`paceline spark`: what a machine is prepared with for Spark tasks."""

import click

from scheduler.cli import options


@click.group()
def spark() -> None:
    """Prepare this machine for Spark tasks."""


@spark.command()
def archive() -> None:
    """Make the archive of Spark's classes, from which JVMs start in 3 s instead of 5; at once if it is there already.

    It takes half a minute and 200 MB, and serves all Spark workers of this Python environment. After an upgrade of Java or PySpark
    run it again; until then JVMs start as they do without one.
    """
    from workers.spark import archive as archives

    settings = options.settings()
    if not archives.path(settings).is_file():
        from workers.spark.warm import archiving

        click.echo("Archiving Spark's classes, so that its JVMs start sooner; this takes half a minute.", err=True)
        archiving.make(settings)
    click.echo(f"Spark's classes are archived in {archives.path(settings)}.")
