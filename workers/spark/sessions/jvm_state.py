"""The state that all sessions of a JVM share and a task can change: what is restored after each task, and what ends the JVM."""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from workers.spark.sessions.session_pool import WarmJvm
from workers.spark.sessions.shared_state import elements, end_idle_workers, field, java_values

#: Seconds in which a JVM must cancel the jobs of an ended task.
CANCEL_S = 4.0
PAUSE_S = 0.02
_CATALOG = "the tables, databases or functions of the catalog"
_PROPERTIES = "the system properties of Java"
#: The reason to end a JVM after a task that created a table by name.
CATALOG_CHANGED = f"a task changed {_CATALOG}"
IN_MEMORY = "org.apache.spark.sql.catalyst.catalog.InMemoryCatalog"


class State:
    """The shared state of a SparkContext before its first task, to which it is restored after each task.

    A task begins with this state, or gets another JVM. So it is read once. The objects of the JVM that have it are kept: each
    object that py4j returns costs a round trip, and another one to release it.
    """

    def __init__(self, warm: WarmJvm) -> None:
        self._warm = warm
        java, context, shared = warm.classes.java, warm.context, warm.session.sharedState()
        self._streams, self._cache = shared.activeStreamingQueries(), shared.cacheManager()
        self._persisted, self._global_views = context.persistentRdds(), shared.globalTempViewManager()
        self._tracker = context.statusTracker()
        self._listeners = self._listening()
        self._hadoop = context.hadoopConfiguration()
        self._hadoop_keys = self._hadoop.getPropsWithPrefix("")
        self._cached_file_systems = _cached_file_systems(warm)
        self._file_systems = java.util.HashSet(self._cached_file_systems)
        self._folders = [(file_system, file_system.getWorkingDirectory()) for file_system in elements(self._file_systems)]
        self._catalog = shared.externalCatalog().unwrapped()
        self._is_in_memory = self._catalog.getClass().getName() == IN_MEMORY
        self._conf = context.conf()
        # The maps of the context, and not copies, so that one call returns the text of all of them.
        self._added = java.util.ArrayList()
        for added in (context.addedFiles(), context.addedJars(), context.addedArchives()):
            self._added.add(added)
        self._files_folder = str(warm.classes.org.apache.spark.SparkFiles.getRootDirectory())
        self._lasting = self._read_lasting()
        self._lasting[_PROPERTIES] = self._lasting[_PROPERTIES].clone()

    def restore(self) -> None:
        """Restore the shared state; a JVM is unfit if some of it cannot be restored."""
        warm, context = self._warm, self._warm.context
        if not self._streams.isEmpty():
            for query in elements(java_values(self._streams)):
                query.stop()
        self._cache.clearCache()
        if self._persisted.nonEmpty():
            for persisted in list(warm.base.sparkContext._jsc.getPersistentRDDs().values()):
                persisted.unpersist(False)
        self._global_views.clear()
        self._remove_listeners()
        if context.getCheckpointDir().isDefined():
            context.setCheckpointDir(None)
        end_idle_workers(warm.python_factories)
        unfit = self._close_file_systems()
        self._restore_hadoop()
        _restore_python(warm, self._files_folder)
        warm.unfit = unfit or self._changed() or self._still_working() or warm.python.broken

    def _read_lasting(self) -> dict[str, Any]:
        """The state that cannot be restored, by its name."""
        java, security = self._warm.classes.java, self._warm.classes.org.apache.hadoop.security
        user = security.UserGroupInformation.getLoginUser()
        tokens = user.getCredentials()
        return {
            "the files and jars of its SparkContext": str(self._added.toString()),
            "the configuration that all sessions share": str(self._conf.toDebugString()),
            _CATALOG: self._names_in_memory(),
            _PROPERTIES: java.lang.System.getProperties(),
            "the time zone or locale of Java": [java.util.TimeZone.getDefault().getID(), java.util.Locale.getDefault().toString()],
            "the user of Hadoop": [
                java.lang.System.identityHashCode(user), str(user), tokens.numberOfTokens(), tokens.numberOfSecretKeys(),
            ],
        }  # fmt: skip

    def _changed(self) -> str | None:
        """The change of a task that cannot be restored; None if nothing."""
        now = self._read_lasting()
        for name, before in self._lasting.items():
            if not (now[name] == before):  # noqa: SIM201 - objects of Java define only this operator
                return f"a task changed {name}"
        return None

    def _still_working(self) -> str | None:
        """After their cancellation: the jobs and streams of the task that have not ended in time."""
        deadline = time.monotonic() + CANCEL_S
        while len(self._tracker.getActiveJobIds()) or not self._streams.isEmpty():
            if time.monotonic() > deadline:
                return f"it did not cancel the jobs of an ended task within {CANCEL_S:g} s"
            time.sleep(PAUSE_S)
        return None

    def _close_file_systems(self) -> str | None:
        """Close the file systems that were opened since: Hadoop would give them, with their credentials, to the next task.

        Executors in other JVMs keep theirs, so the application ends if credentials differ from those of all tasks.
        """
        warm = self._warm
        for file_system, folder in self._folders:
            file_system.setWorkingDirectory(folder)
        if self._file_systems.containsAll(self._cached_file_systems):
            return None
        opened = warm.classes.java.util.ArrayList(self._cached_file_systems)
        opened.removeAll(self._file_systems)
        private = None
        for file_system in elements(opened):
            if not warm.has_local_executors and not file_system.getConf().getPropsWithPrefix("fs.").equals(
                self._hadoop_of_file_systems()
            ):
                private = "executors may keep a file system with the configuration of one task"
            file_system.close()
        if not self._file_systems.containsAll(self._cached_file_systems):
            return "a file system that a task opened is still open"
        return private

    def _hadoop_of_file_systems(self) -> Any:
        maps = self._warm.classes.java.util.HashMap()
        for key in self._hadoop_keys:
            if key.startswith("fs."):
                maps.put(key.removeprefix("fs."), self._hadoop_keys[key])
        return maps

    def _restore_hadoop(self) -> None:
        """Restore the Hadoop configuration. The JVM compares it, since there are a thousand keys and each call is a round trip."""
        hadoop, before = self._hadoop, self._hadoop_keys
        now = hadoop.getPropsWithPrefix("")
        if now.equals(before):
            return
        maps = self._warm.classes.java.util.HashMap
        changed, gone = maps(now), maps(before)
        changed.entrySet().removeAll(before.entrySet())
        gone.keySet().removeAll(now.keySet())
        for key in [*changed.keySet(), *gone.keySet()]:
            value = before.get(key)
            hadoop.unset(key) if value is None else hadoop.set(key, value)

    def _listening(self) -> Any:
        """The listeners of the context in all event queues, as a set of Java that compares by identity."""
        java = self._warm.classes.java.util
        listeners = java.Collections.newSetFromMap(java.IdentityHashMap())
        listeners.addAll(self._warm.bus.listeners())
        return listeners

    def _remove_listeners(self) -> None:
        """Remove the listeners that were added since."""
        if self._listeners.containsAll(self._warm.bus.listeners()):
            return
        added = self._listening()
        added.removeAll(self._listeners)
        for listener in elements(added):
            self._warm.context.removeSparkListener(listener)

    def _names_in_memory(self) -> list[str]:
        """The names in a catalog in the memory of the JVM. A persistent catalog is shared by intention."""
        if not self._is_in_memory:
            return []
        catalog, names = self._catalog, []
        for database in catalog.listDatabases().mkString(",").split(","):
            names += [database, str(catalog.listTables(database)), str(catalog.listFunctions(database, "*"))]
        return names


def _cached_file_systems(warm: WarmJvm) -> Any:
    """The file systems in Hadoop's cache, now and later. It has no API that lists them."""
    cache = field(warm.classes, "org.apache.hadoop.fs.FileSystem", "CACHE").get(None)
    return java_values(field(warm.classes, "org.apache.hadoop.fs.FileSystem$Cache", "map").get(cache))


def _restore_python(warm: WarmJvm, files_folder: str) -> None:
    from pyspark import accumulators

    accumulators._accumulatorRegistry.clear()
    context = warm.base.sparkContext
    sys.path[:] = [path for path in sys.path if path == files_folder or not path.startswith(files_folder)]
    context._python_includes.clear()
    for left in os.scandir(context._temp_dir):
        with contextlib.suppress(OSError):
            shutil.rmtree(left.path) if left.is_dir(follow_symlinks=False) else Path(left.path).unlink()
