"""`make screenshots`: every page of a stack with data, light, dark and narrow, to build/screenshots."""

import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.waiting import eventually

from browser.conftest import CHROMIUM, Installation, logged_in, running

OUT = Path("build/screenshots")
#: Replaced by the ID of a run of `orders`, and by that of the run of `flights`.
RUN, FLIGHTS = "{run}", "first"
#: Name: path, and the element to click.
PAGES: dict[str, tuple[str, str | None]] = {
    "home": ("/", None),
    "dags": ("/dags", None),
    "runs": ("/runs", None),
    "grid": ("/dags/orders?runs=50", None),
    "grid-failures": ("/dags/features", None),
    "graph": ("/dags/orders/graph", None),
    "trigger": ("/dags/orders", ".head .button.first"),
    "durations": ("/dags/orders/durations", None),
    "calendar": ("/dags/orders/calendar", None),
    "source": ("/dags/orders/source", None),
    "details": ("/dags/orders/details", None),
    "gantt": (f"/dags/orders/runs/{RUN}", None),
    "tasks": (f"/dags/orders/runs/{RUN}/tasks", None),
    "run": (f"/dags/orders/runs/{RUN}/details", None),
    "log": (f"/dags/orders/runs/{RUN}/tasks/transform.load/2", None),
    "why": ("/dags/long_import/runs/now/tasks/index_3/-/why", None),
    "clear": (f"/dags/orders/runs/{RUN}/tasks/transform.clean", ".head .button.first"),
    "xcoms": (f"/dags/orders/runs/{RUN}/tasks/publish/-/xcoms", None),
    "events": (f"/dags/orders/runs/{RUN}/tasks/publish/-/events", None),
    "flights": ("/dags/flights", None),
    "flights-graph": (f"/dags/flights/runs/{FLIGHTS}/graph", None),
    "flights-gantt": (f"/dags/flights/runs/{FLIGHTS}", None),
    "flights-log": (f"/dags/flights/runs/{FLIGHTS}/tasks/validate/-/log", None),
    "flights-why": (f"/dags/flights/runs/{FLIGHTS}/tasks/report/-/why", None),
    "flights-spark": (f"/dags/flights/runs/{FLIGHTS}/tasks/validate/-/details", None),
    "queues": ("/queues", None),
    "pools": ("/pools", None),
    "actions": ("/actions", None),
    "respond": ("/actions", ".list tbody .button"),
    "assets": ("/assets", None),
    "backfills": ("/backfills", None),
    "backfill": ("/backfills?new=orders", None),
    "bundles": ("/bundles", None),
    "imports": ("/imports", None),
    "variables": ("/variables", None),
    "connections": ("/connections", None),
    "audit": ("/audit", None),
    "settings": ("/settings", None),
}
LOOKS = (("light", "light", 1440), ("dark", "dark", 1440), ("narrow", "light", 380), ("wide", "dark", 2560))


def main(only: list[str]) -> None:
    """Fill a stack with runs, and render the pages."""
    with tempfile.TemporaryDirectory(prefix="pl", dir="/tmp") as home, running(Path(home)) as installation:
        run_id = fill(installation)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            for look, theme, width in LOOKS:
                shutil.rmtree(OUT / look, ignore_errors=True)
                (OUT / look).mkdir(parents=True)
                render(browser, installation, run_id, look, theme, width, only)
            browser.close()


def fill(installation: Installation) -> str:
    """Runs of many kinds; the ID of one that succeeded."""
    last = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    installation.cli("pools", "set", "gpu", "2", "--description", "The two cards of host 7")
    installation.cli("variables", "set", "smtp_host", "mail.shop.internal")
    installation.cli("connections", "add", "warehouse", "--conn-type", "postgres", "--conn-host", "db.shop.internal")
    for dag_id, hours, limit in (("orders", 40, 4), ("features", 12, 2), ("inventory", 48, 3), ("ledger", 480, 4)):
        installation.cli(
            "backfill", "create", dag_id, "--from", (last - timedelta(hours=hours)).isoformat(), "--to", last.isoformat(),
            "--max-active-runs", str(limit),
        )  # fmt: skip
    installation.cli("dags", "trigger", "thumbnails")
    installation.cli("dags", "trigger", "flights", "--run-id", FLIGHTS)
    eventually(lambda: not unfinished(installation), timeout=600)
    installation.cli("dags", "trigger", "review")
    installation.cli("dags", "trigger", "long_import", "--run-id", "now")
    installation.cli("dags", "trigger", "orders", "--conf", '{"region": "us-east", "limit": 500}')
    runs = json.loads(installation.cli("runs", "list", "--dag", "orders", "--state", "success", "--json"))
    return str(runs[0]["run_id"])


def unfinished(installation: Installation) -> bool:
    return any(json.loads(installation.cli("runs", "list", "--state", state, "--json")) for state in ("queued", "running"))


def render(browser: Browser, installation: Installation, run_id: str, look: str, theme: str, width: int, only: list[str]) -> None:
    context = browser.new_context(
        base_url=installation.url, storage_state=logged_in(browser, installation, "ada"), color_scheme=theme,
        viewport={"width": width, "height": 900}, reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    for name, (path, clicked) in PAGES.items():
        if not only or name in only:
            page.goto(path.replace(RUN, run_id))
            settle(page)
            if clicked:
                page.locator(clicked).first.click()
                settle(page)
            page.screenshot(path=OUT / look / f"{name}.png")
            print(OUT / look / f"{name}.png", flush=True)
    context.close()


def settle(page: Page) -> None:
    """Wait until nothing loads any more. The event stream stays open, so the network never is idle."""
    page.wait_for_selector("main .head + *")
    expect(page.locator("[aria-busy]")).to_have_count(0)


if __name__ == "__main__":
    main(sys.argv[1:])
