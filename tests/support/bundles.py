"""Bundle versions: a store in memory, and deploys to the database of a scenario."""

import hashlib
import multiprocessing
import os
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.fork_server import Work, parse
from scheduler.dagfiles.load import are_below
from scheduler.settings import Settings
from scheduler.store.dags import bundle_versions, bundles
from scheduler.store.dags.bundle_versions import ParsedBundleFile
from scheduler.store.dags.bundles import BundleFile, Entry, digest_of
from scheduler.store.dags.current import ParsedDag
from scheduler.store.db.database import transact
from support import folders

if TYPE_CHECKING:
    from support.scenario import Scenario


class Published:
    """Versions by ID, from 1, and what was read of them."""

    def __init__(
        self, *versions: Mapping[str, str | bytes], executable: Collection[str] = (), before_blobs: Callable[[], object] = bool,
        bundle: str = "sales",
    ) -> None:  # fmt: skip
        """`before_blobs` is called before each answer with contents."""
        self.bundle = bundle
        self.trees: list[list[Entry]] = []
        self.content: dict[str, bytes] = {}
        self.read: list[str] = []
        self._before_blobs = before_blobs
        for files in versions:
            self.publish(files, executable)

    def publish(self, files: Mapping[str, str | bytes], executable: Collection[str] = ()) -> int:
        """Store a version, and return its ID."""
        entries = []
        for name, text in files.items():
            content = text if isinstance(text, bytes) else text.encode()
            sha256 = hashlib.sha256(content).hexdigest()
            self.content[sha256] = content
            entries.append(Entry(name, sha256, name in executable))
        self.trees.append(entries)
        return len(self.trees)

    def identity(self, version_id: int) -> bundles.Identity:
        return bundles.Identity(self.bundle, self.digest(version_id))

    def digest(self, version_id: int) -> str:
        return digest_of(self.tree(version_id))

    def tree(self, version_id: int) -> list[Entry]:
        return self.trees[version_id - 1]

    def blobs(self, digests: Collection[str]) -> Iterator[tuple[str, bytes]]:
        self._before_blobs()
        for sha256 in digests:
            self.read.append(sha256)
            if sha256 in self.content:
                yield sha256, self.content[sha256]


def cache_of(published: Published, folder: Path, *, keep: int = 20, dags_folder: Path | None = None) -> BundleCache:
    """The cache of one process."""
    return BundleCache(folder, published, keep=keep, dags_folder=dags_folder)


def versions_in(folder: Path) -> set[str]:
    """The names of all that is in the folder of a cache, without lock files."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def files_in(folder: Path) -> dict[str, str]:
    """The files below a folder, without bytecode."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc" and os.access(path, os.R_OK)
    }


def deploy(scenario: "Scenario", files: Mapping[str, str], bundle: str = "sales") -> int:
    """Publish a folder as a bundle version, parse its files, and make it live. Returns its ID."""
    contents = {path: BundleFile(textwrap.dedent(text).encode()) for path, text in files.items()}
    published = transact(scenario.engine, bundles.publish, bundle, contents, by="ada")
    claimed = transact(scenario.engine, bundle_versions.claim, claimed_by="s#1", lease_s=60)
    assert claimed is not None
    if claimed.is_parsed:
        live = transact(scenario.engine, bundle_versions.go_live, claimed.id)
    else:
        names = [path for path, text in files.items() if path.endswith(".py") and "DAG(" in text]
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found = pool.apply(_parsed, (scenario.settings, contents, names))
        parsed = [ParsedBundleFile(path=name, dags=tuple(ParsedDag(**dag) for dag in dags)) for name, dags in found.items()]
        live = transact(scenario.engine, bundle_versions.record, claimed.id, parsed, claimed_by="s#1")
    assert live.is_live, live.problems
    return published.id


def _parsed(settings: Settings, contents: Mapping[str, BundleFile], names: Collection[str]) -> dict[str, list[dict[str, str]]]:
    """The rows of the DAGs of each file, as a parser's child returns them."""
    for name in are_below(settings.bundles_folder):  # of a waiter in this process
        del sys.modules[name]
    with folders.short_folder() as folder:
        for path, file in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(file.content)
        work = Work(folder, settings.core, settings.scheduler)
        return {name: [_row(row) for row in parse(name, work)["dags"]] for name in names}


def _row(row: Mapping[str, str]) -> dict[str, str]:
    return {name: row[name] for name in ("dag_id", "content_hash", "data")}
