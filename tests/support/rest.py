"""Requests to the REST API without a server: the application answers in this process."""

import asyncio
from functools import cache
from typing import Any, Self

import httpx
from fastapi import FastAPI

from scheduler.api import app
from scheduler.api.call import PREFIX, Service
from scheduler.settings import Settings
from scheduler.store.accounts import logins
from scheduler.store.db.database import transact


@cache
def _routes() -> FastAPI:
    """Making the routes takes 0.3 s, so that all tests of a process share them."""
    return app.create(Settings.load({"PACELINE_DATABASE_URL": "postgresql://nowhere/none", "PACELINE_WEB_SIGNING_KEY": "x" * 32}))


class Rest:
    """An administrator's client of a web process with these settings."""

    def __init__(self, settings: Settings) -> None:
        self._service = Service.of(settings)
        with self._service.engine.begin() as connection:
            made = "insert into account (name, password_hash, role) values ('rest', '', 'admin') returning id"
            account = connection.exec_driver_sql(made).scalar_one()
        token, _ = transact(self._service.engine, logins.issue, account, "token", lasts_s=600.0)
        self._headers = {"Authorization": f"Bearer {token}"}

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a response that must be 200."""
        answer = asyncio.run(self._get(path, query))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def _get(self, path: str, query: dict[str, Any]) -> httpx.Response:
        routes = _routes()
        routes.state.service = self._service
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(routes), base_url="http://rest", headers=self._headers
        ) as client:
            return await client.get(PREFIX + path, params=query)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._service.close()
