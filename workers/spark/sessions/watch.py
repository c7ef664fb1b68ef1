"""What the jobs of a task in a warm JVM have done so far, from the store that Spark's own page reads."""

import json
import time
from typing import Any

from workers import progress
from workers.progress import Look, Progress
from workers.spark.sessions.session_pool import Warm


def look(warm: Warm) -> Look:
    """Of all jobs that begin from now on: a JVM runs one task at a time, whatever threads that makes."""
    since_ms = int(time.time() * 1000)
    mapper: list[Any] = []

    def found() -> Progress | None:
        if not mapper:
            mapper.append(_mapper(warm))
        store = warm.context.statusStore()
        none = warm.jvm.gateway.new_array(warm.classes.double, 0)
        stages = json.loads(mapper[0].writeValueAsString(store.stageList(None, False, False, none, None)))
        stages = [one for one in stages if (one["submissionTime"] or 0) >= since_ms]
        if not stages:
            return None
        executors = json.loads(mapper[0].writeValueAsString(store.executorList(False)))
        executors = [one for one in executors if one["isActive"] or (one.get("removeTime") or 0) >= since_ms]
        return progress.of_stages(stages, executors, application_id=warm.context.applicationId(), ui_url=_ui_url(warm))

    return found


def _ui_url(warm: Warm) -> str | None:
    url = warm.context.uiWebUrl()
    return str(url.get()) if url.isDefined() else None


def _mapper(warm: Warm) -> Any:
    """Writes what Scala gives as JSON, in the form of Spark's REST API."""
    jackson = warm.classes.com.fasterxml.jackson
    made = jackson.databind.ObjectMapper()
    made.registerModule(getattr(getattr(jackson.module.scala, "DefaultScalaModule$"), "MODULE$"))
    return made
