"""Bundles for commands: through the database of the settings, or through the REST API of a web process."""

import json
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import click

from paceline.exceptions import NotFoundError, PacelineError, UnreachableError, UsageError
from scheduler.cli import options

if TYPE_CHECKING:
    from scheduler.dagfiles.plan import StoredPlan
    from scheduler.store.dags.bundles import BundleFile
    from scheduler.store.read.plan import Names, PlanFacts

    Files = Mapping[str, BundleFile]

Row = dict[str, Any]
#: Seconds without an answer of the web process.
ANSWER_S = 90.0
#: Bytes of an archive that stay in memory.
SMALL_ARCHIVE = 1 << 20
#: The options of commands whose bundles may be those of a web process: the arguments of `access`.
of_installation = options.together(
    click.option(
        "--url", envvar="PACELINE_URL", show_envvar=True, help="Address of a web process. Default: the database of the settings."
    ),
    click.option(
        "--token", envvar="PACELINE_TOKEN", show_envvar=True, help="API token for --url, or - to read it from standard input."
    ),
)


class BundleAccess(Protocol):
    """What a command does with bundles. The rows are those of the REST API."""

    def deploy(self, bundle: str, files: "Files", *, message: str, origin: str) -> Row:
        """Store files as a version of a bundle."""

    def roll_back(self, bundle: str, number: int | None) -> Row:
        """Make an earlier version live again, or the one that was live before."""

    def version(self, bundle: str, number: int) -> Row:
        """A version of a bundle. NotFoundError."""

    def changes(self, bundle: str, number: int, since: int | None) -> Row:
        """The files and DAGs that differ between two versions."""

    def live_files(self, bundle: str) -> "Files":
        """The files of the live version of a bundle; none if none has been live."""

    def facts(self, bundle: str, names: "Names") -> "PlanFacts":
        """What a plan compares a folder with that has these names."""

    def plan(self, bundle: str, number: int, days: int) -> "StoredPlan":
        """The plan of a stored version."""


def access(url: str | None, token: str | None) -> BundleAccess:
    """The bundles of the web process at an address, or those in the database of the settings."""
    return OwnBundles() if url is None else WebBundles(url, options.typed(token) if token else None)


class OwnBundles:
    """The bundles in the database of the settings."""

    def deploy(self, bundle: str, files: "Files", *, message: str, origin: str) -> Row:
        from scheduler.actions import bundles

        return bundles.deploy(options.actor(), bundle, files, message=message, origin=origin)

    def roll_back(self, bundle: str, number: int | None) -> Row:
        from scheduler.actions import bundles

        return bundles.roll_back(options.actor(), bundle, number)

    def version(self, bundle: str, number: int) -> Row:
        from scheduler.store.read import bundles

        return options.transact(bundles.version, bundle, number)

    def changes(self, bundle: str, number: int, since: int | None) -> Row:
        from scheduler.store.read import bundles

        old = None if since is None else self.version(bundle, since)["id"]
        return options.transact(bundles.changes, self.version(bundle, number)["id"], old)

    def live_files(self, bundle: str) -> "Files":
        from scheduler.dagfiles.bundle_cache import StoredContents
        from scheduler.store.read import plan

        live = options.transact(plan.bundle, bundle).version_id
        return {} if live is None else StoredContents.over(options.transact, options.settings()).files(live)

    def facts(self, bundle: str, names: "Names") -> "PlanFacts":
        from scheduler.store.read import plan

        return options.transact(plan.facts, options.settings(), bundle, names)

    def plan(self, bundle: str, number: int, days: int) -> "StoredPlan":
        from scheduler.dagfiles.plan import stored_plan

        return options.transact(stored_plan, options.settings(), bundle, number, days=days)


class WebBundles:
    """The bundles of the web process at an address, for the account of a token."""

    def __init__(self, url: str, token: str | None) -> None:
        """UsageError for an address that is none, or without a token."""
        if urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname:
            raise UsageError(f"--url {url!r} is not an address such as https://paceline.example.org.")
        if not token:
            raise UsageError("--url needs a token: `paceline users token NAME` creates one; set PACELINE_TOKEN to it.")
        self._url, self._token = url.rstrip("/"), token
        # Without redirects: they would send the token to another host.
        self._opener = urllib.request.build_opener(_NoRedirects)

    def deploy(self, bundle: str, files: "Files", *, message: str, origin: str) -> Row:
        from scheduler.dagfiles.bundle_files import write_archive

        with tempfile.SpooledTemporaryFile(SMALL_ARCHIVE) as packed:
            write_archive(files, packed)
            size = packed.tell()
            packed.seek(0)
            query = urlencode({"message": message, "origin": origin})
            headers = {"Content-Type": "application/gzip", "Content-Length": str(size)}
            return self._ask(f"{quote(bundle, safe='')}/versions?{query}", packed, headers)

    def roll_back(self, bundle: str, number: int | None) -> Row:
        body = json.dumps({"version_number": number}).encode()
        return self._ask(f"{quote(bundle, safe='')}/rollback", body, {"Content-Type": "application/json"})

    def version(self, bundle: str, number: int) -> Row:
        return self._ask(f"{quote(bundle, safe='')}/versions/{number}")

    def changes(self, bundle: str, number: int, since: int | None) -> Row:
        query = "" if since is None else f"?since={since}"
        return self._ask(f"{quote(bundle, safe='')}/versions/{number}/changes{query}")

    def live_files(self, bundle: str) -> "Files":
        from scheduler.dagfiles.bundle_files import read_archive

        try:
            live = self._ask(quote(bundle, safe=""))["live_version"]
        except NotFoundError:
            return {}
        if live is None:
            return {}
        with tempfile.SpooledTemporaryFile(SMALL_ARCHIVE) as packed:
            self._ask(f"{quote(bundle, safe='')}/versions/{live}/archive", into=packed)
            packed.seek(0)
            return read_archive(packed, options.settings().bundles)

    def facts(self, bundle: str, names: "Names") -> "PlanFacts":
        from pydantic import TypeAdapter

        from scheduler.store.read.plan import PlanFacts

        body = json.dumps(asdict(names)).encode()
        answer = self._ask(f"{quote(bundle, safe='')}/plan", body, {"Content-Type": "application/json"})
        return TypeAdapter(PlanFacts).validate_python(answer)

    def plan(self, bundle: str, number: int, days: int) -> "StoredPlan":
        from pydantic import TypeAdapter

        from scheduler.dagfiles.plan import StoredPlan

        answer = self._ask(f"{quote(bundle, safe='')}/plan?version_number={number}&days={days}")
        return TypeAdapter(StoredPlan).validate_python(answer)

    def _ask(
        self,
        path: str,
        body: IO[bytes] | bytes | None = None,
        headers: Mapping[str, str] = {},
        into: IO[bytes] | None = None,
    ) -> Row:
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked
            f"{self._url}/api/v2/bundles/{path}", body, {**headers, "Authorization": f"Bearer {self._token}"}
        )
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                if into is not None:
                    shutil.copyfileobj(answer, into)
                row: Row = {} if into is not None else json.load(answer)
                return row
        except urllib.error.HTTPError as error:
            raise self._error(error) from None
        except (ValueError, RecursionError):
            raise UnreachableError(f"{self._url} does not answer as a web process of Paceline does: correct --url.") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UnreachableError(f"{self._url} does not answer ({reason}): start it, or correct --url.") from None

    def _error(self, error: urllib.error.HTTPError) -> PacelineError:
        with error:
            try:
                detail = json.loads(error.read(1 << 16))["detail"]
            except (OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError):
                detail = f"{self._url} answers {error.code} {error.reason}: correct --url."
        text = detail if isinstance(detail, str) else "; ".join(str(one.get("msg")) for one in detail)
        if 300 <= error.code < 400:
            return UsageError(f"{self._url} leads to {error.headers.get('location')}: pass that address as --url.")
        kinds = {400: UsageError, 404: NotFoundError, 413: UsageError, 422: UsageError, 503: UnreachableError}
        return kinds.get(error.code, PacelineError)(text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
