"""The trace context that a task passes to programs, so that their traces and lineage join those of its try."""

import os
from typing import Any

from scheduler.process import trace_context
from scheduler.process.trace_context import TryNames
from scheduler.settings import Settings

#: The W3C trace context in the environment, where SDKs of OpenTelemetry look for it, and in Spark's properties.
ENVIRONMENT, PROPERTY = "TRACEPARENT", "spark.paceline.traceparent"


def enter(settings: Settings, ti: TryNames) -> None:
    """Set the trace context in the environment of user code. The guard removes it after the task."""
    os.environ[ENVIRONMENT] = trace_context.traceparent(settings.tracing.service_name, ti)


def for_spark(settings: Settings, ti: Any) -> dict[str, str]:
    """The properties with which Spark reports to the same collector and server, if they are set."""
    properties: dict[str, str] = {}
    if settings.tracing.otlp_endpoint:
        properties[PROPERTY] = trace_context.traceparent(settings.tracing.service_name, ti)
    if settings.lineage.url:
        properties |= _lineage(settings, ti)
    return properties


def for_executors(settings: Settings, ti: Any) -> dict[str, str]:
    """The same for an application of its own, whose executors and driver have the trace context in their environment too."""
    properties = for_spark(settings, ti)
    if PROPERTY in properties:
        properties |= {
            f"spark.executorEnv.{ENVIRONMENT}": properties[PROPERTY],
            f"spark.yarn.appMasterEnv.{ENVIRONMENT}": properties[PROPERTY],
        }
    return properties


def _lineage(settings: Settings, ti: Any) -> dict[str, str]:
    """The parent run and the transport of Spark's OpenLineage listener, which is a jar that users add."""
    config = settings.lineage
    own = trace_context.try_uuid(config.namespace, ti.run_key, ti.task_id, ti.map_index, ti.try_number)
    root = trace_context.run_uuid(config.namespace, ti.run_key, ti.dag_id, ti.run_id)
    properties = {
        "namespace": config.namespace,
        "parentJobNamespace": config.namespace,
        "parentJobName": f"{ti.dag_id}.{ti.task_id}",
        "parentRunId": own,
        "rootParentJobNamespace": config.namespace,
        "rootParentJobName": ti.dag_id,
        "rootParentRunId": root,
    }
    if config.url.startswith("file://"):
        properties |= {"transport.type": "file", "transport.location": config.url.removeprefix("file://")}
    else:
        properties |= {
            "transport.type": "http",
            "transport.url": config.url,
            "transport.endpoint": f"/{config.endpoint.lstrip('/')}",
        }
        if config.api_key:
            properties |= {"transport.auth.type": "api_key", "transport.auth.apiKey": config.api_key}
    return {f"spark.openlineage.{name}": value for name, value in properties.items()}
