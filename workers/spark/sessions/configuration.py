"""The configuration of a PySpark task: ours and its own in one, and which keys a session of a warm JVM can take."""

from collections.abc import Mapping

from scheduler.settings import Settings
from workers.spark import conf

SESSION_PREFIX = "spark.sql."
#: Keys of Spark SQL that are read once, by the context or what all sessions share; a test compares them to those of the JVM.
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


def merged(settings: Settings, own: Mapping[str, str]) -> dict[str, str]:
    """Ours for a small local Spark, overridden by the task's own keys."""
    found = {
        "spark.app.name": "paceline",
        "spark.master": "local[2]",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # What is kept of ended jobs: progress reads the newest, and a JVM that stays must not grow with what it has done.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "20",
    } | dict(own)
    if found["spark.master"].startswith("local"):
        return {**conf.LOOPBACK, **found}
    # Executors elsewhere may share our home, and not the folder of the JVM, which is the warehouse of a local master.
    return {"spark.sql.warehouse.dir": str(settings.home / "warehouse"), **found}


def split(own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The task's keys that only a new JVM can take, and those that a session takes."""
    session = {key: value for key, value in own.items() if takes_session(key)}
    return {key: value for key, value in own.items() if key not in session}, session


def takes_session(key: str) -> bool:
    return key.startswith(SESSION_PREFIX) and key not in STATIC and not key.startswith(STATIC_PREFIXES)
