"""The calendar of a DAG, and the zone of all times: the days, hours and planned runs in it, its picker, and sentences of Why."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page, expect
from support.waiting import eventually

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
#: A day of which no other test makes runs, and the hours of three runs in UTC, which are on the next day in Kolkata and Tokyo.
DAY = (datetime.now(UTC) - timedelta(days=40)).date()
NEXT = DAY + timedelta(days=1)
HOURS = (20, 21, 22)
INDIA = """
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from paceline import DAG, task

with DAG("india", schedule="0 3 * * *", start_date=datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Kolkata"))) as india:
    @task(retries=1, retry_delay=timedelta(hours=3))
    def load():
        raise ConnectionError("The shop is closed")
    load()
"""


@pytest.fixture(scope="module")
def three_runs(installation: Installation) -> None:
    first, last = (f"{DAY}T{hour}:00:00+00:00" for hour in (HOURS[0], HOURS[-1]))
    installation.cli("backfill", "create", "inventory", "--from", first, "--to", last)

    def done() -> bool:
        runs = json.loads(installation.cli("runs", "list", "--dag", "inventory", "--state", "success", "--json"))
        return sum(str(run["logical_date"]).startswith(str(DAY)) for run in runs) == len(HOURS)

    eventually(done, timeout=120)


@pytest.fixture
def india(installation: Installation) -> Iterator[str]:
    """The ID of a run of a DAG with a zone of its own, whose task waits for its second try."""
    file = Path(installation.environment["PACELINE_DAGS_FOLDER"]) / "india.py"
    file.write_text(INDIA)
    eventually(lambda: "india" in installation.cli("dags", "list"), timeout=60)
    installation.cli("dags", "trigger", "india", "--run-id", "closed")

    def waits() -> bool:
        return "up_for_retry" in installation.cli("tasks", "list", "india", "closed", "--json")

    eventually(waits, timeout=60)
    yield "closed"
    installation.cli("runs", "mark", "india", "closed", "failed")
    file.unlink()


def choose_zone(page: Page, name: str) -> None:
    page.get_by_title("The zone of all times").click()
    page.get_by_label("Search a zone").fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_title("The zone of all times")).to_have_text(name)


def hours_of(page: Page, zone: str) -> dict[int, int]:
    """The number of runs of each hour of the day in the chart, which names them."""
    said = page.get_by_role("img", name=f"Runs by the hour of the day in {zone}: ").get_attribute("aria-label") or ""
    return {int(hour): int(runs) for hour, runs in re.findall(r"(\d+): (\d+)", said.partition(": ")[2])}


def test_days_and_hours_are_those_of_the_chosen_zone_and_lead_to_their_runs(
    page: Page, installation: Installation, three_runs: None
) -> None:
    page.goto("/dags/inventory/calendar")
    day = page.get_by_role("link", name=re.compile(rf"^{DAY}\s+3 success$"))
    expect(day).to_be_visible()
    before = hours_of(page, "UTC")
    assert all(before[hour] >= 1 for hour in HOURS)
    day.click()
    expect(page).to_have_url(re.compile(rf"/dags/inventory/runs\?from={DAY}&until={DAY}$"))
    expect(page.locator("tbody tr")).to_have_count(3)

    page.go_back()
    choose_zone(page, "Asia/Tokyo")
    expect(page.get_by_role("img", name=re.compile(rf"^{DAY}\s+no runs$"))).to_be_visible()
    day = page.get_by_role("link", name=re.compile(rf"^{NEXT}\s+3 success$"))
    expect(day).to_be_visible()
    after = hours_of(page, "Asia/Tokyo")
    assert all(after[(hour + 9) % 24] >= 1 for hour in HOURS)
    day.click()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.get_by_role("main")).to_contain_text(f"{NEXT} 05:00")


def test_the_calendar_names_weekdays_and_plans_a_week(page: Page, three_runs: None) -> None:
    page.goto("/dags/inventory/calendar")
    expect(page.locator(".calendar-names span")).to_have_text(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    weeks = page.locator(".calendar-week")
    first = weeks.last.locator(".calendar-day").first.get_attribute("aria-label") or ""
    assert datetime.fromisoformat(first.split()[0]).weekday() == 0
    labels = page.locator(".calendar-names span").evaluate_all("all => all.map(one => Math.round(one.getBoundingClientRect().top))")
    cells = weeks.last.locator(".calendar-day").evaluate_all("all => all.map(one => Math.round(one.getBoundingClientRect().top))")
    assert all(abs(label - cell) <= 10 for label, cell in zip(labels, cells, strict=True))

    planned = page.locator(".calendar-day.planned[aria-label]")
    first = datetime.now(UTC).replace(minute=0) + timedelta(hours=1)
    expect(planned).to_have_count(len({(first + timedelta(hours=hour)).date() for hour in range(7 * 24)}))
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    expect(page.get_by_role("img", name=re.compile(rf"^{tomorrow}\s+24 planned$"))).to_be_visible()
    expect(page.get_by_text(re.compile(r"^Next run: \d{4}-\d\d-\d\d \d\d:00 UTC$"))).to_be_visible()

    # It uses the page, and a narrow one scrolls it alone.
    box, card = page.locator(".calendar-weeks").bounding_box(), page.locator(".calendar").bounding_box()
    assert box is not None and card is not None and box["width"] > 0.9 * card["width"]
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_dag_offers_its_own_zone_and_why_speaks_in_it(page: Page, installation: Installation, india: str) -> None:
    page.goto(f"/dags/india/runs/{india}/tasks/load/-/why")
    said = page.locator(".card", has=page.get_by_role("heading", name="Now")).locator("li")
    expect(said).to_contain_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))
    path = f"/api/v2/dags/india/dagRuns/{india}/taskInstances/load"
    due = datetime.fromisoformat(page.request.get(path).json()["due_at"])

    page.goto("/dags/india")
    expect(page.locator(".dag-facts")).to_contain_text("every day at 03:00 Asia/Kolkata")
    page.get_by_role("button", name="Asia/Kolkata", exact=True).click()
    expect(page.get_by_title("The zone of all times")).to_have_text("Asia/Kolkata")
    expect(page.get_by_role("button", name="Asia/Kolkata", exact=True)).to_have_count(1)
    page.get_by_role("link", name="Calendar").click()
    expect(page.get_by_text(re.compile(r"^Next run: \d{4}-\d\d-\d\d 03:00 Asia/Kolkata$"))).to_be_visible()
    page.goto(f"/dags/india/runs/{india}/tasks/load/-/why")
    expect(said).to_contain_text(f"{due.astimezone(ZoneInfo('Asia/Kolkata')):%Y-%m-%d %H:%M:%S} Asia/Kolkata")

    # The form of a backfill asks for times in it.
    page.goto("/backfills?new=india")
    page.get_by_label("From (Asia/Kolkata)").fill("2026-11-02T00:00")
    page.get_by_label("To (Asia/Kolkata)").fill("2026-11-03T23:59")
    expect(page.get_by_text("2 runs will be created")).to_be_visible()
    expect(page.get_by_role("dialog")).to_contain_text("2026-11-02 03:00, 2026-11-03 03:00")
