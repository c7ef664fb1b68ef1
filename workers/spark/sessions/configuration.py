"""The configuration of a PySpark task: Paceline's defaults with its own keys, and the keys that a session can take."""

from collections.abc import Mapping

from paceline.exceptions import FailTask
from scheduler.settings import Settings
from workers.spark import conf

SESSION_PREFIX = "spark.sql."
#: The static keys of Spark SQL, which are read once for all sessions. A test compares them with those of the JVM.
STATIC = frozenset({
    "spark.sql.artifact.copyFromLocalToFs.allowDestLocal", "spark.sql.avro.schemaUrlAllowedSchemes",
    "spark.sql.broadcastExchange.maxThreadThreshold", "spark.sql.cache.serializer", "spark.sql.catalogImplementation",
    "spark.sql.catalog.spark_catalog.defaultDatabase",
    "spark.sql.codegen.cache.maxEntries", "spark.sql.codegen.comments", "spark.sql.connect.ui.retainedSessions",
    "spark.sql.connect.ui.retainedStatements", "spark.sql.debug", "spark.sql.defaultUrlStreamHandlerFactory.enabled",
    "spark.sql.event.truncate.length", "spark.sql.extensions", "spark.sql.extensions.test.loadFromCp",
    "spark.sql.filesourceTableRelationCacheSize", "spark.sql.globalTempDatabase",
    "spark.sql.hive.thriftServer.http.sniHostCheckEnabled", "spark.sql.hive.thriftServer.singleSession",
    "spark.sql.kafka.disallowedOptions", "spark.sql.legacy.hive.thriftServer.allowSettingSystemProperties",
    "spark.sql.legacy.sessionInitWithConfigDefaults", "spark.sql.metadataCacheTTLSeconds", "spark.sql.queryExecutionListeners",
    "spark.sql.reflect.allowList", "spark.sql.restrictedMode.enabled", "spark.sql.resultQueryStage.maxThreadThreshold",
    "spark.sql.shuffleExchange.maxThreadThreshold", "spark.sql.sources.disabledJdbcConnProviderList",
    "spark.sql.sources.schemaStringLengthThreshold", "spark.sql.streaming.streamingQueryListeners",
    "spark.sql.streaming.ui.enabled", "spark.sql.streaming.ui.enabledCustomMetricList",
    "spark.sql.streaming.ui.retainedProgressUpdates", "spark.sql.streaming.ui.retainedQueries",
    "spark.sql.subquery.maxThreadThreshold", "spark.sql.ui.retainedExecutions", "spark.sql.warehouse.dir",
})  # fmt: skip
STATIC_PREFIXES = ("spark.sql.hive.metastore.", "spark.sql.hive.version")


def check(own: Mapping[str, str]) -> None:
    """FailTask if a task with this conf cannot have a driver of its own, or if one of its files does not exist."""
    master = own.get("spark.master", "")
    for key, url in (("spark.remote", own.get("spark.remote")), ("spark.master", master if master.startswith("sc:") else None)):
        if url is not None:
            raise FailTask(
                f"The conf {key} cannot be {url!r}: a PySpark task has a driver of its own, and a Connect server has another one. "
                "Use SparkSubmitOperator with this master, or SparkSession.builder.remote() in a plain task."
            )
    for key in conf.FILES:
        conf.check_files(f"conf {key}", own.get(key, ""))


def merged(settings: Settings, own: Mapping[str, str]) -> dict[str, str]:
    """The defaults for a small local Spark, overridden by the keys of the task."""
    defaults = {
        "spark.app.name": "paceline",
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Limits on the data of ended jobs: only the newest are needed for the progress, and a warm JVM must not grow.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "20",
    }
    merged_conf = defaults | dict(own)
    if merged_conf["spark.master"].startswith("local"):
        return {**conf.LOOPBACK, **merged_conf}
    # A worker of UDFs on another machine cannot be ended between two tasks, and would keep the environment of the first one.
    return {"spark.python.worker.reuse": "false", **merged_conf}


def split(own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The keys of a task that need a new JVM, and those that a session can take."""
    session = {key: value for key, value in own.items() if takes_session(key)}
    return {key: value for key, value in own.items() if key not in session}, session


def takes_session(key: str) -> bool:
    return key.startswith(SESSION_PREFIX) and key not in STATIC and not key.startswith(STATIC_PREFIXES)
