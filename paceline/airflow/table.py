"""The table of Airflow's names: which of its modules hold which names, and where these names are in Paceline.

The import hook, `paceline migrate-airflow`, the advice in import errors and docs/reference/airflow-imports.md all read it
through names.py. It imports nothing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Modules of Airflow that hold the same names, and our modules in which these names are looked up in order."""

    modules: tuple[str, ...]
    places: tuple[str, ...]
    names: tuple[str, ...]


def _row(modules: str, places: str, names: str) -> Row:
    return Row(tuple(modules.split()), tuple(places.split()), tuple(names.split()))


ROWS = (
    # Names that DAG files import from Airflow 3.
    _row("airflow", "paceline paceline.exceptions", "DAG Asset Dataset XComArg AirflowException"),
    _row(
        "airflow.sdk",
        "paceline",
        """DAG dag task task_group setup teardown result asset chain chain_linear cross_downstream Label EdgeModifier TaskGroup
        BaseOperator BaseAsyncOperator BaseSensorOperator PokeReturnValue BaseBranchOperator BranchMixIn SkipMixin BaseHook
        BaseNotifier BaseOperatorLink BaseXCom XComArg Param ParamsDict Variable Connection Context get_current_context
        get_parsing_context TaskInstance TaskInstanceState DagRunState TriggerRule WeightRule conf macros literal lineage
        LoopDecision
        Asset AssetAlias AssetAll AssetAny AssetAccessControl AssetWatcher Metadata ObjectStoragePath NEVER_EXPIRE
        AssetOrTimeSchedule CronDataIntervalTimetable CronTriggerTimetable DeltaDataIntervalTimetable DeltaTriggerTimetable
        EventsTimetable MultipleCronTriggerTimetable CronPartitionTimetable PartitionedAssetTimetable PartitionedAtRuntime
        DeadlineAlert DeadlineReference BaseDeadlineReference deadline_reference AsyncCallback SyncCallback
        RetryPolicy RetryRule RetryAction RetryDecision ExceptionRetryPolicy ResumableJobMixin
        PartitionMapper IdentityMapper FixedKeyMapper AllowedKeyMapper ChainMapper ProductMapper FanOutMapper RollupMapper
        StartOfHourMapper StartOfDayMapper StartOfWeekMapper StartOfMonthMapper StartOfQuarterMapper StartOfYearMapper
        Window HourWindow DayWindow WeekWindow MonthWindow QuarterWindow YearWindow SegmentWindow WaitForAll MinimumCount""",
    ),
    _row("airflow.decorators airflow.sdk.definitions.decorators", "paceline", "dag task task_group setup teardown result"),
    _row("airflow.models.dag airflow.sdk.definitions.dag", "paceline", "DAG dag"),
    _row("airflow.models.baseoperator airflow.sdk.bases.operator", "paceline",
         "BaseOperator BaseAsyncOperator BaseOperatorLink chain chain_linear cross_downstream"),
    _row("airflow.models", "paceline paceline.authoring.context",
         "DAG BaseOperator BaseOperatorLink Connection DagRun Param SkipMixin TaskInstance Variable XCom XComArg DagBag DagModel"),
    _row("airflow.models.param airflow.sdk.definitions.param", "paceline", "Param ParamsDict DagParam"),
    _row("airflow.models.variable airflow.sdk.definitions.variable", "paceline", "Variable"),
    _row("airflow.models.connection airflow.sdk.definitions.connection", "paceline", "Connection"),
    _row("airflow.models.xcom_arg airflow.sdk.definitions.xcom_arg", "paceline", "XComArg"),
    _row("airflow.models.xcom airflow.sdk.bases.xcom airflow.sdk.execution_time.xcom",
         "paceline paceline.airflow.classic", "XCom BaseXCom XCOM_RETURN_KEY LazyXComAccess LazyXComSelectSequence"),
    _row("airflow.models.taskinstance airflow.sdk.types", "paceline paceline.authoring.context",
         "TaskInstance RuntimeTaskInstanceProtocol DagRunProtocol clear_task_instances"),
    _row("airflow.models.dagrun", "paceline paceline.authoring.context", "DagRun"),
    _row("airflow.models.mappedoperator airflow.sdk.definitions.mappedoperator", "paceline", "MappedOperator"),
    _row("airflow.models.baseoperatorlink airflow.sdk.bases.operatorlink", "paceline", "BaseOperatorLink"),
    _row("airflow.models.skipmixin airflow.sdk.bases.skipmixin airflow.providers.standard.utils.skipmixin", "paceline",
         "SkipMixin"),
    _row("airflow.providers.standard.exceptions", "paceline.exceptions",
         "AirflowException AirflowFailException AirflowSkipException"),
    _row("airflow.datasets airflow.assets airflow.models.asset airflow.sdk.definitions.asset", "paceline",
         "Asset AssetAlias AssetAll AssetAny AssetWatcher AssetAccessControl Dataset DatasetAlias DatasetAll DatasetAny"),
    _row("airflow.sdk.definitions.asset.decorators", "paceline", "asset"),
    _row("airflow.datasets.metadata airflow.sdk.definitions.asset.metadata", "paceline", "Metadata"),
    _row("airflow.utils.task_group airflow.sdk.definitions.taskgroup", "paceline", "TaskGroup"),
    _row("airflow.utils.edgemodifier airflow.sdk.definitions.edges", "paceline", "Label EdgeModifier"),
    _row("airflow.utils.helpers", "paceline paceline.airflow.providers",
         "chain cross_downstream exactly_one at_most_one merge_dicts prune_dict chunks"),
    _row("airflow.utils.trigger_rule", "paceline", "TriggerRule"),
    _row("airflow.utils.weight_rule", "paceline", "WeightRule"),
    _row("airflow.utils.state airflow.sdk.api.datamodels._generated", "paceline paceline.airflow.classic",
         "State TaskInstanceState DagRunState TriggerRule WeightRule"),
    _row("airflow.utils.types", "paceline.airflow.classic", "DagRunType NOTSET ArgNotSet"),
    _row("airflow.utils.context airflow.sdk.definitions.context", "paceline paceline.airflow.decorated",
         "Context context_merge get_current_context get_parsing_context"),
    _row("airflow.utils.dag_parsing_context", "paceline", "get_parsing_context"),
    _row("airflow.utils.template airflow.sdk.definitions.template", "paceline", "literal"),
    _row("airflow.sdk.execution_time.context", "paceline", "NEVER_EXPIRE context_to_airflow_vars"),
    _row("airflow.sdk.definitions.retry_policy", "paceline",
         "RetryPolicy RetryRule RetryAction RetryDecision ExceptionRetryPolicy ChainRetryPolicy"),
    _row("airflow.sdk.definitions.deadline", "paceline",
         "DeadlineAlert DeadlineReference BaseDeadlineReference deadline_reference"),
    _row("airflow.sdk.definitions.loop", "paceline", "LoopDecision"),
    _row("airflow.sdk.definitions.callback", "paceline", "AsyncCallback SyncCallback"),
    _row("airflow.configuration airflow.sdk.configuration", "paceline", "conf"),
    _row("airflow.io.path airflow.sdk.io airflow.sdk.io.path", "paceline", "ObjectStoragePath"),
    _row("airflow.hooks.base airflow.hooks.base_hook airflow.sdk.bases.hook", "paceline", "BaseHook"),
    _row("airflow.notifications.basenotifier airflow.sdk.bases.notifier", "paceline", "BaseNotifier"),
    _row("airflow.sdk.log airflow.utils.log.secrets_masker airflow.sdk.execution_time.secrets_masker", "paceline",
         "mask_secret redact"),
    _row("airflow.macros airflow.sdk.execution_time.macros", "paceline.authoring.macros",
         "datetime timedelta dateutil time uuid random json ds_add ds_format ds_format_locale datetime_diff_for_humans"),
    _row(
        "airflow.exceptions airflow.sdk.exceptions",
        "paceline.exceptions paceline.triggers",
        """AirflowException AirflowFailException AirflowSkipException AirflowTaskTimeout AirflowSensorTimeout
        AirflowNotFoundException AirflowConfigException AirflowBadRequest AirflowTaskTerminated AirflowRescheduleException
        AirflowTimetableInvalid AirflowDagCycleException AirflowOptionalProviderFeatureException AirflowInternalRuntimeError
        AirflowDagDuplicatedIdException AirflowDagInconsistent AirflowFileParseException AirflowUnsupportedFileTypeException
        AirflowClusterPolicyError AirflowClusterPolicyViolation AirflowClusterPolicySkipDag AirflowClearRunningTaskException
        AirflowWebServerTimeout DuplicateTaskIdFound
        ParamValidationError XComNotFound TaskDeferred TaskDeferralError TaskDeferralTimeout TaskNotFound DagNotFound
        AirflowInactiveAssetInInletOrOutletException DagRunTriggerException DownstreamTasksSkipped
        AirflowProviderDeprecationWarning RemovedInAirflow3Warning RemovedInAirflow4Warning AirflowRuntimeError
        AirflowSecretsBackendAccessDenied FailFastDagInvalidTriggerRule NodeNotFound TaskAlreadyInTaskGroup
        TaskAlreadyRunningError TaskAwaitingInput UnmappableXComTypePushed XComForMappingNotPushed""",
    ),
    # Helpers that have no other place here than this package.
    _row(
        "airflow.utils.timezone airflow.sdk.timezone airflow.sdk._shared.timezones.timezone",
        "paceline.airflow.timezone",
        """utc utcnow utc_epoch datetime parse parse_timezone make_aware make_naive is_localized is_naive convert_to_utc
        coerce_datetime local_timezone from_timestamp""",
    ),
    _row("airflow.settings", "paceline.airflow.timezone", "TIMEZONE Session engine"),
    _row("airflow.utils.dates", "paceline.airflow.classic", "days_ago parse_execution_date"),
    _row("airflow.utils.decorators", "paceline.airflow.classic", "apply_defaults"),
    _row("airflow.utils.weekday airflow.providers.standard.utils.weekday", "paceline.operators paceline.airflow.classic",
         "WeekDay"),
    _row("airflow.utils.log.logging_mixin airflow.sdk.definitions._internal.logging_mixin", "paceline paceline.airflow.classic",
         "LoggingMixin"),
    _row("airflow.utils.module_loading airflow.sdk.module_loading", "paceline.airflow.providers",
         "import_string iter_namespace qualname"),
    _row("airflow.lineage.hook airflow.sdk.lineage", "paceline.airflow.providers", "get_hook_lineage_collector"),
    _row("airflow.utils.email", "paceline.airflow.email", "send_email"),
    _row("airflow.utils.strings", "paceline.airflow.providers", "to_boolean"),
    _row("airflow.providers_manager", "paceline.airflow.providers", "ProvidersManager"),
    _row("airflow.version", "paceline.airflow.classic", "version"),
    # Operators.
    _row("airflow.operators.bash airflow.operators.bash_operator airflow.providers.standard.operators.bash",
         "paceline.operators", "BashOperator"),
    _row(
        "airflow.operators.python airflow.operators.python_operator airflow.providers.standard.operators.python",
        "paceline.operators",
        """PythonOperator BranchPythonOperator ShortCircuitOperator PythonVirtualenvOperator ExternalPythonOperator
        BranchPythonVirtualenvOperator BranchExternalPythonOperator get_current_context""",
    ),
    _row(
        """airflow.operators.empty airflow.operators.dummy airflow.operators.dummy_operator
        airflow.providers.standard.operators.empty""",
        "paceline.operators",
        "EmptyOperator DummyOperator",
    ),
    _row("airflow.operators.branch airflow.operators.branch_operator airflow.sdk.bases.branch"
         " airflow.providers.standard.operators.branch", "paceline.operators", "BaseBranchOperator BranchMixIn"),
    _row("airflow.operators.datetime airflow.providers.standard.operators.datetime", "paceline.operators",
         "BranchDateTimeOperator"),
    _row("airflow.operators.weekday airflow.providers.standard.operators.weekday", "paceline.operators",
         "BranchDayOfWeekOperator"),
    _row("airflow.operators.latest_only airflow.operators.latest_only_operator airflow.providers.standard.operators.latest_only",
         "paceline.operators", "LatestOnlyOperator"),
    _row("airflow.operators.trigger_dagrun airflow.operators.dagrun_operator airflow.providers.standard.operators.trigger_dagrun",
         "paceline.operators", "TriggerDagRunOperator TriggerDagRunLink"),
    _row("airflow.operators.email airflow.operators.email_operator", "paceline.airflow.email", "EmailOperator"),
    _row("airflow.operators.subdag airflow.operators.subdag_operator", "paceline.operators", "SubDagOperator"),
    _row("airflow.operators.smooth airflow.providers.standard.operators.smooth", "paceline.operators", "SmoothOperator"),
    _row("airflow.providers.standard.operators.hitl", "paceline.operators",
         "HITLOperator ApprovalOperator HITLBranchOperator HITLEntryOperator"),
    _row("airflow.providers.apache.spark.operators.spark_submit airflow.contrib.operators.spark_submit_operator",
         "paceline.operators", "SparkSubmitOperator"),
    _row("airflow.providers.apache.spark.operators.spark_sql airflow.contrib.operators.spark_sql_operator",
         "paceline.operators", "SparkSqlOperator"),
    _row("airflow.providers.apache.spark.operators.spark_jdbc", "paceline.operators", "SparkJDBCOperator"),
    _row("airflow.providers.apache.spark.operators.spark_pyspark", "paceline.operators", "SparkPySparkOperator"),
    _row("airflow.providers.apache.spark.operators.spark_pipelines", "paceline.operators", "SparkPipelinesOperator"),
    _row("airflow.providers.apache.spark.hooks.spark_submit", "paceline", "SparkSubmitHook"),
    _row("airflow.providers.apache.spark.hooks.spark_sql", "paceline", "SparkSqlHook"),
    # Sensors and triggers.
    _row("airflow.operators.sensors", "paceline.sensors",
         "BaseSensorOperator ExternalTaskSensor TimeSensor TimeDeltaSensor"),
    _row("airflow.sensors.base airflow.sensors.base_sensor_operator airflow.sdk.bases.sensor",
         "paceline.sensors paceline.airflow.providers",
         "BaseSensorOperator PokeReturnValue poke_mode_only"),
    _row("airflow.sensors.bash airflow.contrib.sensors.bash_sensor airflow.providers.standard.sensors.bash",
         "paceline.sensors", "BashSensor"),
    _row("airflow.sensors.python airflow.contrib.sensors.python_sensor airflow.providers.standard.sensors.python",
         "paceline.sensors", "PythonSensor"),
    _row("airflow.sensors.filesystem airflow.contrib.sensors.file_sensor airflow.providers.standard.sensors.filesystem",
         "paceline.sensors", "FileSensor"),
    _row("airflow.sensors.date_time airflow.providers.standard.sensors.date_time", "paceline.sensors paceline.airflow.classic",
         "DateTimeSensor DateTimeSensorAsync"),
    _row("airflow.sensors.time_sensor airflow.providers.standard.sensors.time", "paceline.sensors paceline.airflow.classic",
         "TimeSensor TimeSensorAsync"),
    _row("airflow.sensors.time_delta airflow.providers.standard.sensors.time_delta", "paceline.sensors paceline.airflow.classic",
         "TimeDeltaSensor TimeDeltaSensorAsync WaitSensor"),
    _row("airflow.sensors.weekday airflow.contrib.sensors.weekday_sensor airflow.providers.standard.sensors.weekday",
         "paceline.sensors", "DayOfWeekSensor"),
    _row("airflow.sensors.external_task airflow.sensors.external_task_sensor airflow.providers.standard.sensors.external_task",
         "paceline.sensors paceline.operators",
         "ExternalTaskSensor ExternalTaskMarker ExternalTaskSensorLink"),
    _row("airflow.triggers.base", "paceline.triggers", "BaseTrigger BaseEventTrigger TriggerEvent"),
    _row("airflow.triggers.temporal airflow.providers.standard.triggers.temporal", "paceline.triggers",
         "DateTimeTrigger TimeDeltaTrigger"),
    _row("airflow.triggers.file airflow.providers.standard.triggers.file", "paceline.triggers",
         "FileTrigger FileDeleteTrigger DirectoryFileDeleteTrigger"),
    _row("airflow.triggers.external_task airflow.providers.standard.triggers.external_task", "paceline.triggers",
         "WorkflowTrigger DagStateTrigger"),
    # Timetables.
    _row("airflow.timetables.trigger airflow.sdk.definitions.timetables.trigger", "paceline.timetables",
         "CronTriggerTimetable MultipleCronTriggerTimetable DeltaTriggerTimetable CronPartitionTimetable"),
    _row("airflow.timetables.interval airflow.sdk.definitions.timetables.interval", "paceline.timetables",
         "CronDataIntervalTimetable DeltaDataIntervalTimetable"),
    _row("airflow.timetables.events airflow.sdk.definitions.timetables.events", "paceline.timetables", "EventsTimetable"),
    _row("airflow.timetables.datasets airflow.timetables.assets airflow.sdk.definitions.timetables.assets", "paceline.timetables",
         "AssetOrTimeSchedule DatasetOrTimeSchedule PartitionedAssetTimetable PartitionedAtRuntime"),
    _row("airflow.timetables.base", "paceline.timetables", "Timetable DagRunInfo DataInterval TimeRestriction"),
    # Names that Paceline does not support; the reasons are below.
    _row("airflow.utils.session", "paceline", "provide_session create_session NEW_SESSION"),
    _row("airflow.decorators.base airflow.sdk.bases.decorator airflow.utils.operator_helpers", "paceline.airflow.decorated",
         "DecoratedOperator TaskDecorator task_decorator_factory determine_kwargs DecoratedMappedOperator get_unique_task_id"),
    _row("airflow.sdk.definitions._internal.types", "paceline.airflow.decorated paceline.airflow.classic",
         "SET_DURING_EXECUTION NOTSET ArgNotSet"),
    _row("airflow.stats", "paceline", "Stats"),
    _row("airflow.plugins_manager airflow.sdk.plugins_manager", "paceline", "AirflowPlugin"),
    _row("airflow.task.priority_strategy", "paceline", "PriorityWeightStrategy"),
    _row("airflow.models.dagbag airflow.dag_processing.dagbag", "paceline", "DagBag"),
)  # fmt: skip

#: Names that are different here, or that have two names in Airflow. The name itself is looked up first.
RENAMED = {
    "Dataset": "Asset",
    "DatasetAlias": "AssetAlias",
    "DatasetAll": "AssetAll",
    "DatasetAny": "AssetAny",
    "DatasetOrTimeSchedule": "AssetOrTimeSchedule",
    "DummyOperator": "EmptyOperator",
    "RuntimeTaskInstanceProtocol": "TaskInstance",
    "DagRunProtocol": "DagRun",
    "RemovedInAirflow3Warning": "RemovedInAirflow4Warning",
}

#: The modules of the variants of our classes that accept the arguments of Airflow 2. An unchanged file imports these.
UNCHANGED = dict.fromkeys(("DAG", "dag", "PythonOperator"), "paceline.airflow.classic")

_NO_DATABASE = "a task has no access to the database of Paceline; use the REST API, or Variable and ti.xcom_pull"
_OWN = "define what you need of it in a module of the DAGs folder"
_CLIENT = "or use the Python client of the service in a @task function"
_NO_USER_CODE = "schedulers never run user code"
#: Why a name is not supported, and what to use instead. It is read only if the name is not found here.
REASONS = {
    **dict.fromkeys(("provide_session", "create_session", "NEW_SESSION", "Session", "engine"), _NO_DATABASE),
    **dict.fromkeys(("XCom", "BaseXCom", "XCOM_RETURN_KEY"), "use ti.xcom_pull and ti.xcom_push"),
    **dict.fromkeys(
        ("Timetable", "DagRunInfo", "DataInterval", "TimeRestriction"),
        f"{_NO_USER_CODE}; use EventsTimetable with the dates, or several crons in MultipleCronTriggerTimetable",
    ),
    "PriorityWeightStrategy": f"{_NO_USER_CODE}; use priority_weight and one of the three values of weight_rule",
    "AirflowPlugin": "Paceline has no plugins; import classes and functions from modules of the DAGs folder",
    **dict.fromkeys(
        ("DecoratedMappedOperator", "get_unique_task_id"),
        "use task_decorator_factory, which maps tasks and finds free IDs",
    ),
    "Stats": "use a metrics client of your own",
    **dict.fromkeys(("DagModel", "clear_task_instances"), _NO_DATABASE),
    "DagBag": "load the files with `paceline dags list`, and test a DAG with `paceline dags test`",
    "SubDagOperator": "use TaskGroup",
    "DagParam": "declare the inputs of a run with params= of the DAG, and read them as {{ params.name }}",
    "MappedOperator": "a mapped task is an operator whose is_mapped is True",
    "ChainRetryPolicy": "write a RetryPolicy whose evaluate() asks the others in turn",
    "DagRunTriggerException": "use TriggerDagRunOperator",
    "TaskAwaitingInput": "use HITLOperator",
    "redact": "the log of a task is masked without it, and mask_secret() adds values to mask",
    "context_to_airflow_vars": "read the values from the context",
    "SmoothOperator": "use EmptyOperator",
    "SparkJDBCOperator": "use @task.pyspark with spark.read.jdbc",
    "SparkPySparkOperator": "use @task.pyspark",
    "SparkPipelinesOperator": "use SparkSubmitOperator",
    "SparkSubmitHook": "use SparkSubmitOperator",
    "SparkSqlHook": "use SparkSqlOperator",
    **dict.fromkeys(("TriggerDagRunLink", "ExternalTaskSensorLink"), "operators have no extra links"),
    **dict.fromkeys(("DagStateTrigger", "WorkflowTrigger"), "use ExternalTaskSensor with deferrable=True, or ExternalTrigger"),
    "ResumableJobMixin": "SparkSubmitOperator resumes by itself; other operators store their job in task_state_store",
    "EdgeModifier": "write Label",
    **dict.fromkeys(("deadline_reference", "BaseDeadlineReference"), "write one of DeadlineReference"),
    "result": "the result of a run is the XCom of its last task",
    "AssetAccessControl": "Paceline has no teams; the roles of web accounts limit who may change assets",
}

#: The same for modules and all that is below them; the longest prefix counts.
MODULE_REASONS: dict[str, str] = {
    "airflow": _OWN,
    "airflow.contrib": f"it was removed in Airflow 3; install the provider package that replaces it, {_CLIENT}",
    "airflow.api": "use TriggerDagRunOperator or the REST API",
    "airflow.utils.dag_cycle_tester": "a circle of tasks is an import error, which `paceline dags errors` shows",
    "airflow.plugins_manager": "Paceline has no plugins; import classes and functions from modules of the DAGs folder",
    "airflow.example_dags": "copy this module into the DAGs folder, and import it from there",
    "airflow.models": f"it is for the database of Airflow, and {_NO_DATABASE}",
    "airflow.providers": f"install its package next to Paceline with `pip install --no-deps {{}}`, {_CLIENT}",
    "airflow.providers.apache.spark": "use SparkSubmitOperator, SparkSqlOperator or @task.pyspark",
    "airflow.providers.standard": _OWN,
    "airflow.settings": _NO_DATABASE,
    "airflow.utils.db": _NO_DATABASE,
    "airflow.jobs": _NO_DATABASE,
    "airflow.www": "Paceline has its own pages, without plugins",
    "airflow.executors": "Celery workers are the only executor; queue= chooses them",
}

#: The provider packages of the services whose modules Airflow 1 had in airflow.contrib, airflow.hooks, airflow.operators and
#: airflow.sensors, such as airflow.hooks.postgres_hook.
SERVICES = {
    **dict.fromkeys(("bigquery", "dataflow", "dataproc", "gcs", "mlengine", "pubsub"), "google.cloud"),
    **dict.fromkeys(("athena", "ecs", "emr", "glue", "redshift", "s3", "sns", "sqs"), "amazon.aws"),
    **dict.fromkeys(("druid", "hdfs", "hive", "livy", "pig", "pinot", "sqoop"), "apache"),
    **dict.fromkeys((
        "databricks", "datadog", "docker", "ftp", "grpc", "http", "imap", "jdbc", "mongo", "mysql", "opsgenie", "oracle",
        "postgres", "presto", "redis", "segment", "sftp", "slack", "snowflake", "sqlite", "ssh", "vertica",
    ), ""),
    "mssql": "microsoft",
    "kubernetes": "cncf",
}  # fmt: skip
