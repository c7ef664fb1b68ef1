"""A scheduler that parses bundle versions without a parser: a DAG file `a.py` has the DAG `a`, and one with "broken" an error."""

from sqlalchemy import Connection, Engine

from scheduler.store.dags import blobs, bundle_versions, bundles
from scheduler.store.dags.bundle_versions import Live, ParsedBundleFile
from scheduler.store.dags.current import ParsedDag
from scheduler.store.dags.import_errors import Problem
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader

from .scenario import dag

#: A DAG file that `parse_next` accepts, and one that it refuses.
GOOD, BROKEN = b"DAG\n", b"DAG\nbroken\n"


def parse_next(engine: Engine) -> Live | None:
    """Parse the next wanted version as a scheduler does; None if there is none."""
    return transact(engine, _parse_next)


def _parse_next(connection: Connection) -> Live | None:
    claimed = bundle_versions.claim(connection, claimed_by="s#1", lease_s=60)
    if claimed is None:
        return None
    if claimed.is_parsed:
        return bundle_versions.go_live(connection, claimed.id)
    reader = EngineReader(connection)
    entries = [entry for entry in bundles.tree(reader, claimed.id) if entry.path.endswith(".py")]
    contents = dict(blobs.unpacked(blobs.packed(reader, {entry.digest for entry in entries}), None))
    files = [
        ParsedBundleFile(
            path=entry.path,
            dags=() if b"broken" in contents[entry.digest] else (_dag(entry.path),),
            problem=Problem.make("NameError: broken", line=2) if b"broken" in contents[entry.digest] else None,
        )
        for entry in entries
        if b"DAG" in contents[entry.digest]
    ]
    return bundle_versions.record(connection, claimed.id, files, claimed_by="s#1")


def _dag(path: str) -> ParsedDag:
    made = dag(path.removesuffix(".py").replace("/", "."), {"task": []}, file=path)
    return ParsedDag(dag_id=made.dag_id, content_hash=made.content_hash, data=made.to_json())
