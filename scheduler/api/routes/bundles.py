"""Bundles: upload a version, roll back, and read versions with their files."""

import io
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Annotated, Any, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from fastapi import Header, Path, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import TypeAdapter

from paceline.exceptions import NotFoundError
from scheduler.actions import bundles as actions
from scheduler.api.access import OPERATOR_OF_BUNDLE, VIEWER, VIEWER_OF_BUNDLE
from scheduler.api.call import Api, Call, new_router
from scheduler.api.errors import documented
from scheduler.api.models import bundles as models
from scheduler.api.params import Page
from scheduler.dagfiles.bundle_cache import StoredContents
from scheduler.dagfiles.bundle_files import read_archive, write_archive
from scheduler.dagfiles.plan import DAYS, StoredPlan, stored_plan
from scheduler.store.read import bundles as reads
from scheduler.store.read import plan as read_plan
from scheduler.store.read.listing import Row

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

router = new_router(prefix="/bundles", tags=["Bundle"])

#: Bytes of a text.
LONGEST_TEXT = 1 << 20
#: Bytes of an upload that stay in memory.
SMALL_UPLOAD = 1 << 20
ARCHIVE = {"type": "string", "format": "binary"}
FACTS = TypeAdapter(read_plan.PlanFacts)
STORED_PLAN = TypeAdapter(StoredPlan)
Number = Annotated[int, Path(ge=1, le=2**31 - 1)]
Other = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
Text = Annotated[str, Query(max_length=actions.LONGEST)]
#: Archives are read and written one after the other, since each may take all bytes that a bundle may have.
_one_at_a_time: RunVar[anyio.CapacityLimiter] = RunVar("reading of archives")


@router.get("", VIEWER, response_model=models.BundlePage)
def get_bundles(api: Api, page: Page) -> dict[str, Any]:
    """List bundles."""
    return api.page("bundles", reads.BUNDLES, reads.BUNDLES.filters(), page)


@router.get("/{bundle_name}", VIEWER_OF_BUNDLE, response_model=models.Bundle)
def get_bundle(api: Api, bundle_name: str) -> dict[str, Any]:
    """Show a bundle."""
    return api.read(reads.bundle, bundle_name)


@router.get("/{bundle_name}/versions", VIEWER_OF_BUNDLE, response_model=models.BundleVersionPage)
def get_bundle_versions(api: Api, bundle_name: str, page: Page) -> dict[str, Any]:
    """List the versions of a bundle, newest first."""
    api.read(reads.bundle, bundle_name)
    return api.page("bundle_versions", reads.VERSIONS, reads.VERSIONS.filters().equals("bundle_name", bundle_name), page)


@router.post(
    "/{bundle_name}/versions",
    OPERATOR_OF_BUNDLE,
    event=actions.DEPLOY,
    response_model=models.Deployed,
    responses=documented({413: "The bundle has too many files or bytes."}),
    openapi_extra={"requestBody": {"required": True, "content": {"application/gzip": {"schema": ARCHIVE}}}},
)
async def deploy_bundle(request: Request, api: Api, bundle_name: str, message: Text = "", origin: Text = "") -> Row:
    """Deploy a version of a bundle: the body is a tar.gz archive of its folder.

    A scheduler parses the version, and makes it live if none of its DAG files has an error. Content that the bundle had before is
    that version again.
    """
    with tempfile.SpooledTemporaryFile(SMALL_UPLOAD) as packed:
        async for part in request.stream():
            packed.write(part)
        packed.seek(0)
        return await _alone(_deploy, api, bundle_name, packed, message, origin)


async def _alone(work: Callable[[*Ts], R], *args: *Ts) -> R:
    limiter = _one_at_a_time.get(None)
    if limiter is None:
        _one_at_a_time.set(limiter := anyio.CapacityLimiter(1))
    return await anyio.to_thread.run_sync(work, *args, limiter=limiter)


def _deploy(api: Call, bundle_name: str, packed: IO[bytes], message: str, origin: str) -> Row:
    files = read_archive(packed, api.settings.bundles)
    return actions.deploy(api.actor, bundle_name, files, message=message, origin=origin)


@router.post("/{bundle_name}/rollback", OPERATOR_OF_BUNDLE, event=actions.ROLL_BACK, response_model=models.Deployed)
def roll_back_bundle(api: Api, bundle_name: str, body: models.Rollback) -> Row:
    """Make an earlier version of a bundle live again, or the one that was live before."""
    return actions.roll_back(api.actor, bundle_name, body.version_number)


@router.post("/{bundle_name}/plan", OPERATOR_OF_BUNDLE, only_reads=True, response_model=read_plan.PlanFacts)
def get_plan_facts(api: Api, bundle_name: str, body: models.PlanNames) -> Response:
    """Show what `paceline plan` compares a folder with that has these names. Nothing is stored."""
    facts = api.read(read_plan.facts, api.settings, bundle_name, read_plan.Names(**body.model_dump()))
    return Response(FACTS.dump_json(facts), media_type="application/json")


@router.get("/{bundle_name}/plan", VIEWER_OF_BUNDLE, response_model=StoredPlan)
async def get_bundle_plan(
    api: Api, bundle_name: str, version_number: Other = None, since: Other = None, days: Annotated[int, Query(ge=1, le=366)] = DAYS
) -> Response:
    """Show what changes if a version of a bundle becomes the live one: by default, the newest one that is not live.

    It is compared with the live version, or with the version `since`. Nothing is parsed or stored. 409 if no scheduler has parsed
    the version.
    """
    made = await _alone(lambda: api.read(stored_plan, api.settings, bundle_name, version_number, since=since, days=days))
    return Response(STORED_PLAN.dump_json(made), media_type="application/json")


@router.get("/{bundle_name}/versions/{version_number}", VIEWER_OF_BUNDLE, response_model=models.BundleVersion)
def get_bundle_version(api: Api, bundle_name: str, version_number: Number) -> Row:
    """Show a version of a bundle."""
    return api.read(reads.version, bundle_name, version_number)


@router.get("/{bundle_name}/versions/{version_number}/changes", VIEWER_OF_BUNDLE, response_model=models.BundleChanges)
def get_bundle_changes(api: Api, bundle_name: str, version_number: Number, since: Other = None) -> Mapping[str, Any]:
    """List the files and DAGs that were added, changed and removed since another version. Without `since`, all are added."""
    version = api.read(reads.version, bundle_name, version_number)
    old = None if since is None else api.read(reads.version, bundle_name, since)["id"]
    return api.read(reads.changes, version["id"], old)


@router.get(
    "/{bundle_name}/versions/{version_number}/archive",
    OPERATOR_OF_BUNDLE,
    response_class=Response,
    responses={200: {"content": {"application/gzip": {"schema": ARCHIVE}}}},
)
async def get_bundle_archive(api: Api, bundle_name: str, version_number: Number) -> Response:
    """Download the files of a version as a tar.gz archive."""
    return Response(await _alone(_archive, api, bundle_name, version_number), media_type="application/gzip")


def _archive(api: Call, bundle_name: str, version_number: int) -> bytes:
    version = api.read(reads.version, bundle_name, version_number)
    target = io.BytesIO()
    write_archive(StoredContents.over(api.read, api.settings).files(version["id"]), target)
    return target.getvalue()


@router.get("/{bundle_name}/versions/{version_number}/files", VIEWER_OF_BUNDLE, response_model=models.BundleFilePage)
def get_bundle_files(api: Api, bundle_name: str, version_number: Number, page: Page) -> dict[str, Any]:
    """List the files of a version of a bundle."""
    version = api.read(reads.version, bundle_name, version_number)
    return api.page("bundle_files", reads.FILES, reads.FILES.filters().equals("version_id", version["id"]), page)


@router.get("/{bundle_name}/versions/{version_number}/files/{path:path}", VIEWER_OF_BUNDLE, response_model=models.BundleFileContent)
def get_bundle_file(
    api: Api, bundle_name: str, version_number: Number, path: str, accept: Annotated[str, Header()] = "*/*"
) -> Response | dict[str, Any]:
    """Show the text of a file of a version of a bundle, as its runs execute it."""
    version = api.read(reads.version, bundle_name, version_number)
    content = StoredContents.over(api.read, api.settings).content(version["id"], path)
    if content is None:
        raise NotFoundError(f"Version {version_number} of bundle {bundle_name!r} has no file {path[:200]!r}.")
    text = content[:LONGEST_TEXT].decode("utf-8", "replace")
    if accept.startswith("text/plain"):
        return PlainTextResponse(text)
    return {"path": path, "content": text, "byte_count": len(content), "is_complete": len(content) <= LONGEST_TEXT}
