"""Home: what waits, what failed, and the next runs."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Installation
from browser.test_pages import run_of

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def age_s(text: str) -> int:
    """The seconds of "3 min ago"; 0 for what was just now."""
    found = re.match(r"(\d+) (s|min|h|d) ago", text)
    return int(found[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86_400}[found[2]] if found else 0


def test_a_task_in_a_queue_without_a_worker_waits_in_red(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "stranded", "--run-id", "nobody")
    page.goto("/")
    waiting = page.locator(".card", has=page.get_by_role("heading", name="Waiting longest"))
    row = waiting.locator("li.wrong", has_text="No live worker listens to queue 'gpu_hosts'")
    expect(row).to_contain_text("1")
    queue = page.locator(".card", has=page.get_by_role("heading", name="Queues")).locator("li", has_text="gpu_hosts")
    expect(queue).to_have_class("wrong")
    expect(queue).to_contain_text("1 waiting")
    expect(queue).to_contain_text("no live worker")
    ages = waiting.locator("li > :last-child").evaluate_all("all => all.map(one => one.textContent)")
    assert [age_s(age) for age in ages] == sorted((age_s(age) for age in ages), reverse=True)
    row.get_by_role("link").click()
    expect(page.get_by_role("row", name="gpu_hosts")).to_contain_text("no live worker")
    installation.cli("runs", "mark", "stranded", "nobody", "failed")


def test_unanswered_questions_are_among_what_waits(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "review", "--run-id", "home")
    page.goto("/")
    waiting = page.locator(".card", has=page.get_by_role("heading", name="Waiting longest"))
    expect(waiting.locator("li", has_text="wait for an answer")).to_contain_text("2")
    waiting.get_by_role("link", name="Questions wait for an answer.").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    installation.cli("runs", "mark", "review", "home", "failed")


def test_bars_of_each_range_lead_to_their_runs(page: Page, installation: Installation) -> None:
    run_of(installation, "--conf", '{"fail": true}', prefix="past")
    page.goto("/")
    past = page.get_by_role("group", name="Finished runs, 24 h")
    expect(past.locator("> div")).to_have_count(24)
    past.get_by_role("link").last.click()
    expect(page).to_have_url(re.compile(r"/runs\?ended_from=.*ended_until="))
    expect(page.locator("tbody tr", has_text="past-").first).to_be_visible()
    page.get_by_role("button", name="Ended").click()
    expect(page).to_have_url(re.compile(r"/runs$"))

    for name, bars in (("7 days", 28), ("30 days", 30)):
        page.goto("/")
        page.get_by_role("group", name="Range").get_by_role("button", name=name).click()
        expect(page.get_by_role("group", name=f"Finished runs, {name}").locator("> div")).to_have_count(bars)
        expect(page.get_by_role("group", name=f"Finished runs, {name}").get_by_role("link").last).to_be_visible()
        page.get_by_role("group", name=f"Finished runs, {name}").get_by_role("link").last.click()
        expect(page).to_have_url(re.compile(r"/runs\?ended_from=.*ended_until="))
        expect(page.locator("tbody tr", has_text="past-").first).to_be_visible()
        page.go_back()
        failed = page.locator(".tile", has_text=f"Failed runs, {name}")
        count = failed.locator(".num").inner_text()
        failed.click()
        expect(page.locator("main")).to_contain_text(f"of {count}")
        expect(page.locator("tbody .state").first).to_have_text("failed")


def test_home_shows_the_success_of_tags_next_runs_deadlines_and_questions(page: Page, installation: Installation) -> None:
    run_of(installation, prefix="tagged")
    installation.cli("dags", "trigger", "late", "--run-id", "soon")
    page.goto("/")

    def card(name: str) -> Locator:
        return page.locator(".card", has=page.get_by_role("heading", name=name))

    expect(card("Deadlines at risk").locator("li", has_text="late")).to_contain_text(re.compile(r"in (29|30) min"))
    expect(card("Next scheduled runs").locator("li").first).to_contain_text("in ")
    row = card("Success by tag").locator("li", has_text="tests")
    expect(row).to_contain_text(re.compile(r"\d+ %$"))
    expect(row.locator(".tag-trend > i")).to_have_count(24)
    heights = row.locator(".tag-trend b").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert max(heights) > 5
    page.get_by_role("group", name="Range").get_by_role("button", name="7 days").click()
    expect(row.locator(".tag-trend > i")).to_have_count(28)
    row.get_by_role("link").click()
    expect(page).to_have_url(re.compile(r"/dags\?tag=tests"))
    page.go_back()
    card("Unanswered questions").get_by_role("link", name="Send the invoices without the late shop?").click()
    expect(page.get_by_role("button", name="Respond")).to_be_visible()
    installation.cli("runs", "mark", "late", "soon", "failed")
