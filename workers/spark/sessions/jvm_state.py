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
#: The reason to end a JVM after a task that created a table by name.
CATALOG_CHANGED = f"a task changed {_CATALOG}"
IN_MEMORY = "org.apache.spark.sql.catalyst.catalog.InMemoryCatalog"


class State:
    """The shared state before a task."""

    def __init__(self, warm: WarmJvm) -> None:
        self._warm = warm
        context = warm.context
        self._listeners = self._listening()
        self._hadoop = context.hadoopConfiguration().getPropsWithPrefix("")
        self._file_systems = warm.classes.java.util.HashSet(_cached_file_systems(warm))
        self._folders = [(file_system, file_system.getWorkingDirectory()) for file_system in elements(self._file_systems)]
        self._lasting = self._read_lasting()

    def restore(self) -> None:
        """Restore the shared state; a JVM is unfit if some of it cannot be restored."""
        warm, context = self._warm, self._warm.context
        shared = warm.session.sharedState()
        for query in elements(java_values(shared.activeStreamingQueries())):
            query.stop()
        shared.cacheManager().clearCache()
        if context.persistentRdds().nonEmpty():
            for persisted in list(warm.base.sparkContext._jsc.getPersistentRDDs().values()):
                persisted.unpersist(False)
        shared.globalTempViewManager().clear()
        added = self._listening()
        added.removeAll(self._listeners)
        for listener in elements(added):
            context.removeSparkListener(listener)
        if context.getCheckpointDir().isDefined():
            context.setCheckpointDir(None)
        end_idle_workers(warm.classes, context)
        unfit = self._close_file_systems()
        self._restore_hadoop(context.hadoopConfiguration())
        _restore_python(warm)
        warm.unfit = unfit or self._changed() or self._still_working() or warm.python.broken

    def _read_lasting(self) -> dict[str, Any]:
        """The state that cannot be restored, by its name."""
        warm, context = self._warm, self._warm.context
        java, security = warm.classes.java, warm.classes.org.apache.hadoop.security
        user = security.UserGroupInformation.getLoginUser()
        tokens = user.getCredentials()
        return {
            "the files and jars of its SparkContext": [
                str(added.toString()) for added in (context.addedFiles(), context.addedJars(), context.addedArchives())
            ],
            "the configuration that all sessions share": context.conf().toDebugString(),
            _CATALOG: _catalog(warm),
            "the system properties of Java": java.lang.System.getProperties().clone(),
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
        tracker, shared = self._warm.context.statusTracker(), self._warm.session.sharedState()
        deadline = time.monotonic() + CANCEL_S
        while list(tracker.getActiveJobIds()) or shared.activeStreamingQueries().size():
            if time.monotonic() > deadline:
                return f"it did not cancel the jobs of an ended task within {CANCEL_S:g} s"
            time.sleep(PAUSE_S)
        return None

    def _close_file_systems(self) -> str | None:
        """Close the file systems that were opened since: Hadoop would give them, with their credentials, to the next task.

        Executors in other JVMs keep theirs, so the application ends if credentials differ from those of all tasks.
        """
        warm = self._warm
        opened = warm.classes.java.util.ArrayList(_cached_file_systems(warm))
        opened.removeAll(self._file_systems)
        private = None
        for file_system in elements(opened):
            if not warm.has_local_executors and not file_system.getConf().getPropsWithPrefix("fs.").equals(
                self._hadoop_of_file_systems()
            ):
                private = "executors may keep a file system with the configuration of one task"
            file_system.close()
        for file_system, folder in self._folders:
            file_system.setWorkingDirectory(folder)
        if not self._file_systems.containsAll(_cached_file_systems(warm)):
            return "a file system that a task opened is still open"
        return private

    def _hadoop_of_file_systems(self) -> Any:
        maps = self._warm.classes.java.util.HashMap()
        for key in self._hadoop:
            if key.startswith("fs."):
                maps.put(key.removeprefix("fs."), self._hadoop[key])
        return maps

    def _restore_hadoop(self, hadoop: Any) -> None:
        """Restore the Hadoop configuration. The JVM compares it, since there are a thousand keys and each call is a round trip."""
        now, before = hadoop.getPropsWithPrefix(""), self._hadoop
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
        listeners.addAll(self._warm.context.listenerBus().listeners())
        return listeners


def _cached_file_systems(warm: WarmJvm) -> Any:
    """The file systems in Hadoop's cache, which has no API that lists them."""
    cache = field(warm.classes, "org.apache.hadoop.fs.FileSystem", "CACHE").get(None)
    return java_values(field(warm.classes, "org.apache.hadoop.fs.FileSystem$Cache", "map").get(cache))


def _catalog(warm: WarmJvm) -> list[str]:
    """The names in a catalog in the memory of the JVM. A persistent catalog is shared by intention."""
    catalog = warm.session.sharedState().externalCatalog().unwrapped()
    if catalog.getClass().getName() != IN_MEMORY:
        return []
    names = []
    databases = catalog.listDatabases()
    for database in [databases.apply(number) for number in range(databases.size())]:
        names += [database, str(catalog.listTables(database)), str(catalog.listFunctions(database, "*"))]
    return names


def _restore_python(warm: WarmJvm) -> None:
    from pyspark import SparkFiles, accumulators

    accumulators._accumulatorRegistry.clear()
    context = warm.base.sparkContext
    root = SparkFiles.getRootDirectory()
    sys.path[:] = [path for path in sys.path if path == root or not path.startswith(root)]
    context._python_includes.clear()
    for left in os.scandir(context._temp_dir):
        with contextlib.suppress(OSError):
            shutil.rmtree(left.path) if left.is_dir(follow_symlinks=False) else Path(left.path).unlink()
