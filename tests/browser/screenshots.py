"""`make screenshots`: every page of a stack with data, light, dark and narrow, to build/screenshots.

The history is that of a month: the runs are made by backfills, and then moved to the time at which they were due. With the
argument `readme`, it renders the four pictures of the README to docs/images.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import urllib.parse
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sqlalchemy import Engine
from support.waiting import eventually

from browser.conftest import CHROMIUM, Installation, logged_in, running
from scheduler.settings import Settings
from scheduler.store.db import database
from scheduler.store.db.database import transact
from scheduler.store.tables import publish
from scheduler.store.tables.pointers import Change

OUT = Path("build/screenshots")
#: Replaced by the ID of a run of `orders`, and by that of the run of `flights`.
RUN, FLIGHTS = "{run}", "first"
#: Replaced by the ID of the newest failed run of `features`.
FAILED = "{failed}"
#: Name: path, and the element to click.
PAGES: dict[str, tuple[str, str | None]] = {
    "home": ("/", None),
    "home-week": ("/?range=7d", None),
    "dags": ("/dags", None),
    "runs": ("/runs", None),
    "grid": ("/dags/orders?runs=50", None),
    "grid-failures": ("/dags/features", None),
    "grid-panel": (f"/dags/features?runs=50&run={FAILED}&task=price.join", None),
    "failure": (f"/dags/features/runs/{FAILED}", None),
    "compare": (f"/dags/features/runs/{FAILED}/compare", None),
    "graph": ("/dags/orders/graph", None),
    "trigger": ("/dags/orders", ".head .button.first"),
    "durations": ("/dags/orders/durations", None),
    "calendar": ("/dags/orders/calendar", None),
    "source": ("/dags/orders/source", None),
    "docs": ("/dags/documented/docs", None),
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
    "task-list": ("/tasks", None),
    "tables": ("/tables", None),
    "table": ("/tables/shop.orders", None),
    "pools": ("/pools", None),
    "pool-line": ("/pools", "tbody .as-link"),
    "actions": ("/actions", None),
    "respond": ("/actions", ".list tbody .button"),
    "assets": ("/assets", None),
    "asset": ("/assets", "tbody .mono"),
    "backfills": ("/backfills", None),
    "backfill": ("/backfills?new=orders", None),
    "backfill-any": ("/backfills?new=%7E", None),
    "bundles": ("/bundles", None),
    "bundle": ("/bundles/sales?version=2&file=rates.py", None),
    "plan": ("/bundles/sales/plan?version=2", None),
    "callbacks": (f"/dags/orders/runs/{RUN}/callbacks", None),
    "mapped": ("/dags/thumbnails/runs/sixty/tasks/shrink", None),
    "imports": ("/imports", None),
    "variables": ("/variables", None),
    "connections": ("/connections", None),
    "connection": ("/connections", "[aria-label='Edit: warehouse']"),
    "new-connection": ("/connections", ".head .button.first"),
    "audit": ("/audit", None),
    "audit-entry": ("/audit", "tbody .as-link"),
    "zone": ("/", ".side-end [title='The zone of all times']"),
    "keys": ("/", ".side-end [aria-label=Keyboard]"),
    "jump": ("/", "[aria-label='Go to anything'], .side-end .side-link"),
    "settings": ("/settings", None),
}
#: By file below docs/images: the page.
README = {"home": "home-week", "grid": "grid-panel", "gantt": "failure", "why": "why"}
IMAGES, COLORS = Path("docs/images"), 64
LOOKS = (("light", "light", 1440), ("dark", "dark", 1440), ("narrow", "light", 390), ("wide", "dark", 2560))


def main(only: list[str]) -> None:
    """Fill a stack with runs, and render the pages."""
    with tempfile.TemporaryDirectory(prefix="pl", dir="/tmp") as home, running(Path(home)) as installation:
        run_id = fill(installation, flights=only != ["readme"])
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            if only == ["readme"]:
                return readme(browser, installation, run_id)
            for look, theme, width in LOOKS:
                shutil.rmtree(OUT / look, ignore_errors=True)
                (OUT / look).mkdir(parents=True)
                render(browser, installation, run_id, look, theme, width, only)
            browser.close()


def fill(installation: Installation, *, flights: bool) -> str:
    """Runs of many kinds; the ID of one that succeeded."""
    last = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    installation.cli("pools", "set", "gpu", "2", "--description", "The two cards of host 7")
    installation.cli("variables", "set", "smtp_host", "mail.shop.internal")
    installation.cli("connections", "add", "warehouse", "--conn-type", "postgres", "--conn-host", "db.shop.internal")
    for dag_id, hours, limit in (
        ("orders", 50, 4), ("features", 12, 2), ("inventory", 7 * 24, 4), ("ledger", 48, 4), ("exchange_rates", 30 * 24, 4),
    ):  # fmt: skip
        installation.cli(
            "backfill", "create", dag_id, "--from", (last - timedelta(hours=hours)).isoformat(), "--to", last.isoformat(),
            "--max-active-runs", str(limit),
        )  # fmt: skip
    installation.cli("dags", "trigger", "thumbnails", "--run-id", "sixty")
    deploy(installation)
    if flights:
        installation.cli("dags", "trigger", "flights", "--run-id", FLIGHTS)
    eventually(lambda: not unfinished(installation), timeout=900)
    settings = settings_of(installation)
    age(settings)
    installation.cli("dags", "trigger", "review")
    installation.cli("dags", "trigger", "long_import", "--run-id", "now")
    installation.cli("dags", "trigger", "orders", "--conf", '{"region": "us-east", "limit": 500}')
    runs = json.loads(installation.cli("runs", "list", "--dag", "orders", "--state", "success", "--json"))
    engine = database.create(settings)
    publish_tables(engine, runs[0]["run_id"])
    engine.dispose()
    return str(runs[0]["run_id"])


def deploy(installation: Installation) -> None:
    """Two versions of a bundle, and one that is refused."""
    with tempfile.TemporaryDirectory() as folder:
        for rates, end, message in ((1, "", "First rates"), (2, "", "Rates of December, as finance sent them"), (2, "\n1 / 0", "")):
            Path(folder, "sales_orders.py").write_text(BUNDLED + end)
            Path(folder, "rates.py").write_text(f"EUR = {rates}\nUSD = 1.08\n")
            installation.cli_any("deploy", folder, "--bundle", "sales", "--message", message)


def publish_tables(engine: Engine, run_id: str) -> None:
    """Versions of a table, as tasks of `orders` publish them each hour."""
    columns = {"id": "long", "price": "double", "placed_at": "timestamptz"}
    rows = 0
    for hour in range(24):
        added, before = 900 + 37 * (hour % 5), f"m{hour}" if hour else None
        rows += added
        facts = {"total_records": rows, "added_records": added, "operation": "append", "snapshot_id": 6193847582934758291 + hour,
                 "columns": columns | ({"region": "string"} if hour > 8 else {})}  # fmt: skip
        change = Change(namespace="shop", name="orders", expected=before, location=f"m{hour + 1}", facts=facts)
        number, _ = transact(engine, publish.publish, "lake", [change], by="scheduler")
        place = {"run": run_id, "number": number, "hours": 24 - hour}
        transact(engine, lambda connection, place=place: connection.exec_driver_sql(PUBLISHED, place))


PUBLISHED = """
update table_version set dag_id = 'orders', run_id = %(run)s, task_id = 'publish', map_index = -1, try_number = 1,
       published_at = published_at - make_interval(hours => %(hours)s) where publication = %(number)s
"""
BUNDLED = """
from paceline import DAG, task
import rates

with DAG("sales_orders", schedule="@daily", description="Orders in euros", tags=["sales"]):
    @task
    def convert():
        return rates.EUR
    convert()
"""
#: Moves backfill runs to the time at which they were due, and stretches them: the tasks of these DAGs take a fraction of a second.
AGE = """
set session_replication_role = replica;
create temporary table moved as
    select id, queued_at as was, run_after + interval '4 s' as becomes from dag_run
     where run_type = 'backfill' and ended_at is not null;
-- What updates of assets started: after the run of the update.
insert into moved
select r.id, r.queued_at, max(m.becomes) + interval '5 min' from dag_run r join dag_run_asset_event c on c.dag_run_id = r.id
  join asset_event e on e.id = c.event_id join dag_run s on s.dag_id = e.dag_id and s.run_id = e.run_id join moved m on m.id = s.id
 where r.ended_at is not null group by r.id, r.queued_at;
update asset_event e set created_at = m.becomes + interval '1 min'
  from dag_run s join moved m on m.id = s.id where s.dag_id = e.dag_id and s.run_id = e.run_id;
update task_instance t set
    scheduled_at = becomes + (scheduled_at - was) * {stretch}, queued_at = becomes + (queued_at - was) * {stretch},
    started_at = becomes + (started_at - was) * {stretch}, ended_at = becomes + (ended_at - was) * {stretch}
  from moved m where m.id = t.dag_run_id;
update task_try t set
    scheduled_at = becomes + (t.scheduled_at - was) * {stretch}, queued_at = becomes + (t.queued_at - was) * {stretch},
    started_at = becomes + (t.started_at - was) * {stretch}, ended_at = becomes + (t.ended_at - was) * {stretch}
  from moved m join task_instance i on i.dag_run_id = m.id where i.id = t.task_instance_id;
update event e set
    at = becomes + (at - was) * {stretch}, queued_at = becomes + (queued_at - was) * {stretch},
    started_at = becomes + (started_at - was) * {stretch}
  from moved m where m.id = e.dag_run_id;
update dag_run r set
    queued_at = becomes, started_at = becomes + (started_at - was) * {stretch}, ended_at = becomes + (ended_at - was) * {stretch}
  from moved m where m.id = r.id;
"""
STRETCH = 25


def age(settings: Settings) -> None:
    """Give the backfill runs the times of scheduled ones."""
    with contextlib.closing(psycopg2.connect(settings.owner_database_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(AGE.format(stretch=STRETCH))


def settings_of(installation: Installation) -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in installation.environment.items():
            patch.setenv(name, value)
        return Settings.load()


def readme(browser: Browser, installation: Installation, run_id: str) -> None:
    """Render the pictures of the README, in few colors: they are loaded with its page."""
    look = OUT / "readme"
    look.mkdir(parents=True, exist_ok=True)
    render(browser, installation, run_id, "readme", "light", 1440, list(README.values()))
    for name, page in README.items():
        picture = Image.open(look / f"{page}.png").convert("RGB")
        picture.quantize(COLORS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
        print(IMAGES / f"{name}.png", (IMAGES / f"{name}.png").stat().st_size, "bytes", flush=True)


def unfinished(installation: Installation) -> bool:
    return any(json.loads(installation.cli("runs", "list", "--state", state, "--json")) for state in ("queued", "running"))


def render(browser: Browser, installation: Installation, run_id: str, look: str, theme: str, width: int, only: list[str]) -> None:
    context = browser.new_context(
        base_url=installation.url, storage_state=logged_in(browser, installation, "ada"), color_scheme=theme,
        viewport={"width": width, "height": 900}, reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    failures = json.loads(installation.cli("runs", "list", "--dag", "features", "--state", "failed", "--json"))
    failed = str(failures[0]["run_id"]) if failures else run_id
    for name, (path, clicked) in PAGES.items():
        if not only or name in only:
            page.goto(path.replace(RUN, run_id).replace(FAILED, urllib.parse.quote(failed)))
            settle(page)
            if clicked:
                target = page.locator(clicked).filter(visible=True).first
                if not target.count():
                    continue  # in the menu, which a narrow page folds
                target.click()
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
