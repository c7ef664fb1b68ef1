"""A store of bundle versions in memory, for tests of what executes them."""

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from scheduler.dagfiles.bundle_cache import BundleCache, Entry


class Published:
    """Versions by ID, from 1, and what was read of them."""

    def __init__(
        self, *versions: Mapping[str, str | bytes], executable: Collection[str] = (), before_blobs: Callable[[], object] = bool
    ) -> None:
        """`before_blobs` is called before each answer with contents."""
        self.trees: dict[int, tuple[str, list[Entry]]] = {}
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
            entries.append((name, sha256, name in executable))
        version = len(self.trees) + 1
        self.trees[version] = hashlib.sha256(json.dumps([version, entries]).encode()).hexdigest(), entries
        return version

    def digest(self, version: int) -> str:
        return self.trees[version][0]

    def tree(self, version_id: int) -> tuple[str, list[Entry]]:
        return self.trees[version_id]

    def blobs(self, digests: Collection[str]) -> Iterator[tuple[str, bytes]]:
        self._before_blobs()
        for sha256 in digests:
            self.read.append(sha256)
            if sha256 in self.content:
                yield sha256, self.content[sha256]


def cache_of(published: Published, folder: Path, *, keep: int = 20) -> BundleCache:
    """The cache of one process."""
    return BundleCache(folder, published, keep=keep)


def files_in(folder: Path) -> dict[str, str]:
    """The files below a folder, without bytecode."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc" and os.access(path, os.R_OK)
    }
