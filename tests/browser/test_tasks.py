"""The list of task instances of all DAGs, to which the counts of other pages lead; and what empty lists offer."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

from browser.conftest import Installation

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
expect.set_options(timeout=60_000)


def test_counts_of_pools_and_queues_lead_to_what_they_count(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "stranded", "--run-id", "counted")
    try:
        page.goto("/queues")
        page.get_by_role("row", name="gpu_hosts").get_by_role(
            "link", name=re.compile(r"^\d+ tasks? (queued|waiting) in gpu_hosts")
        ).first.click()
        expect(page).to_have_url(re.compile(r"/tasks\?state=(queued|scheduled)&queue=gpu_hosts"))
        expect(page.locator("tbody tr", has_text="stranded / render").filter(has_text="counted")).to_be_visible()
        expect(page.locator("tbody tr", has_not_text="stranded / render")).to_have_count(0)
        page.get_by_role("button", name="Delete: Queue gpu_hosts").click()
        expect(page).to_have_url(re.compile(r"/tasks\?state=\w+$"))

        page.goto("/pools")
        page.get_by_role("row", name="default_pool").get_by_role(
            "link", name=re.compile("slots? of (queued|waiting) tasks")
        ).first.click()
        expect(page).to_have_url(re.compile(r"/tasks\?state=\w+&pool=default_pool"))
        expect(page.locator("tbody tr", has_text="render").first).to_be_visible()

        page.goto("/")
        page.locator(".tile", has_text="Queued tasks").click()
        expect(page.get_by_label("State")).to_have_value("queued")
        row = page.locator("tbody tr", has_text="render").filter(has_text="counted")
        expect(row).to_be_visible()
        row.get_by_role("link", name="Why it waits").click()
        expect(page).to_have_url(re.compile(r"/dags/stranded/runs/counted/tasks/render/-/why$"))
        expect(page.get_by_text("No live worker listens to queue 'gpu_hosts'").first).to_be_visible()
    finally:
        installation.cli("runs", "mark", "stranded", "counted", "failed")


#: Numbers of things in the text of a page that no link, button or field leads on from. A chart has links of its own.
COUNTS = """
() => {
    const all = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT), found = []
    while (all.nextNode()) {
        const of = all.currentNode.parentElement, text = of.textContent.trim()
        const isNumber = /^\\u00d7 ?\\d|^[\\d,]*[1-9][\\d,]*( \\/ [\\d,]+)?$/.test(text)
        const isCount = isNumber || /^[1-9][\\d,]* (waiting|queued|running|tasks?|runs?)\\b/.test(text)
        if (!isCount) continue
        if (of.closest("a, button, label, select, th, pre, [role=log], .u-wrap, .hours, .gantt, .pager, .filters, .tour")) continue
        if (!['slots', 'use', 'try', 'status'].includes(of.closest('[data-key]')?.dataset.key)) found.push(text)
    }
    return found
}
"""


def test_every_count_is_a_link(page: Page, installation: Installation) -> None:
    """A number of slots is a setting, and those in use are the tasks beside them; the number of a try or a status is no count."""
    installation.cli("dags", "trigger", "stranded", "--run-id", "links")
    installation.cli_any(
        "dags", "trigger", "journey", "--run-id", "links", "--conf", '{"fail": true}', "--wait", "--timeout", "120"
    )
    try:
        found = {}
        for path in (
            "/", "/dags", "/runs", "/tasks", "/pools", "/backfills", "/bundles", "/assets", "/imports", "/actions", "/dags/journey",
            "/dags/journey/runs", "/dags/journey/runs/links", "/dags/journey/runs/links/compare",
        ):  # fmt: skip
            page.goto(path)
            page.wait_for_selector("main .head + *")
            expect(page.locator("[aria-busy]")).to_have_count(0)
            if counts := page.evaluate(COUNTS):
                found[path] = counts
        assert found == {}
    finally:
        installation.cli("runs", "mark", "stranded", "links", "failed")


def test_filters_that_nothing_matches_are_removed(page: Page, installation: Installation) -> None:
    installation.cli("variables", "set", "region", "eu")
    installation.cli("connections", "set", "shelf", "--conn-type", "http", "--conn-host", "shelf")
    for path, name in (
        ("/dags?q=nothing_like_it", "DAG"), ("/runs?q=nothing_like_it", "run"), ("/tasks?state=success&q=nothing_like_it", "task"),
        ("/assets?q=nothing_like_it", "asset"), ("/variables?q=nothing_like_it", "variable"),
        ("/connections?q=nothing_like_it", "connection"), ("/audit?owner=nothing_like_it", "entry"),
    ):  # fmt: skip
        page.goto(path)
        expect(page.get_by_role("heading", level=3)).to_contain_text("matches these filters")
        page.get_by_role("main").locator(".empty").get_by_role("button", name="Remove the filters").click()
        expect(page).not_to_have_url(re.compile("nothing_like_it"))
        if name != "task":
            expect(page.locator("tbody tr").first).to_be_visible()
    installation.cli("connections", "delete", "shelf", "--yes")
    installation.cli("variables", "delete", "region", "--yes")


def test_empty_pages_have_the_next_step(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answers = {
        "assets": {"assets": [], "total_entries": 0}, "hitlDetails": {"hitl_details": [], "total_entries": 0},
        "workers": {"workers": [], "total_entries": 0}, "bundles": {"bundles": [], "total_entries": 0},
    }  # fmt: skip

    def answer(route: Route) -> None:
        name = re.sub(r".*/([A-Za-z]+)(\?.*)?$", r"\1", route.request.url)
        route.fulfill(json=answers[name])

    page.route(re.compile(rf"/api/v2/(.*/)?({'|'.join(answers)})(\?|$)"), answer)

    def copied(path: str) -> str:
        page.goto(path)
        page.locator(".empty").get_by_role("button", name="Copy").click()
        expect(page.locator(".empty").get_by_role("button", name="Copied")).to_be_visible()
        return str(page.evaluate("navigator.clipboard.readText()"))

    # What is copied is a DAG file.
    for path, dag_id in (("/assets", "count_stock"), ("/actions", "release")):
        text = copied(path)
        exec(compile(text, "copied.py", "exec"), {"__name__": "copied"})
        assert f'DAG("{dag_id}"' in text
    assert copied("/queues") == "paceline worker"
    assert copied("/bundles").startswith("paceline deploy ")
    assert copied("/dags/journey/docs").startswith('with DAG("journey", doc_md=')


def test_a_log_that_waits_leads_to_what_it_waits_for(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "stranded", "--run-id", "silent")
    page.goto("/dags/stranded/runs/silent/tasks/render/-/log")
    page.locator(".empty").get_by_role("link", name="Why it waits").click()
    expect(page.get_by_text("No live worker listens to queue 'gpu_hosts'").first).to_be_visible()
    installation.cli("runs", "mark", "stranded", "silent", "failed")


def test_an_empty_list_of_backfills_starts_one(page: Page) -> None:
    empty = {"backfills": [], "total_entries": 0, "total_entries_limit": None, "next_cursor": None, "previous_cursor": None}
    page.route("**/api/v2/backfills?*", lambda route: route.fulfill(json=empty))
    page.goto("/backfills")
    page.locator(".empty").get_by_role("button", name="New backfill").click()
    dialog = page.get_by_role("dialog", name="New backfill")
    expect(dialog.get_by_role("button", name="Start the backfill")).to_be_disabled()
    dialog.get_by_label("DAG").fill("nothing like it")
    expect(dialog).to_contain_text("No DAG with this ID has a schedule")
    dialog.get_by_label("DAG").fill("ledger")
    expect(dialog).to_contain_text(re.compile("[67] runs will be created"))
    dialog.get_by_role("button", name="Yesterday").click()
    expect(dialog).to_contain_text("1 run will be created")
    dialog.get_by_role("button", name="Cancel").click()


def test_a_list_of_very_many_tasks_counts_the_first_ones_and_goes_on(page: Page, installation: Installation) -> None:
    installation.cli("dags", "trigger", "stranded", "--run-id", "counted")
    asked: list[str] = []

    def count_few(route: Route) -> None:
        asked.append(route.request.url)
        answer = route.fetch().json()
        route.fulfill(
            json=answer
            | {"total_entries": 10_000, "total_entries_limit": 10_000, "task_instances": answer["task_instances"][:1] * 100}
        )

    page.route("**/taskInstances?*", count_few)
    page.goto("/tasks")
    expect(page.locator(".pager")).to_contain_text("100 of at least 10,000")
    expect(page.locator(".pager").get_by_role("button", name="Next")).to_be_enabled()
    assert "count_limit=10000" in asked[0]
    installation.cli("runs", "mark", "stranded", "counted", "failed")


def test_an_empty_list_of_dags_shows_an_example_and_the_broken_files(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.route("**/api/v2/dags?*", lambda route: route.fulfill(json={"dags": [], "total_entries": 0}))
    page.goto("/dags")
    page.get_by_role("button", name="Copy").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    compile(copied, "hello.py", "exec")
    assert "def hello():" in copied
    page.set_viewport_size({"width": 390, "height": 900})
    expect(page.get_by_role("button", name="Copied")).to_be_in_viewport(ratio=1)
    page.get_by_role("link", name=re.compile(r"Show \d+ DAG files? that cannot be read")).click()
    expect(page.get_by_role("heading", name=re.compile("broken.py, line"))).to_be_visible()
