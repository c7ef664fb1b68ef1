"""`paceline deploy` stores a folder as a version of a bundle, or rolls back, and waits until schedulers have parsed it.

`paceline bundles` lists bundles, their versions and files.
"""

import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import click

from paceline.exceptions import UnreachableError, WaitTimeoutError
from scheduler.cli import lazy, options, output
from scheduler.cli.bundle_access import BundleAccess, Row, access, of_installation

POLL_S = 0.3
#: Seconds for a question to Git, and the characters of an origin.
GIT_S, LONGEST_ORIGIN = 20, 1000
#: The value of --rollback without a version.
PREVIOUS = "previous"
BUNDLES = ["bundle_name", "live_version", "wanted_version", "wanted_state", "live_at", "dag_count", "version_count", "message"]
VERSIONS = ["version_number", "state", "is_live", "created_at", "created_by", "file_count", "run_count", "message", "origin"]
name = click.argument("bundle", metavar="BUNDLE")


def _version(text: str) -> str:
    if text != PREVIOUS and not (text.isdecimal() and 0 < int(text) < 2**31):
        raise ValueError(f"{text!r} is not the number of a version: `paceline bundles versions` shows them.")
    return text


@click.command()
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--bundle", default="default", show_default=True, metavar="NAME", help="The bundle to deploy to. A new name creates one."
)
@click.option("--message", "-m", default="", help="What has changed, for the list of versions and the audit log.")
@click.option(
    "--rollback",
    is_flag=False,
    flag_value=PREVIOUS,
    type=options.Parsed("version", _version),
    metavar="[VERSION]",
    help="Instead of DIR: make this version live again. Default: the one that was live before.",
)
@of_installation
@click.option("--no-wait", is_flag=True, help="Do not wait until a scheduler has parsed the version.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Exit 5 if the version is neither live nor refused by then.",
)
@options.as_json
def deploy(
    folder: Path | None, *, bundle: str, message: str, rollback: str | None, url: str | None, token: str | None, no_wait: bool,
    timeout_s: float,
) -> None:  # fmt: skip
    """Deploy the folder DIR as a version of a bundle, and wait until it is live.

    Hidden files, caches, virtual environments and node_modules are left out. A version goes live as a whole, or not at all: if a
    DAG file has an error, the command prints it and exits 1, and the version before stays live. Running runs keep their code.
    """
    from scheduler.dagfiles.bundle_files import read_folder

    if (folder is None) is (rollback is None):
        raise click.UsageError("Name the folder to deploy, or use --rollback.")
    there = access(url, token)
    if folder is not None:
        files = read_folder(folder, options.settings().bundles)
        row = there.deploy(bundle, files, message=message, origin=origin_of(folder))
    else:
        row = there.roll_back(bundle, None if rollback == PREVIOUS else int(rollback or 0))
    if folder is not None and not output.json_wanted():
        output.say(_stored(row))
    if no_wait:
        output.result(row, f"Version {row['version_number']} of bundle {bundle} goes live as soon as a scheduler has parsed it.")
        return
    _end(there, row, _decided(there, row, timeout_s))


def _end(there: BundleAccess, deployed: Row, row: Row) -> None:
    """Print what a version has changed, or why it is not live, and exit."""
    name = f"Version {row['version_number']} of bundle {row['bundle_name']}"
    changes = there.changes(row["bundle_name"], row["version_number"], deployed["previous_version"]) if row["is_live"] else None
    if output.json_wanted():
        output.print_json(deployed | row | {"changes": changes})
    elif changes is not None:
        for kind, dag_ids in changes["dags"].items():
            for dag_id in dag_ids:
                click.echo(output.visible(f"{kind:<8} DAG {dag_id}"))
        click.echo(f"{name} is live." if any(changes["dags"].values()) else f"{name} is live; no DAG differs from before.")
    elif row["state"] == "refused":
        for problem in row["problems"]:
            line = f":{problem['line']}" if problem.get("line") else ""
            click.echo(output.visible(f"{problem['file']}{line}: {problem['message']}"))
        before = deployed["previous_version"]
        output.say(f"{name} does not go live" + (f": version {before} stays live." if before else "."))
    else:
        output.say(f"{name} does not go live: another version was deployed meanwhile.")
    if not row["is_live"]:
        click.get_current_context().exit(1)


def _decided(there: BundleAccess, row: Row, timeout_s: float) -> Row:
    """The version as soon as it is live or refused, or another one is wanted. WaitTimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            row = there.version(row["bundle_name"], row["version_number"])
            if row["is_live"] or row["state"] == "refused" or not row["is_wanted"]:
                return row
        except UnreachableError:
            if time.monotonic() >= deadline:
                raise
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(
                f"Version {row['version_number']} of bundle {row['bundle_name']} is not parsed after {timeout_s:g} s, and goes live"
                " when it is: check with `paceline doctor` that a scheduler runs."
            )
        time.sleep(POLL_S)


def _stored(row: Row) -> str:
    name = f"Version {row['version_number']} of bundle {row['bundle_name']}"
    counts = ", ".join(f"{len(row[kind])} {kind}" for kind in ("added", "changed", "removed"))
    return f"{name} {'is stored' if row['is_new'] else 'has these files'}: {output.count(row['file_count'], 'file')} ({counts})."


def origin_of(folder: Path) -> str:
    """Where the files of a folder come from: the commit of its Git work tree, or else this machine and the path."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return f"{socket.gethostname()}:{folder.resolve()}"[:LONGEST_ORIGIN]
    remote = urlsplit(_git(folder, "config", "--get", "remote.origin.url") or "")
    place = remote._replace(netloc=remote.netloc.rpartition("@")[2]).geturl() if remote.netloc else remote.geturl()
    changed = " with changes that are not committed" if _git(folder, "status", "--porcelain", "--", ".") else ""
    return f"{place + '@' if place else ''}{commit}"[: LONGEST_ORIGIN - len(changed)] + changed


def _git(folder: Path, *arguments: str) -> str | None:
    """The answer of Git about a folder; None if it has none."""
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, check=False, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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
