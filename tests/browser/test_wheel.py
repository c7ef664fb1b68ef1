"""A wheel that was built here serves the pages in an environment of its own, on a machine without Node.js."""

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import Browser, expect
from support import wheels
from support.waiting import eventually

from browser.conftest import PASSWORD
from scheduler.embedded import stack

if TYPE_CHECKING:
    from scheduler.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The programs of an environment that has the wheel."""
    built, environment = tmp_path / "wheel", tmp_path / "environment"
    built.mkdir()
    wheels.install(wheels.build(built), environment)
    return environment / "bin"


def test_an_installed_wheel_serves_the_pages(browser: Browser, settings: "Settings", programs: Path, tmp_path: Path) -> None:
    port = stack.free_port("127.0.0.1", 0)
    given = {
        "PATH": str(programs), "HOME": str(tmp_path), "PACELINE_HOME": str(settings.home), "PACELINE_WEB_PORT": str(port),
        "PACELINE_DATABASE_URL": settings.database_url, "PACELINE_BROKER_URL": settings.broker_url,
    }  # fmt: skip
    assert shutil.which("node", path=given["PATH"]) is None
    paceline = str(programs / "paceline")
    create = [paceline, "users", "create", "ada", "--role", "admin", "--password", PASSWORD]
    subprocess.run(create, env=given, cwd=tmp_path, check=True)
    with subprocess.Popen([paceline, "web"], env=given, cwd=tmp_path) as process:
        context = browser.new_context(base_url=f"http://127.0.0.1:{port}")
        try:
            eventually(lambda: answers(port), timeout=60)
            page = context.new_page()
            page.goto("/variables")
            page.get_by_label("User name").fill("ada")
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", name="Variables", exact=True)).to_be_visible(timeout=60_000)
        finally:
            context.close()
            process.terminate()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/alive").status_code == 200
    except httpx.TransportError:
        return False
