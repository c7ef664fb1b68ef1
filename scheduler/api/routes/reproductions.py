"""Reproductions: run a run again on the state of the tables that it has read, and compare what both have written."""

from typing import Any

from scheduler.actions import runs as actions
from scheduler.api.access import OPERATOR_OF_DAG, RUN, VIEWER_OF_DAG
from scheduler.api.call import Api, Call, new_router
from scheduler.api.models import dag_runs as models
from scheduler.store.read import runs
from scheduler.store.tables import scratch
from scheduler.store.tables.scratch import Reproduced

router = new_router(tags=["Paceline"])


@router.post(
    f"{RUN}/reproductions",
    OPERATOR_OF_DAG,
    only_reads="dry_run",
    event=actions.REPRODUCE,
    response_model=models.ReproductionPlan | models.DagRun,
)
def reproduce_dag_run(api: Api, dag_id: str, dag_run_id: str, body: models.ReproductionBody) -> dict[str, Any]:
    """Run an ended run again with the same code, on the same state of its tables, into a namespace that nobody else uses.

    A dry run says with which version, and which tasks do more than write tables. GET has the comparison when the new run has ended.
    """
    created = actions.reproduce(
        api.actor,
        dag_id,
        dag_run_id,
        keep=body.keep,
        despite_effects=body.despite_effects,
        ignored=body.ignore,
        dry_run=body.dry_run,
    )
    if body.dry_run:
        return {"version_number": created.version_number, "moved": created.moves > 0, "effects": created.effects}
    return api.read(runs.run, dag_id, created.run_id)


@router.get(f"{RUN}/reproductions", VIEWER_OF_DAG, response_model=models.Reproductions)
def get_reproductions(api: Api, dag_id: str, dag_run_id: str) -> dict[str, Any]:
    """Show the newest 50 reproductions of a run, each with its comparison; of a reproduction, itself.

    The tables of an ended reproduction are compared beside the first request, or by a scheduler, which may take some time: its
    verdict is `comparing` until then. Then the result is stored.
    """
    row = api.read(runs.run, dag_id, dag_run_id)
    return {"reproductions": [_compared(api, one) for one in api.read(scratch.reproductions, row["id"])]}


def _compared(api: Call, one: Reproduced) -> dict[str, Any]:
    verdict, reason = _verdict(api, one)
    names = ("dag_id", "run_id", "state", "started_at", "ended_at", "original_run_id", "original_state", "keep", "ignored")
    found = one.verdict or {"tables": [], "inputs": []}
    return {name: getattr(one, name) for name in names} | {
        "namespace": one.scratch if one.has_tables else None, "verdict": verdict, "reason": reason,
        "tables": found["tables"], "inputs": found["inputs"],
    }  # fmt: skip


def _verdict(api: Call, one: Reproduced) -> tuple[str, str | None]:
    """The result in one word, and why there is none."""
    if one.result is not None:
        return one.result, None
    reason = one.why_none
    if reason is None and not api.settings.tables.warehouse:
        reason = "This web process has no tables: set tables.warehouse."
    reason = reason or api.service.comparisons.ask(one)
    return ("comparing", None) if reason is None else ("unknown", reason)
