"""YARN: applications are submitted with spark-submit, and read over the REST API of the resource manager, or with `yarn`."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from workers.spark.clusters import protocol
from workers.spark.clusters.command import Submission
from workers.spark.clusters.protocol import Cluster, ClusterUnreachableError, Ids, Password, Phase, Run, Status

#: The heading of a list of applications.
_LIST_HEAD = re.compile(r"^Total number of applications\b", re.MULTILINE)
_UNKNOWN_ID = re.compile(r"Application with id '[^']*' doesn't exist")
_ID = re.compile(r"\bapplication_\d+_\d+\b")
_SUBMITTED = re.compile(r"(?:Submitted application|Submitting application|Application report for) (application_\d+_\d+)")
#: The phases of states except FINISHED, for which the final state decides.
STATES = {
    **dict.fromkeys(("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"), Phase.SUBMITTED),
    **dict.fromkeys(("RUNNING", "FINISHING", "KILLING"), Phase.RUNNING),
    "FAILED": Phase.FAILED,
    "KILLED": Phase.KILLED,
}
FINAL_STATES = {"SUCCEEDED": Phase.FINISHED, "FAILED": Phase.FAILED, "KILLED": Phase.KILLED}


class Yarn(Cluster):
    """A YARN cluster. `reach` may have the keys `resourcemanager` (http://host:8088) and `yarn` (the command)."""

    masters = re.compile(r"yarn")
    example = "yarn"
    driver_environment = "spark.yarn.appMasterEnv."

    def __init__(self, address: str, reach: Mapping[str, str], deploy_mode: str, password: Password) -> None:
        self._rest = reach.get("resourcemanager", "").rstrip("/")
        self._command = reach.get("yarn", "yarn")

    def tagged(self, submission: Submission) -> Submission:
        """Add the queue, and the tag to the YARN tags. In cluster mode, spark-submit exits once the application is accepted."""
        given = submission.conf.get("spark.yarn.tags")
        more = {"spark.yarn.queue": submission.yarn_queue} if submission.yarn_queue else {}
        more["spark.yarn.tags"] = f"{given},{submission.tag}" if given else submission.tag
        if submission.target.is_cluster_mode:
            more["spark.yarn.submit.waitAppCompletion"] = "false"
        return submission.with_conf(more)

    def submit(self, submission: Submission, run: Run) -> Ids:
        return submitted(run(submission))

    def find(self, tag: str, since: datetime) -> Ids | None:
        if self._rest:
            return found(protocol.ask_object(f"{self._rest}/ws/v1/cluster/apps?applicationTags={tag}"))
        return listed(self._call("application", "-list", "-appStates", "ALL", "-appTags", tag))

    def status(self, ids: Ids, tag: str) -> Status:
        if ids.application_id is None:
            return Status(Phase.UNKNOWN, "its application ID is not known", ids)
        if self._rest:
            return of_answer(protocol.ask_object(f"{self._rest}/ws/v1/cluster/apps/{ids.application_id}"))
        return of_report(self._call("application", "-status", ids.application_id))

    def kill(self, ids: Ids) -> None:
        if ids.application_id is None:
            return
        if self._rest:
            url = f"{self._rest}/ws/v1/cluster/apps/{ids.application_id}/state"
            protocol.text(url, body={"state": "KILLED"}, method="PUT")
        else:
            self._call("application", "-kill", ids.application_id)

    def _call(self, *arguments: str) -> str:
        shown = f"`{self._command} {' '.join(arguments)}`"
        done = protocol.run([self._command, *arguments], shown)
        if done.returncode != 0 and not _ID.search(done.stdout):
            raise ClusterUnreachableError(f"{shown} failed: {(done.stderr or done.stdout)[-300:].strip()}")
        return done.stdout


# Pure: the interpretation of answers ---------------------------------------------------------------------------------


def submitted(output: str) -> Ids:
    """The application ID in the output of spark-submit; none if its log level is too high."""
    match = _SUBMITTED.search(output)
    return Ids() if match is None else Ids(application_id=match[1], ui_url=_tracking(output))


def of_answer(answer: Mapping[str, Any]) -> Status:
    """The status in an answer of /ws/v1/cluster/apps/<id>."""
    app = answer.get("app")
    if not isinstance(app, Mapping):
        fault = answer.get("RemoteException")
        text, kind = (fault.get("message"), fault.get("exception")) if isinstance(fault, Mapping) else (answer, None)
        phase = Phase.NOT_FOUND if kind == "NotFoundException" else Phase.UNKNOWN
        return Status(phase, f"the resource manager answered {str(text)[:200]!r}")
    ids = Ids(application_id=str(app["id"]), ui_url=app.get("trackingUrl") or None)
    return _status(str(app.get("state", "")), str(app.get("finalStatus", "")), str(app.get("diagnostics", "")), ids)


def of_report(report: str) -> Status:
    """The status in the output of `yarn application -status`, which has lines `Name : value`."""
    if unknown := _UNKNOWN_ID.search(report):
        return Status(Phase.NOT_FOUND, f"yarn reports {unknown[0]!r}")
    fields = {
        name.strip(): value.strip() for line in report.splitlines() for name, colon, value in [line.partition(" : ")] if colon
    }
    ids = Ids(application_id=fields.get("Application-Id"), ui_url=fields.get("Tracking-URL"))
    return _status(fields.get("State", ""), fields.get("Final-State", ""), fields.get("Diagnostics", ""), ids)


def found(answer: Mapping[str, Any]) -> Ids | None:
    """The newest application in an answer of /ws/v1/cluster/apps; ClusterUnreachableError if it is not a list."""
    if "apps" not in answer:
        raise ClusterUnreachableError(f"the resource manager did not answer with a list of applications but {str(answer)[:200]!r}")
    apps = (answer.get("apps") or {}).get("app") or []
    newest = max(apps, key=lambda app: app.get("startedTime", 0), default=None)
    return None if newest is None else Ids(application_id=str(newest["id"]), ui_url=newest.get("trackingUrl") or None)


def listed(output: str) -> Ids | None:
    """The last application in the output of `yarn application -list`; ClusterUnreachableError if it is not a list."""
    if not _LIST_HEAD.search(output):
        raise ClusterUnreachableError(f"yarn did not print a list of applications but {output[-300:].strip()!r}")
    application_ids = _ID.findall(output)
    return Ids(application_id=application_ids[-1]) if application_ids else None


def _status(state: str, final: str, diagnostics: str, ids: Ids) -> Status:
    detail = f"application {state}" + (f", final state {final}" if final not in {"", "UNDEFINED"} else "")
    if diagnostics.strip() not in {"", "N/A"}:
        detail += f": {diagnostics.strip()[:500]}"
    phase = FINAL_STATES.get(final, Phase.UNKNOWN) if state == "FINISHED" else STATES.get(state, Phase.UNKNOWN)
    return Status(phase, detail if state else "the report has no state", ids)


def _tracking(output: str) -> str | None:
    match = re.search(r"tracking URL: (\S+)", output)
    return match[1] if match else None
