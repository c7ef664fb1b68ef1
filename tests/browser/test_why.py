"""The page explains every situation of tests/integration/cli in the words of the command line and of the REST API."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from integration.cli.conftest import Cli
from integration.cli.situations import Place, Situation
from integration.cli.test_why import SITUATIONS, answers, plain
from playwright.sync_api import Browser, Page, expect
from support.scenario import Scenario
from support.waiting import eventually

from browser.conftest import PASSWORD
from browser.test_pages import with_moments
from scheduler.api import app, serve
from scheduler.settings import Settings
from scheduler.store.accounts import accounts
from scheduler.store.db.database import transact

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
#: A step of the history shows its actor, unless its text does.
STEP = ".history li:not(.now) .grow"


@dataclass
class Rest:
    """The REST API of the web process that serves the page."""

    page: Page
    url: str

    def get(self, path: str, **query: Any) -> Any:
        return self.page.request.get(self.url + path, params=query, fail_on_status_code=True).json()


def test_the_page_explains_each_situation_as_the_command_line_and_the_api_do(
    browser: Browser, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cli = Cli({"PACELINE_HOME": str(settings.home), "PACELINE_DAGS_FOLDER": str(settings.dags_folder),
               "PACELINE_DATABASE_URL": settings.database_url, "PACELINE_BROKER_URL": settings.broker_url})  # fmt: skip
    assert len(SITUATIONS) >= 40
    explained: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    scenario = Scenario(settings)
    transact(scenario.engine, accounts.create, "ada", PASSWORD, role="admin")
    with contextlib.closing(scenario), served(settings) as address, logged_in(browser, address) as page:
        rest = Rest(page, f"{address}/api/v2")
        for name, one in SITUATIONS.items():
            place = Place(scenario)
            one.build(place)
            scenario.sql(
                "update process set heartbeat_at = now() + interval '1 hour' where heartbeat_at > now() - interval '1 minute'"
            )
            for moment in ("live", "after"):
                answer = answers(cli, rest, one)
                # A page is about one instance, so it names no other.
                answer["waiting_for"] = [text for text in answer["waiting_for"] if "; this is about index " not in text]
                sentences = [with_moments(text) for text in plain(answer["waiting_for"])]
                explained[f"{name}, {moment}"] = sentences, [with_moments(step["text"]) for step in answer["history"]]
                shown[f"{name}, {moment}"] = read(page, address, one, answer)
                if moment == "live":
                    one.solve(place)
            place.clean()

    assert shown == explained


def read(page: Page, address: str, one: Situation, answer: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The sentences on the page, and the text of each step of the history."""
    if one.task is None:
        page.goto(f"{address}/dags/d/runs/one/details")
        sentences = page.locator(".history li.now .grow")
    else:
        index = answer["map_index"] if answer["map_index"] >= 0 else "-"
        page.goto(f"{address}/dags/d/runs/one/tasks/{one.task}/{index}/why")
        sentences = page.locator(".card li.row .grow")
    expect(sentences).to_have_count(len(answer["waiting_for"]))
    steps = page.locator(STEP)
    expect(steps).to_have_count(len(answer["history"]))
    texts = steps.evaluate_all("steps => steps.map(step => step.firstChild.textContent)")
    return plain([content.strip() for content in sentences.all_text_contents()]), [text.strip() for text in texts]


@contextlib.contextmanager
def served(settings: Settings) -> Iterator[str]:
    """The address of the pages on this database."""
    web = settings.web.model_copy(update={"address": "127.0.0.1", "port": 0})
    changed = settings.model_copy(update={"web": web})
    stopping = threading.Event()
    server = uvicorn.Server(serve.config(changed, app.create(changed, stopping)))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started, timeout=30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        stopping.set()
        server.should_exit = True
        thread.join(30)


@contextlib.contextmanager
def logged_in(browser: Browser, address: str) -> Iterator[Page]:
    """A page of the account `ada`."""
    with contextlib.closing(browser.new_context(reduced_motion="reduce")) as context:
        context.set_default_timeout(60_000)
        context.request.post(f"{address}/auth/login", data={"username": "ada", "password": PASSWORD}, fail_on_status_code=True)
        yield context.new_page()
