"""The log of a try as somebody reads it at three in the morning."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)
LOG = "/dags/noisy/runs/loud/tasks/shout/-/log"


@pytest.fixture(scope="module", autouse=True)
def loud(installation: Installation) -> None:
    installation.cli_any("dags", "trigger", "noisy", "--run-id", "loud", "--wait", "--timeout", "120")


def log_of(page: Page, path: str = LOG) -> Locator:
    page.goto(path)
    log = page.get_by_role("log")
    expect(log.locator(".log-line").first).to_be_visible()
    return log


def test_the_log_leads_to_each_error_with_a_link_to_its_line(page: Page) -> None:
    log = log_of(page)
    jump = page.get_by_role("button", name="Jump to the error")
    jump.click()
    expect(page).to_have_url(re.compile(r"line=\d+"))
    expect(log.locator(".linked")).to_contain_text("Traceback (most recent call last)")
    expect(log).to_contain_text("ValueError: The sum of orders is negative")
    last = page.url
    log.click()
    page.keyboard.press("e")
    expect(log.locator(".linked")).to_contain_text("The region has no price list")
    expect(log).to_contain_text("KeyError: 'eu-north'")

    log_of(page, last)
    expect(log.locator(".linked")).to_contain_text("Traceback (most recent call last)")
    end = log.locator(".log-line", has_text="ValueError: The sum of orders is negative").first.locator(".log-no")
    end.click()
    expect(page).to_have_url(re.compile(rf"line={end.inner_text()}&"))


def test_levels_have_colors_and_filter_the_whole_log(page: Page) -> None:
    log = log_of(page)
    levels = page.get_by_role("group", name="Level")
    levels.get_by_role("button", name="Warnings").click()
    expect(log.locator(".log-line").first).to_contain_text("40 minutes late")
    expect(log.locator(".l-warning")).to_have_count(2)
    expect(log).not_to_contain_text("batch")
    color = "line => getComputedStyle(line).color"
    warning = log.locator(".l-warning").first.evaluate(color)
    levels.get_by_role("button", name="Errors").click()
    error = log.locator(".l-error").first.evaluate(color)
    assert len({warning, error, page.evaluate("getComputedStyle(document.body).color")}) == 3
    expect(log.locator(".l-warning")).to_have_count(0)
    expect(log.locator(".l-error", has_text="ValueError: The sum")).to_have_count(2)
    expect(page.get_by_role("status").filter(has_text="lines")).to_have_text(re.compile(r"^\d+ lines$"))

    log.locator(".log-line", has_text="The region has no price list").locator(".log-no").click()
    expect(levels.get_by_role("button", name="All")).to_have_attribute("aria-pressed", "true")
    expect(log.locator(".linked")).to_contain_text("The region has no price list")
    expect(log).to_contain_text("batch 1499")


def test_groups_and_progress_fold_and_open(page: Page) -> None:
    log = log_of(page)
    log.press("Home")
    expect(log).to_contain_text("copied 100 % of the files")
    expect(log).not_to_contain_text("copied 96 %")
    expect(log.locator(".log-line", has_text="[rows]")).to_contain_text(re.compile(r"100%.*100/100 \[rows\] \(100 states before\)"))
    group = log.get_by_role("button", name="Read the settings")
    expect(group).to_have_attribute("aria-expanded", "false")
    expect(log).not_to_contain_text("limit is set")
    group.click()
    expect(log).to_contain_text("limit is set")
    log.get_by_role("button", name="25 lines of progress before").click()
    expect(log).to_contain_text("copied 96 %")

    page.reload()
    expect(log.locator(".log-line").first).to_be_visible()
    page.get_by_placeholder("Search the whole log").fill("limit is set")
    expect(log.locator(".current")).to_contain_text("limit is set")


def test_lines_wrap_to_their_ends(page: Page) -> None:
    log = log_of(page)
    log.press("Home")
    wide = log.locator(".log-line", has_text="a wide line")
    page.keyboard.press("w")
    expect(page.get_by_label("Wrap")).to_be_checked()
    assert log.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert wide.bounding_box()["height"] > 3 * 19  # type: ignore[index]
    log.press("End")
    end = log.locator(".log-line").last
    expect(end).to_contain_text("The sum of orders is negative")
    box, row = log.bounding_box(), end.bounding_box()
    assert box and row and abs(box["y"] + box["height"] - row["y"] - row["height"]) < 5
    page.reload()
    expect(page.get_by_label("Wrap")).to_be_checked()


def test_phones_wrap_logs(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    log = log_of(page)
    expect(page.get_by_label("Wrap")).to_be_checked()
    assert log.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_times_are_in_the_zone_of_the_pages(page: Page) -> None:
    log = log_of(page)
    log.press("Home")
    stamp = log.locator("time").first
    sent = stamp.get_attribute("datetime") or ""
    page.evaluate("localStorage.setItem('paceline.zone', 'Asia/Kolkata')")
    page.reload()
    log.press("Home")
    shown = stamp.inner_text()
    hour, minute = int(sent[11:13]), int(sent[14:16])
    total = (hour * 60 + minute + 330) % 1440
    assert f" {total // 60:02}:{total % 60:02}:{sent[17:19]}" in shown
    assert sent in (stamp.get_attribute("title") or "")
