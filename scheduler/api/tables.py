"""The catalog of tables below /catalog, for people with an account and for the drivers of tries on a cluster."""

from fastapi import FastAPI, Request
from sqlalchemy import Engine

from paceline.exceptions import PacelineError
from scheduler.api.access import ADMINISTER, OPERATE, VIEW, at_least, tags_with
from scheduler.api.login import Logins
from scheduler.catalog import access, app
from scheduler.catalog.access import Caller
from scheduler.catalog.errors import UnauthorizedError
from scheduler.catalog.tables import Tables
from scheduler.settings import Settings
from scheduler.store.accounts.accounts import Account


def create(settings: Settings, engine: Engine, logins: Logins) -> FastAPI:
    """The catalog, for the tokens of running tries and of accounts."""
    tables = Tables(settings, engine)

    def authenticate(request: Request) -> Caller:
        # Not a cookie: a page of another site could use it.
        attempt = tables.caller(app.bearer(request))
        if attempt is not None:
            return attempt
        try:
            account = logins.account(request)
        except PacelineError:
            raise UnauthorizedError("This token is neither that of a running try nor that of an account.") from None
        return of_account(account, request.client.host if request.client else "")

    return app.create(tables, authenticate)


def of_account(account: Account, address: str) -> Caller:
    """An account: a viewer reads everything, an operator writes. With roles on tags alone, the namespaces that list them."""

    def may_use(properties: dict[str, str], writes: bool) -> bool:
        role = OPERATE if writes else VIEW
        tags = tags_with(account, role)
        return tags is None or not access.listed(properties, writes=writes).isdisjoint(f"tag:{tag}" for tag in tags)

    may_write = at_least(account.role, OPERATE) or bool(tags_with(account, OPERATE))
    return Caller(
        f"api:{account.name}", address=address, may_write=may_write, is_admin=at_least(account.role, ADMINISTER), may_use=may_use
    )
