"""One request to the API: its account, its database, and the DAGs that it may see."""

import json
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Annotated, Any, Concatenate, ParamSpec, Self, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from sqlalchemy import Connection, Engine

from scheduler.actions.actor import Actor, ForbiddenError
from scheduler.api import access, servers
from scheduler.api.comparisons import Comparisons
from scheduler.api.errors import documented
from scheduler.api.login import SAFE, Logins
from scheduler.api.servers import Broker
from scheduler.api.stream import Stream
from scheduler.messaging import wakeups
from scheduler.messaging.publisher import Publisher
from scheduler.settings import Settings
from scheduler.store.accounts import audit
from scheduler.store.accounts.accounts import Account
from scheduler.store.dags.versions import Versions
from scheduler.store.db.database import read, transact
from scheduler.store.read import dags, row_versions
from scheduler.store.read.listing import Filters, Listing, Page
from scheduler.store.secrets.cipher import Cipher

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

#: Values of these keys never enter the audit log.
SECRET_FIELDS = frozenset({"password", "extra", "value", "conf", "dag_run_conf"})
#: Characters of a body in the audit log, and its levels.
LONGEST_EXTRA, DEEPEST_EXTRA = 4000, 20
PREFIX = "/api/v2"
T = TypeVar("T")
#: Seconds for which an answer is shared, and the answers that are kept.
SHARED_S, MOST_ANSWERS = 5.0, 200


@dataclass(slots=True)
class Kept:
    """Answers that many pages ask for at the same time: one request computes each, and the others of the next seconds share it.

    What an account may see belongs into the key.
    """

    shared_s: float = SHARED_S
    _answers: dict[Hashable, tuple[float, Future[Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The answer of `compute`, which another thread may be computing, or has computed within `shared_s`."""
        now = time.monotonic()
        with self._lock:
            since, answer = self._answers.get(key, (now, None))
            is_mine = answer is None or now - since >= self.shared_s
            if answer is None or is_mine:
                answer = Future()
                self._answers.pop(key, None)
                self._answers[key] = (now, answer)
                if len(self._answers) > MOST_ANSWERS:
                    del self._answers[next(iter(self._answers))]
        if is_mine:
            try:
                answer.set_result(compute())
            except BaseException as error:
                with self._lock:
                    if self._answers.get(key, (now, None))[1] is answer:
                        del self._answers[key]
                answer.set_exception(error)
                raise
        result: T = answer.result()
        return result


@dataclass(frozen=True, slots=True)
class Service:
    """The objects that all requests of a web process share."""

    settings: Settings
    engine: Engine
    logins: Logins
    wakeups: wakeups.Wakeups
    publisher: Publisher
    broker: Broker
    stream: Stream
    #: Set when the process shuts down: streams end then.
    stopping: threading.Event
    versions: Versions
    kept: Kept
    comparisons: Comparisons

    @classmethod
    def of(cls, settings: Settings, stopping: threading.Event | None = None) -> Self:
        """The service of a web process with these settings. It connects to nothing yet."""
        engine = servers.create_engine(settings)
        stopping = stopping or threading.Event()
        return cls(
            settings=settings,
            engine=engine,
            logins=Logins(settings, engine),
            wakeups=wakeups.Wakeups(settings, timeout_s=wakeups.SEND_S),
            publisher=Publisher(settings, timeout_s=wakeups.SEND_S),
            broker=Broker(settings),
            stream=Stream(engine, stopping),
            stopping=stopping,
            versions=Versions(),
            kept=Kept(),
            comparisons=Comparisons(settings, engine),
        )

    def close(self) -> None:
        """End its streams, and close its connections."""
        self.stopping.set()
        self.wakeups.close()
        self.publisher.close()
        self.broker.close()
        self.engine.dispose()


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be made by its account."""

    service: Service
    account: Account
    address: str
    #: That of If-Match, until a transaction has checked it.
    precondition: list[Callable[[Connection], None]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return self.service.settings

    @property
    def actor(self) -> Actor:
        """The account as the one who acts: events of its changes have its name."""
        name = f"api:{self.account.name}"
        return Actor(
            settings=self.settings, engine=servers.acting_as(self.service.engine, name), announce=self.service.wakeups.announce,
            publish=self.service.publisher.try_publish, versions=self.service.versions,
            name=name, made_by=name, account=self.account.name, address=self.address, checks=self.precondition,
        )  # fmt: skip

    def read(self, work: Callable[Concatenate[Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return `work(connection, ...)`."""
        return read(self.service.engine, work, *args, **kwargs)

    def page(self, name: str, listing: Listing, filters: Filters, page: Page) -> dict[str, Any]:
        """One page of a list, whose rows are the field `name`."""
        entries = self.read(listing.page, filters, page)
        return {
            name: entries.rows,
            "total_entries": entries.total,
            "total_entries_limit": entries.total_limit,
            "next_cursor": entries.next_cursor,
            "previous_cursor": entries.previous_cursor,
        }

    def tags(self, role: str = "viewer") -> list[str] | None:
        """The tags of the DAGs on which the account has this role; None means all DAGs."""
        return access.tags_with(self.account, role)

    def require(self, dag_id: str, role: str) -> None:
        """ForbiddenError, or NotFoundError if the DAG is hidden from the account."""
        self.read(authorize_dag, self.account, access.Needs(role, "dag"), dag_id)

    def cipher(self) -> Cipher:
        return Cipher.of(self.settings, make=True)


def authorize_dag(connection: Connection, account: Account, needs: access.Needs, dag_id: str) -> None:
    """ForbiddenError if the account may not do this to a DAG. An unknown DAG is a matter of the route."""
    if needs.scope != "dag" or dag_id == "~" or access.at_least(account.role, needs.role):
        if not access.may(account, needs):
            raise access.refusal(needs)
        return
    if not access.may(account, needs, dags.tags_of(connection, dag_id)):
        raise access.refusal(needs)


def service_of(request: Request) -> Service:
    """The objects that this request shares with all others of the web process."""
    service: Service = request.app.state.service
    return service


def address_of(request: Request) -> str:
    """The IP address of the client."""
    return request.client.host if request.client else ""


def begin(request: Request) -> Call:
    """Authenticate and authorize a request, and begin its entry in the audit log if it is a change."""
    service, address = service_of(request), address_of(request)
    account = service.logins.account(request)
    route = request.scope["route"]
    name = f"{request.method} {route.path.removeprefix(PREFIX)}"
    needs = access.TABLE.get(name) or access.OUTSIDE.get(name)
    if needs is None:
        raise ForbiddenError("This route declares no right.")
    if request.method in SAFE and access.may_everywhere(account, needs):
        return Call(service, account, address)  # nothing to look up, nothing to record
    body = getattr(request, "_json", None) if request.method not in SAFE else None
    transact(service.engine, _admit, request, account, needs, body, address)
    call = Call(service, account, address)
    if not hasattr(request.state, "refused") and (thing := access.thing_of(request, route.path.removeprefix(PREFIX))):
        names = request.path_params
        call.precondition.append(access.unchanged(thing, names, call.read(row_versions.versions, thing, names)))
    return call


def _admit(connection: Connection, request: Request, account: Account, needs: access.Needs, body: Any, address: str) -> None:
    path = request.path_params
    refused: ForbiddenError | None = None
    try:
        if "dag_id" in path:
            authorize_dag(connection, account, needs, path["dag_id"])
        elif not access.may(account, needs, [access.BUNDLE_TAG + path["bundle_name"]] if "bundle_name" in path else None):
            raise access.refusal(needs)
    except ForbiddenError as error:
        refused = error
    if request.method not in SAFE and not _only_reads(needs, body):
        event = needs.event or request.scope["route"].name
        entry = {
            "event": event,
            "account": account.name,
            "address": address,
            "extra": _extra(request, body),
            **_subject(path, body),
        }
        if needs.event and refused is None:
            request.state.audit_if_failed = entry
        else:
            request.state.audit = audit.begin(connection, **entry)
    if refused is not None:
        if hasattr(request.state, "audit"):
            audit.end(connection, request.state.audit, 403)
        request.state.refused = refused


def _only_reads(needs: access.Needs, body: Any) -> bool:
    """Only true is a dry run here: pydantic reads other values, such as "no", as false."""
    return needs.only_reads is True or (bool(needs.only_reads) and isinstance(body, dict) and body.get("dry_run", True) is True)


def _subject(path: Mapping[str, Any], body: Any) -> dict[str, Any]:
    found = body if isinstance(body, dict) else {}
    task_id, index = path.get("task_id"), str(path.get("map_index", ""))
    if isinstance(tasks := found.get("task_ids"), list) and len(tasks) == 1:  # one task to clear, or one instance
        task_id, index = (tasks[0][0], str(tasks[0][1])) if isinstance(tasks[0], list) and len(tasks[0]) == 2 else (tasks[0], "")
    return {
        "dag_id": _text(path.get("dag_id") or found.get("dag_id")),
        "run_id": _text(path.get("dag_run_id") or found.get("dag_run_id")),
        "task_id": _text(task_id),
        "map_index": int(index) if index.lstrip("-").isdecimal() and len(index) < 9 else None,
    }


def _text(value: Any) -> str | None:
    return value.replace("\0", "")[:250].encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _extra(request: Request, body: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {
        name: _text(str(value)) for name, value in (*request.path_params.items(), *request.query_params.items())
    }
    if isinstance(body, dict | list):
        text = json.dumps(_without_secrets(body), ensure_ascii=True)
        extra["body"] = json.loads(text) if len(text) <= LONGEST_EXTRA and "\\u0000" not in text else f"{len(text)} characters"
    return extra


def _without_secrets(value: Any, levels: int = DEEPEST_EXTRA) -> Any:
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return "..."
    if isinstance(value, list):
        return [_without_secrets(item, levels - 1) for item in value]
    return {name: "***" if name.lower() in SECRET_FIELDS else _without_secrets(item, levels - 1) for name, item in value.items()}


def check_again(request: Request) -> None:
    """For a streaming response: UnauthenticatedError or ForbiddenError if the login has ended or lost its rights since."""
    begin(request)
    _raise_refusal(request)


def _raise_refusal(request: Request) -> None:
    refused: ForbiddenError | None = getattr(request.state, "refused", None)
    if refused is not None:
        raise refused


async def admitted(call: Annotated[Call, Depends(begin)], request: Request) -> Call:
    """A request whose account may make it. The refusal comes after its entry in the audit log is stored."""
    _raise_refusal(request)
    if call.precondition:
        await access.compare(request)
    return call


#: The first parameter of each route.
Api = Annotated[Call, Depends(admitted)]


class Routes(APIRouter):
    """A router whose routes declare in their decorator what they need."""

    def declare(
        self,
        method: str,
        path: str,
        needs: access.Needs,
        *,
        only_reads: access.OnlyReads = False,
        event: str | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """A decorator of the function that answers `method` on `path`. `options` are those of APIRouter.api_route."""
        declared = needs._replace(only_reads=only_reads, event=event)
        access.TABLE[f"{method} {(self.prefix + path).removeprefix(PREFIX)}"] = declared
        return self.api_route(path, methods=[method], **options)

    def get(self, path: str, needs: access.Needs, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self.declare("GET", path, needs, **options)

    def post(self, path: str, needs: access.Needs, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self.declare("POST", path, needs, **options)

    def put(self, path: str, needs: access.Needs, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self.declare("PUT", path, needs, **options)

    def patch(self, path: str, needs: access.Needs, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self.declare("PATCH", path, needs, **options)

    def delete(self, path: str, needs: access.Needs, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self.declare("DELETE", path, needs, **options)


def new_router(prefix: str = "", **options: Any) -> Routes:
    """The router of paths below /api/v2, which need a login. `options` are those of APIRouter."""
    return Routes(
        prefix=PREFIX + prefix,
        dependencies=[Depends(admitted)],
        responses=documented(),
        generate_unique_id_function=operation_id,
        **options,
    )


def operation_id(route: APIRoute) -> str:
    """The name of a route in the OpenAPI document."""
    return route.name
