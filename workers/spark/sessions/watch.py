"""The progress of a task in a warm JVM, from the status store of Spark's UI."""

import contextlib
import json
import time
from typing import Any

from workers.process import progress
from workers.process.progress import Look, Progress
from workers.spark.sessions.session_pool import WarmJvm

#: Milliseconds to wait for the events of the previous task, which the store counts a moment later.
EVENTS_MS = 1000
#: The states of a stage that does not change any more.
ENDED = ("COMPLETE", "FAILED")


def look(warm: WarmJvm, *, jobs: bool = False) -> Look:
    """The progress of all work that starts from now on, since a JVM runs one task at a time; with `jobs`, each job too.

    The store keeps only the newest stages (spark.ui.retainedStages), so those that it drops are added up here. It also drops some
    between two readings, of which only the number is known.
    """
    from py4j.protocol import Py4JJavaError

    since_ms = int(time.time() * 1000)
    mapper: list[Any] = []
    with contextlib.suppress(Py4JJavaError):  # a timeout: then a stage of the previous task may count
        warm.context.listenerBus().waitUntilEmpty(EVENTS_MS)
    completed_before = _completed(warm)
    ended: dict[tuple[int, int], dict[str, Any]] = {}
    dropped = Progress()

    def current() -> Progress | None:
        nonlocal dropped
        if not mapper:
            mapper.append(_mapper(warm))
        store = warm.context.statusStore()
        none = warm.jvm.gateway.new_array(warm.classes.double, 0)
        stages = json.loads(mapper[0].writeValueAsString(store.stageList(None, False, False, none, None)))
        stages = [stage for stage in stages if (stage["submissionTime"] or 0) >= since_ms]
        by_key = {(stage["stageId"], stage["attemptId"]): stage for stage in stages}
        dropped += progress.of_stages([ended.pop(key) for key in ended.keys() - by_key.keys()], [])
        ended.update((key, stage) for key, stage in by_key.items() if stage["status"] in ENDED)
        if not stages:
            return None
        executors = json.loads(mapper[0].writeValueAsString(store.executorList(False)))
        executors = [each for each in executors if each["isActive"] or (each.get("removeTime") or 0) >= since_ms]
        about: dict[str, Any] = {"application_id": warm.context.applicationId(), "ui_url": _ui_url(warm)}
        if jobs:
            ran = json.loads(mapper[0].writeValueAsString(store.jobsList(None)))
            about["jobs"] = progress.of_jobs([job for job in ran if (job["submissionTime"] or 0) >= since_ms])
        now = progress.of_stages(stages, executors, **about) + dropped
        unseen = max(_completed(warm) - completed_before - now.stages_done, 0)
        return now + Progress(stages=unseen, stages_done=unseen)

    return current


def _completed(warm: WarmJvm) -> int:
    """How many stages the application has completed."""
    return int(warm.context.statusStore().appSummary().numCompletedStages())


def _ui_url(warm: WarmJvm) -> str | None:
    url = warm.context.uiWebUrl()
    return str(url.get()) if url.isDefined() else None


def _mapper(warm: WarmJvm) -> Any:
    """A mapper of Scala objects to JSON, in the form of Spark's REST API."""
    jackson = warm.classes.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper()
    mapper.registerModule(getattr(getattr(jackson.module.scala, "DefaultScalaModule$"), "MODULE$"))
    return mapper
