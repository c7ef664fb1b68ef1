"""The page of the audit log has a sentence for each request and each command that changes something."""

import re
from pathlib import Path

from fastapi.routing import APIRoute

from scheduler.api import access
from scheduler.api.login import SAFE
from scheduler.api.routes import ROUTERS, installation

ROOT = Path(__file__).parents[3]
#: The page tells by the body of such a request what it changed.
BY_BODY = {
    "patch_dag": {"pause", "unpause"},
    "patch_dag_run": {"mark_success", "mark_failed", "mark_queued", "note_run"},
    "patch_task_instance": {"note_task"},
}


def test_each_change_has_a_sentence_on_the_page_of_the_audit_log() -> None:
    requests = {
        route.name
        for router in ROUTERS
        if router is not installation.unsupported
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in (route.methods or set()) - SAFE
        if access.TABLE[f"{method} {route.path.removeprefix('/api/v2')}"].only_reads is not True
    }
    commands = {
        event
        for path in (*ROOT.glob("scheduler/actions/*.py"), *ROOT.glob("scheduler/catalog/*.py"))
        for event in re.findall(r'(?<!point\()"((?:bundles|runs|tables|users)\.[a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    table = re.search(
        r"\n    done: \{(.*?)\n    \} as Record", (ROOT / "web/src/strings.ts").read_text(encoding="utf-8"), re.DOTALL
    )
    assert table is not None
    sentences = set(re.findall(r"'?([\w.]+)'?: \['", table[1]))

    assert len(requests) > 50 and len(commands) > 5
    assert (requests | commands | set().union(*BY_BODY.values())) - sentences == set()
    assert sentences - requests - commands - set().union(*BY_BODY.values()) == {"login", "login_failed", "log_out", "create_token"}
