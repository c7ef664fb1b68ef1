"""The log levels of a JVM, which all of its sessions share."""

from typing import Any


class LogLevels:
    """The levels of all loggers, including the root, of a new JVM."""

    def __init__(self, classes: Any) -> None:
        self._classes = classes
        loggers = self._loggers()
        self._levels = classes.java.util.HashMap()
        for name in loggers.keySet():
            self._levels.put(name, loggers.get(name).getLevel())
        self._threshold = self._logging().sparkShellThresholdLevel()

    def restore(self) -> None:
        """Restore the levels that a task changed, and remove the loggers that it added."""
        log4j, known = self._classes.org.apache.logging.log4j, self._levels.keySet()
        if not self._loggers().keySet().equals(known):
            added = self._classes.java.util.HashSet(self._loggers().keySet())
            added.removeAll(known)
            for name in added:
                self._configuration().removeLogger(name)
            log4j.LogManager.getContext(False).updateLoggers()
        log4j.core.config.Configurator.setLevel(self._levels)
        # setLogLevel of a SparkContext removes the threshold of Spark's shells.
        getattr(self._logging(), "sparkShellThresholdLevel_$eq")(self._threshold)

    def _configuration(self) -> Any:
        return self._classes.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration()

    def _loggers(self) -> Any:
        return self._configuration().getLoggers()

    def _logging(self) -> Any:
        return getattr(getattr(self._classes.org.apache.spark.internal, "Logging$"), "MODULE$")
