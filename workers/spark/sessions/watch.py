"""The progress of a task in a warm JVM, from the status store of Spark's UI."""

import json
import time
from typing import Any

from workers.process import progress
from workers.process.progress import Look, Progress
from workers.spark.sessions.session_pool import WarmJvm


def look(warm: WarmJvm, *, jobs: bool = False) -> Look:
    """The progress of all work that starts from now on, since a JVM runs one task at a time; with `jobs`, each job too."""
    since_ms = int(time.time() * 1000)
    mapper: list[Any] = []

    def current() -> Progress | None:
        if not mapper:
            mapper.append(_mapper(warm))
        store = warm.context.statusStore()
        none = warm.jvm.gateway.new_array(warm.classes.double, 0)
        stages = json.loads(mapper[0].writeValueAsString(store.stageList(None, False, False, none, None)))
        stages = [stage for stage in stages if (stage["submissionTime"] or 0) >= since_ms]
        if not stages:
            return None
        executors = json.loads(mapper[0].writeValueAsString(store.executorList(False)))
        executors = [each for each in executors if each["isActive"] or (each.get("removeTime") or 0) >= since_ms]
        about: dict[str, Any] = {"application_id": warm.context.applicationId(), "ui_url": _ui_url(warm)}
        if jobs:
            ran = json.loads(mapper[0].writeValueAsString(store.jobsList(None)))
            about["jobs"] = progress.of_jobs([job for job in ran if (job["submissionTime"] or 0) >= since_ms])
        return progress.of_stages(stages, executors, **about)

    return current


def _ui_url(warm: WarmJvm) -> str | None:
    url = warm.context.uiWebUrl()
    return str(url.get()) if url.isDefined() else None


def _mapper(warm: WarmJvm) -> Any:
    """A mapper of Scala objects to JSON, in the form of Spark's REST API."""
    jackson = warm.classes.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper()
    mapper.registerModule(getattr(getattr(jackson.module.scala, "DefaultScalaModule$"), "MODULE$"))
    return mapper
