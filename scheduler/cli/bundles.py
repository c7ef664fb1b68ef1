"""`paceline bundles`: lists bundles, their versions and files."""

import click

from scheduler.cli import lazy, options, output

BUNDLES = ["bundle_name", "live_version", "wanted_version", "wanted_state", "live_at", "dag_count", "version_count", "message"]
VERSIONS = ["version_number", "state", "is_live", "created_at", "created_by", "file_count", "run_count", "message", "origin"]
name = click.argument("bundle", metavar="BUNDLE")


@click.group(cls=lazy.NounGroup)
def bundles() -> None:
    """List bundles, which `paceline deploy` creates, with their versions and files."""


@bundles.command("list")
@options.as_table
def list_() -> None:
    """List bundles with their live versions."""
    from scheduler.store.read import bundles as reads

    rows = options.transact(reads.all_bundles)
    output.listing(rows, BUNDLES, empty="No bundles: `paceline deploy DIR` creates one.")


@bundles.command()
@name
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number, newest first.")
@options.as_table
def versions(bundle: str, *, limit: int) -> None:
    """List the versions of a bundle, newest first, with their runs and problems."""
    from scheduler.store.read import bundles as reads

    rows = options.transact(reads.versions, bundle, limit)
    output.listing(rows, VERSIONS, empty=f"Bundle {bundle} has no versions.")
    if not output.json_wanted():
        for row in rows:
            for problem in row["problems"] or ():
                line = f":{problem['line']}" if problem.get("line") else ""
                output.say(f"Version {row['version_number']}: {problem['file']}{line}: {problem['message']}")


@bundles.command()
@name
@click.argument("version", type=click.IntRange(1, lazy.LARGEST))
@options.as_table
def files(bundle: str, version: int) -> None:
    """List the files of a version."""
    from scheduler.store.read import bundles as reads

    rows = options.transact(reads.files, bundle, version)
    output.listing(rows, ["path", "byte_count", "is_executable", "digest"], empty="No files.")
