"""`paceline spark`: prepares a machine for Spark tasks."""

import click

from scheduler.cli import lazy, options


@click.group(cls=lazy.NounGroup)
def spark() -> None:
    """Prepare this machine for Spark tasks."""


@spark.command()
def archive() -> None:
    """Create the class archive of Spark, which lets JVMs start in 3 s instead of 5. An existing archive is kept.

    The archive takes half a minute to create and 200 MB of disk. All Spark workers of this Python environment use it. Run this
    command again after an upgrade of Java or PySpark; until then, JVMs start without the archive.
    """
    from workers.spark import archive as archives

    settings = options.settings()
    if not archives.path(settings).is_file():
        from workers.spark.sessions import archiving

        click.echo("Archiving Spark's classes, so that its JVMs start sooner; this takes half a minute.", err=True)
        archiving.make(settings)
    click.echo(f"Spark's classes are archived in {archives.path(settings)}.")
