"""Bundles: deploy files as a version, and roll back to an earlier one. Schedulers parse a version and make it the live one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from paceline.exceptions import ConflictError, UsageError
from scheduler.actions.actor import Actor
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.read import bundles as reads
from scheduler.store.read.listing import Row

#: Not "..", which an address would not keep, nor what looks like an option or a hidden file.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
#: What the audit log calls these actions.
DEPLOY, ROLL_BACK = "bundles.deploy", "bundles.rollback"
#: Characters of a message, and of an origin.
LONGEST = 1000
#: In the audit log: names of files and DAGs for each kind of change.
MOST_RECORDED = 50
SIGNS = {"added": "+", "changed": "~", "removed": "-"}


def deploy(by: Actor, bundle: str, files: Mapping[str, BundleFile], *, message: str = "", origin: str = "") -> Row:
    """Store files as a version of a bundle, which goes live as soon as a scheduler has parsed all of them without an error.

    Keys of `files` are paths. `origin` says where they come from, such as a Git commit. Returns the version, with `is_new`, the
    version that is live now as `previous_version`, and the paths of the files that are `added`, `changed` and `removed` since the
    one that was deployed last. UsageError for a name, a text or files that cannot be stored; ConflictError for a
    bundle that schedulers read from a source.
    """
    _check_texts(bundle, message, origin)
    if not files:
        raise UsageError("There are no files to deploy: name the folder that holds the DAG files.")
    row = by.write(_deploy, bundle, files, by=by, message=message, origin=origin)
    by.announce("bundle deployed")
    return row


def roll_back(by: Actor, bundle: str, number: int | None = None) -> Row:
    """Make an earlier version of a bundle live again, or the one that was live before. Returns it, with `previous_version`.

    NotFoundError if there is no such version; UsageError for the DAGs folder.
    """
    if bundle == bundles.DAGS_FOLDER:
        raise UsageError(f"{bundle!r} is the DAGs folder of the schedulers: put the earlier files there.")
    row = by.write(_roll_back, bundle, number, by=by)
    by.announce("bundle deployed")
    return row


def _deploy(connection: Connection, bundle: str, files: Mapping[str, BundleFile], *, by: Actor, message: str, origin: str) -> Row:
    known = reads.BUNDLES.first(connection, reads.BUNDLES.filters().equals("bundle_name", bundle))
    if known is not None and known["source"]:
        place = known["source"].get("title", "a source")
        raise ConflictError(f"Bundle {bundle!r} is read from {place}: change it there, or deploy to another bundle.")
    url = by.settings.bundles.code_url
    published = bundles.publish(connection, bundle, files, by=by.name, message=message, origin=origin, code_url=url)
    differences = {kind: list(getattr(published, kind)) for kind in reads.KINDS}
    row = _with_previous(connection, bundle, published.number) | {"is_new": published.is_new} | differences
    _record(connection, DEPLOY, row, by=by, extra={"message": message, "origin": origin}, changes={"files": differences})
    return row


def _roll_back(connection: Connection, bundle: str, number: int | None, *, by: Actor) -> Row:
    _, found = bundles.want(connection, bundle, number)
    row = _with_previous(connection, bundle, found)
    live = row["previous_version"]
    since = None if live is None else reads.version(connection, bundle, live)["id"]
    _record(connection, ROLL_BACK, row, by=by, changes=reads.changes(connection, row["id"], since))
    return row


def _with_previous(connection: Connection, bundle: str, number: int) -> Row:
    return reads.version(connection, bundle, number) | {"previous_version": reads.bundle(connection, bundle)["live_version"]}


def _record(
    connection: Connection,
    event: str,
    row: Row,
    *,
    by: Actor,
    extra: Mapping[str, Any] = {},
    changes: Mapping[str, Mapping[str, Sequence[str]]],
) -> None:
    """Record who did it, and the changes: how many files, and the names of the first ones and of the first DAGs."""
    names = ("bundle_name", "version_number", "previous_version", "digest")
    counts = {kind: len(paths) for kind, paths in changes["files"].items()}
    listed = {
        what: [f"{SIGNS[kind]} {name}" for kind, found in changes[what].items() for name in found][:MOST_RECORDED]
        for what in changes
    }
    by.record(connection, event, {name: row[name] for name in names} | dict(extra) | counts | listed)


def _check_texts(bundle: str, message: str, origin: str) -> None:
    if not NAME.fullmatch(bundle):
        raise UsageError(
            f"The name of a bundle has 1 to 100 letters, digits and _.- only, and begins with none of .-, not {bundle[:100]!r}."
        )
    for what, text in (("message", message), ("origin", origin)):
        if len(text) > LONGEST or "\0" in text:
            raise UsageError(f"The {what} of a deploy has at most {LONGEST:,} characters, and no NUL character: shorten it.")
