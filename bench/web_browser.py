"""The part of `bench web` that needs Chromium: the delays that users see. `make test-browser` installs Chromium."""

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.measure import quantile
from bench.web_data import DEEP, WIDE, Size

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
TIMES = 10
#: The sizes in pixels that web/src/grid/Grid.tsx draws with.
CELL = {"row": 24, "column": 18, "head": 74}
#: A window in which 100 x 100 cells are visible, and one of a usual size.
LARGE, USUAL = {"width": 2140, "height": 2700}, {"width": 1440, "height": 900}
SCROLLED, SPEED = 9000, 1500
#: Frames of the compositor, as the performance panel of Chromium counts them.
TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline.frame"]
#: Resolves to the moment, in milliseconds since the navigation, at which an element is there and painted.
SEEN = """
selector => new Promise(resolve => {
    const look = () => document.querySelector(selector)
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))) : requestAnimationFrame(look)
    look()
})
"""
CLICKED = "addEventListener('click', () => { window.clickedAt = performance.now() }, {capture: true, once: true})"
PLACE = """
([row, run, size]) => {
    const box = document.querySelector('[role=application]')
    const canvas = box.querySelector('canvas').getBoundingClientRect()
    const [x, y] = [(run + 0.5) * size.column, size.head + (row + 0.5) * size.row]
    return [canvas.left + x - box.scrollLeft, canvas.top + y - box.scrollTop]
}
"""


def measure(address: str, password: str, size: Size) -> dict[str, Any]:
    """All figures, in milliseconds unless their names have another unit."""
    with _browser() as browser:
        cookies = _log_in(browser, address, password)

        @contextmanager
        def page(viewport: dict[str, int] = USUAL) -> Iterator["Page"]:
            context = browser.new_context(base_url=address, storage_state=cookies, viewport=viewport)
            context.set_default_timeout(60_000)
            yield context.new_page()
            context.close()

        grid = f"/dags/{WIDE}?runs={size.wide_runs}"
        found: dict[str, Any] = {}
        with page() as one:
            found["grid_usable_first"] = round(_open(one, grid, "[role=application] canvas"))
            found["grid_usable"] = _summary([_open(one, grid, "[role=application] canvas") for _ in range(TIMES)])
            found |= _clicks(one, grid, size)
        firsts = []
        for _ in range(5):
            with page() as one:
                firsts.append(_open(one, f"/dags/{DEEP}/graph", ".graph-node"))
        found["graph_usable_first"] = _summary(firsts)
        with page() as one:
            log = f"/dags/{WIDE}/runs/run-1/tasks/task_0000/-/log"
            found["log_usable"] = _summary([_open(one, log, ".log-line") for _ in range(3)])
        for name, viewport in (("scroll", USUAL), ("scroll_10000_visible", LARGE)):
            with page(viewport) as one:
                found[name] = _scroll(browser, one, grid, viewport)
    return {"browser": found}


@contextmanager
def _browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def _log_in(browser: "Browser", address: str, password: str) -> Any:
    context: BrowserContext = browser.new_context()
    data = {"username": "bench", "password": password}
    context.request.post(f"{address}/auth/login", data=data, fail_on_status_code=True)
    cookies = context.storage_state()
    context.close()
    return cookies


def _open(page: "Page", path: str, selector: str) -> float:
    """From the navigation to the painted element."""
    page.goto(path, wait_until="commit")
    seen: float = page.evaluate(SEEN, selector)
    return seen


def _clicks(page: "Page", grid: str, size: Size) -> dict[str, Any]:
    """From the click on a cell of the grid to the painted log of its task, and the requests for that."""
    times: list[float] = []
    counts: list[int] = []
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "/api/" in request.url else None)
    for number in range(1, TIMES):
        _open(page, grid, "[role=application] canvas")
        _unfold(page)
        page.evaluate(CLICKED)
        x, y = page.evaluate(PLACE, [number + 1, size.wide_runs - 1, CELL])
        requests.clear()
        page.mouse.click(x, y)
        seen = page.evaluate(SEEN, ".log-line")
        times.append(seen - page.evaluate("window.clickedAt"))
        page.wait_for_timeout(300)
        counts.append(sum("/api/v2/events" not in url for url in requests))
    return {
        "click": _summary(times),
        "click_requests": max(counts),
        "click_urls": [url.partition("/api/v2")[2] for url in requests],
    }


def _unfold(page: "Page") -> None:
    unfold = page.get_by_role("button", name="Unfold all")
    if unfold.count():
        unfold.click()
    page.get_by_role("button", name="Fold all").wait_for()


def _scroll(browser: "Browser", page: "Page", grid: str, viewport: dict[str, int]) -> dict[str, Any]:
    """The times between the frames of a grid that scrolls all the time, from a trace of Chromium."""
    _open(page, grid, "[role=application] canvas")
    _unfold(page)
    page.wait_for_timeout(500)
    cdp = page.context.new_cdp_session(page)
    gesture = {
        "x": viewport["width"] // 2, "y": viewport["height"] // 2, "yDistance": -SCROLLED, "speed": SPEED,
        "gestureSourceType": "mouse", "preventFling": True,
    }  # fmt: skip
    browser.start_tracing(page=page, categories=TRACED)
    cdp.send("Input.synthesizeScrollGesture", gesture)
    trace = json.loads(browser.stop_tracing())
    scrolled = page.evaluate("document.querySelector('[role=application]').scrollTop")
    frames = sorted(event["ts"] / 1000 for event in trace["traceEvents"] if event["name"] == "DrawFrame")
    # The first and last frames belong to the start and the end of the gesture.
    gaps = sorted(after - before for before, after in itertools.pairwise(frames[3:-3]))
    if not gaps:
        return {"frames": len(frames), "scrolled_px": scrolled}
    return {
        "frames": len(gaps), "p50": round(quantile(gaps, 0.5), 1), "p95": round(quantile(gaps, 0.95), 1),
        "worst": round(gaps[-1], 1), "over_50": sum(gap > 50 for gap in gaps), "scrolled_px": scrolled,
        "cells_passed": int(scrolled / CELL["row"]) * min(100, viewport["width"] // CELL["column"]),
    }  # fmt: skip


def _summary(times: list[float]) -> dict[str, float]:
    found = sorted(times)
    return {"p50": round(quantile(found, 0.5), 1), "p95": round(quantile(found, 0.95), 1), "worst": round(found[-1], 1)}
