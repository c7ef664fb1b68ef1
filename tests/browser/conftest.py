"""One `paceline standalone` with its pages, and Chromium. `make test-browser` runs these tests."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from support import standalone
from support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

if not os.environ.get("BROWSER_TESTS"):
    collect_ignore_glob = ["test_*.py"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
PASSWORD = "correct horse battery"
WAIT_MS = 60_000


@dataclass
class Installation:
    """A running standalone with an administrator and a viewer."""

    url: str
    environment: dict[str, str]

    def cli(self, *arguments: str) -> str:
        return standalone.ask(self.environment, *arguments)

    def cli_any(self, *arguments: str) -> str:
        """A command that may also report a failed run."""
        return standalone.ask(self.environment, *arguments, ok=(0, 1))


@contextlib.contextmanager
def running(home: Path) -> Iterator[Installation]:
    """A standalone of its own with the DAGs of this folder and the flights pipeline, an administrator and a viewer."""
    dags = home / "dags"
    shutil.copytree(HERE / "dags", dags)
    shutil.copytree(ROOT / "dags" / "flights_parts", dags / "flights_parts")
    shutil.copy(ROOT / "dags" / "flights.py", dags)
    environment = standalone.environment_of(home / "home", dags) | {"PACELINE_WORKER_CONCURRENCY": "4"}
    with standalone.standalone(environment) as process:
        url = re.search(r"(?m)^web +(http://[\w.]+:\d+)", process.output)[1]  # type: ignore[attr-defined,index]
        installed = Installation(url, environment)
        eventually(lambda: _answers(url), timeout=standalone.START_S)
        for name, role in (("ada", "admin"), ("vera", "viewer")):
            installed.cli("users", "create", name, "--role", role, "--password", PASSWORD)
        yield installed
        process.terminate()
        process.wait(standalone.STOP_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code in {200, 503}
    except httpx.TransportError:
        return False


@pytest.fixture(scope="session")
def installation(session_folder: Path) -> Iterator[Installation]:
    with running(session_folder) as made:
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def logged_in(browser: "Browser", installation: Installation, name: str) -> dict[str, object]:
    """The cookies of an account."""
    context = browser.new_context()
    context.request.post(f"{installation.url}/auth/login", data={"username": name, "password": PASSWORD}, fail_on_status_code=True)
    state = context.storage_state()
    context.close()
    return dict(state)


@pytest.fixture(scope="session")
def cookies(browser: "Browser", installation: Installation) -> dict[str, object]:
    return logged_in(browser, installation, "ada")


@pytest.fixture
def context(browser: "Browser", cookies: dict[str, object], installation: Installation) -> Iterator["BrowserContext"]:
    browser_context = browser.new_context(
        base_url=installation.url, storage_state=cookies, viewport={"width": 1440, "height": 900}, reduced_motion="reduce"
    )
    browser_context.set_default_timeout(WAIT_MS)
    yield browser_context
    browser_context.close()


@pytest.fixture
def page(context: "BrowserContext") -> Iterator["Page"]:
    """A page of the administrator. An error on its console, such as a violation of the content policy, fails the test."""
    new_page = context.new_page()
    problems: list[str] = []
    new_page.on("pageerror", lambda error: problems.append(str(error)))
    new_page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield new_page
    assert problems == []


@pytest.fixture
def away(context: "BrowserContext") -> Iterator["Page"]:
    """A page of the administrator whose requests may fail: the browser writes each of them to the console."""
    new_page = context.new_page()
    yield new_page
    new_page.close()


@pytest.fixture
def phone(browser: "Browser", cookies: dict[str, object], installation: Installation) -> Iterator["Page"]:
    """A page of the administrator on a narrow screen that is touched."""
    context = browser.new_context(
        base_url=installation.url, storage_state=cookies, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True,
        reduced_motion="reduce",
    )  # fmt: skip
    context.set_default_timeout(WAIT_MS)
    yield context.new_page()
    context.close()


@dataclass
class Names:
    """What stands for the braces of an address."""

    run: str
    failed: str
    asset: str

    def into(self, path: str) -> str:
        return path.replace("{run}", self.run).replace("{failed}", self.failed).replace("{asset}", self.asset)


@pytest.fixture(scope="module")
def names(browser: "Browser", cookies: dict[str, object], installation: Installation) -> Iterator[Names]:
    """Data for every page: runs that succeeded and failed, a question, a connection, a variable, a pool, a log with levels."""
    now = time.time_ns()
    made = Names(f"fine-{now}", f"failed-{now}", "")
    installation.cli("connections", "set", "axe", "--conn-type", "postgres", "--conn-host", "db", "--conn-password", "secret")
    installation.cli("variables", "set", "axe_token", "secret")
    installation.cli("pools", "set", "axe", "2")
    installation.cli("dags", "trigger", "review", "--run-id", made.run)
    runs = [("journey", made.run, "{}"), ("journey", made.failed, '{"fail": true}')]
    if '"axe"' not in installation.cli("runs", "list", "--dag", "noisy", "--json"):
        runs.append(("noisy", "axe", "{}"))
    for dag_id, run_id, conf in runs:
        installation.cli_any("dags", "trigger", dag_id, "--run-id", run_id, "--conf", conf, "--wait", "--timeout", "120")
    context = browser.new_context(base_url=installation.url, storage_state=cookies)
    made.asset = str(context.request.get("/api/v2/assets").json()["assets"][0]["id"])
    context.close()
    yield made
    installation.cli("connections", "delete", "axe", "--yes")
    installation.cli("variables", "delete", "axe_token", "--yes")
    installation.cli("pools", "delete", "axe", "--yes")
    installation.cli("runs", "mark", "review", made.run, "failed")


def serious_violations(page: "Page") -> dict[str, list[str]]:
    """By rule of axe-core: the elements of a page that break it seriously."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    rules = "['wcag2a', 'wcag2aa', 'wcag21aa', 'best-practice']"
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], runOnly: {rules}}})")
    return {
        violation["id"]: [node["html"][:160] for node in violation["nodes"][:3]]
        for violation in found["violations"]
        if violation["impact"] in {"serious", "critical"}
    }
