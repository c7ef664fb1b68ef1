"""The DAG files of several bundle versions in one process. Each version sees its own modules, and all share the installed ones."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.load import are_below
from scheduler.dagfiles.loaded_files import LoadedFiles
from scheduler.settings import airflow_options

#: How many bundle versions a process keeps loaded.
MOST_LOADED = 10
#: Separates the modules that have come since a version was entered, so that leaving it examines no others.
MARK = "_paceline_version_"


class LoadedVersions:
    """The loaded DAG files of a long-lived process, by bundle version. None is the local DAGs folder as it stands.

    The modules of one version at a time are in sys.modules, and its folders on sys.path. A module that a function imports while
    it runs belongs to the version of that moment. The version that was used least recently is unloaded.

    Not thread-safe: switching changes sys.modules.
    """

    def __init__(
        self, folder: Path, cache: BundleCache | None = None, *, is_needed: Callable[[int], bool] = lambda version: False
    ) -> None:
        """`folder` is the local DAGs folder. Without `cache`, there are no bundle versions. A version that `is_needed` stays."""
        self._cache = cache
        self._is_needed = is_needed
        #: The version whose modules are importable now, and its files.
        self.version: int | None = None
        self.files = LoadedFiles(folder)
        self._current = _Version(folder, self.files)
        self._others: OrderedDict[int | None, _Version] = OrderedDict()

    def of(self, version: int | None) -> LoadedFiles:
        """The files of a bundle version, whose modules are importable until the next call. Errors as for BundleCache.path."""
        if version != self.version:
            self._switch(version)
        return self.files

    def _switch(self, version: int | None) -> None:
        following = self._others.get(version)
        if following is None:
            assert self._cache is not None and version is not None, "the store has bundle versions"
            folder = self._cache.path(version)
            beside = self._cache.beside(folder)
            following = _Version(folder, LoadedFiles(folder, is_fixed=True, beside=beside), beside=beside)
        else:
            del self._others[version]
        try:
            self._current.leave()
            following.enter()
        except BaseException:
            # The interruption of a task, which comes once. With half of the modules of a version, later tasks would fail.
            self._current.leave()
            following.enter()
            raise
        finally:
            self._others[self.version] = self._current
            self.version, self._current, self.files = version, following, following.files
            airflow_options.use(None if version is None else following.folder)
        waiting = [other for other in self._others if other is not None and not self._is_needed(other)]
        if waiting and len(waiting) + (version is not None) > MOST_LOADED:
            self._unload(waiting[0])

    def _unload(self, version: int) -> None:
        unloaded = self._others.pop(version)
        for place in [place for place in sys.path_importer_cache if unloaded.has(place)]:
            del sys.path_importer_cache[place]
        if self._cache is not None:
            self._cache.release(version)


@dataclass(slots=True)
class _Version:
    """The files of one version. While it is not the current one, its modules and its folders of sys.path are kept here."""

    folder: Path
    files: LoadedFiles
    modules: dict[str, ModuleType] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    #: As for LoadedFiles.
    beside: tuple[Path, Path] | None = None

    @property
    def root(self) -> Path:
        """The folder whose modules belong to it."""
        return self.folder if self.beside is None else self.beside[0]

    def has(self, place: str) -> bool:
        """Whether a path is its folder, or below it."""
        return place == str(self.root) or place.startswith(f"{self.root}/")

    def leave(self) -> None:
        """Take its modules out of sys.modules, and its folders out of sys.path. It may be repeated, as `enter` may."""
        names = list(sys.modules)
        # Names have the order in which they came.
        self.modules |= are_below(self.root, names[names.index(MARK) :] if MARK in sys.modules else names)
        for name in self.modules:
            sys.modules.pop(name, None)
        for name, module in self.modules.items():
            # `from package import name` looks here first.
            parent, _, own = name.rpartition(".")
            if getattr(sys.modules.get(parent), own, None) is module:
                delattr(sys.modules[parent], own)
        self.files.restore_path()
        self.path += [place for place in sys.path if self.has(place) and place not in self.path]
        sys.path[:] = [place for place in sys.path if not self.has(place)]

    def enter(self) -> None:
        """Undo `leave`."""
        sys.modules.pop(MARK, None)
        sys.modules[MARK] = ModuleType(MARK)
        sys.modules.update(self.modules)
        for name, module in self.modules.items():
            parent, _, own = name.rpartition(".")
            if parent in sys.modules and parent not in self.modules:
                setattr(sys.modules[parent], own, module)
        sys.path += [place for place in self.path if place not in sys.path]
        self.modules, self.path = {}, []
