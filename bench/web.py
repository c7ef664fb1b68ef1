"""`python -m bench web`: REST API and pages on a database with a million task instances. The last line is one JSON object."""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from cryptography.fernet import Fernet

from bench import web_browser, web_data, web_engine
from bench.report import machine, say
from bench.stack import Stack
from bench.web_data import DEEP, MAPPED, SMALL, WIDE, Size
from scheduler.embedded import stack as stacks
from scheduler.store.accounts import accounts, logins
from scheduler.store.db.database import transact

API = "/api/v2"
FIRST = f"/dags/{WIDE}/dagRuns/run-1/taskInstances/task_0000"
#: What Home asks for beside /home: the last day, and the last month, in which all runs of the data ended.
DAY, MONTH = (
    f"/home/trend?since={(datetime.now(UTC) - timedelta(days=days)).strftime('%Y-%m-%dT%H:00:00Z')}&bar_hours={hours}&bars={bars}"
    for days, hours, bars in ((1, 1, 24), (30, 24, 30))
)
OPEN = "state=scheduled&state=queued&state=running&state=deferred&state=up_for_retry&state=up_for_reschedule&state=restarting"
#: The requests of 20 clients, in turn.
MIX = (
    "/dags?limit=50", "/dags/dag_001", "/dags/~/dagRuns?limit=50&order_by=-run_after", "/dags/dag_002/dagRuns?limit=50",
    "/dags/dag_002/grid", "/dags/dag_002/graph", "/dags/dag_003/dagRuns/run-1/timeline", "/home", "/queues", "/workers", "/pools",
    "/dags/dag_003/dagRuns/run-1/taskInstances?limit=100", FIRST, f"{FIRST}/why", f"{FIRST}/tries", f"{FIRST}/logs/1/lines",
    f"/dags/{MAPPED}/dagRuns/run-1/taskInstances/each/listMapped?limit=100", "/eventLogs", "/dagStats?dag_ids=dag_004",
    DAY, MONTH, "/dags/~/runList?limit=50&order_by=-run_after", f"/dags/~/dagRuns/~/taskInstances?{OPEN}&limit=100&order_by=-id",
)  # fmt: skip
GRID = f"/dags/{WIDE}/grid?limit=100"
TIMES = 20
#: Seconds between two requests of a client, as of a person who clicks fast.
PAUSE_S = 0.2
PARTS = ("api", "browser", "live", "clear", "engine")
PASSWORD = "correct horse battery"  # noqa: S105  # of a database that is deleted at the end
#: Seconds after which a change that has not reached a page counts as lost.
LATEST_S = 20.0


def main(arguments: Sequence[str]) -> int:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench web", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, if left out: {', '.join(PARTS)}")
    parser.add_argument("--small", action="store_true", help="as small as it can be: a smoke test, whose times say nothing")
    chosen = parser.parse_args(arguments)
    if set(chosen.parts) - set(PARTS):
        parser.error(f"no part is named {', '.join(sorted(set(chosen.parts) - set(PARTS)))}")
    size = SMALL if chosen.small else Size()
    if not chosen.parts and not importlib.util.find_spec("playwright"):
        say("NOT MEASURED: the pages in a browser, because Playwright is not installed. `make test-browser` installs it.")
        chosen.parts = [part for part in PARTS if part != "browser"]
    with stacks.until_signalled(say):
        print(json.dumps({"machine": machine()} | measure(size, chosen.parts or PARTS)))
        return 0
    return 1


def measure(size: Size, parts: Sequence[str]) -> dict[str, Any]:
    """All figures, in milliseconds unless their names have another unit."""
    found: dict[str, Any] = {}
    if set(parts) & {"api", "browser", "live", "clear"}:
        with Stack({}, schedulers=0, workers=0) as stack:
            found["task_instances"] = web_data.fill(stack, size)
            web_data.write_logs(stack, size)
            say(f"{found['task_instances']} task instances")
            with served(stack) as (address, token):
                found |= _filled(stack, address, token, size, parts)
    if "engine" in parts:
        found |= web_engine.measure(served, size, say)
    return found


def _filled(stack: Stack, address: str, token: str, size: Size, parts: Sequence[str]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    found: dict[str, Any] = {}
    with httpx.Client(base_url=address, headers=headers, timeout=300) as http:
        if "api" in parts:
            found["api"] = _mix(address, headers, size, pause_s=PAUSE_S)
            found["api_without_pauses"] = _mix(address, headers, size, pause_s=0.0)
            found |= {"grid": repeated(http, GRID), "grid_bytes": _bytes(http, GRID)}
            found |= {"graph": repeated(http, f"/dags/{DEEP}/graph")}
            found |= {"log_tail": repeated(http, f"{FIRST}/logs/1/lines")}
            found |= {"log_search": _summary([_timed(lambda: _search(http)) for _ in range(3)])}
        if "browser" in parts:
            found |= web_browser.measure(address, PASSWORD, size)
            say(json.dumps(found["browser"]))
        if "live" in parts:
            found |= asyncio.run(_live(address, headers, stack, size))
        if "clear" in parts:
            found |= _clear(http)
    return found


@contextlib.contextmanager
def served(stack: Stack) -> Iterator[tuple[str, str]]:
    """A web process, and the token of an administrator."""
    account = transact(stack.engine, accounts.create, "bench", PASSWORD, role="admin")
    token, _ = transact(stack.engine, logins.issue, account.id, "token", lasts_s=86_400.0)
    port = stacks.free_port("127.0.0.1", 0)
    environment = stacks.environment_for(stack.settings) | {"PACELINE_WEB_PORT": str(port)}
    environment["PACELINE_CONFIG"] = str(stack.folder / "settings.toml")
    environment["PACELINE_CORE_FERNET_KEY"] = Fernet.generate_key().decode()
    with subprocess.Popen([*stacks.PACELINE, "web"], env=environment) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            stack.wait(lambda: _answers(address), 60.0, "the web process to answer")
            yield address, token
        finally:
            process.terminate()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/alive").status_code == 200
    except httpx.HTTPError:
        return False


def _mix(address: str, headers: dict[str, str], size: Size, *, pause_s: float) -> dict[str, Any]:
    """The times of many clients at once, for each path and over all. Each pauses between its requests."""
    times: dict[str, list[float]] = defaultdict(list)
    ends_at = time.monotonic() + size.seconds

    def client(number: int) -> None:
        with httpx.Client(base_url=address, headers=headers, timeout=60) as http:
            turn = number
            while time.monotonic() < ends_at:
                path = MIX[turn % len(MIX)]
                times[path].append(_timed(lambda path=path: http.get(API + path).raise_for_status()))  # type: ignore[misc]
                turn += 1
                time.sleep(pause_s)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(size.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [one for found in times.values() for one in found]
    slowest = {path: _summary(found)["p95"] for path, found in times.items()}
    return _summary(every) | {"requests_per_s": round(len(every) / size.seconds, 1), "p95_by_path": slowest}


async def _live(address: str, headers: dict[str, str], stack: Stack, size: Size) -> dict[str, Any]:
    """How long a change of state takes to reach open pages."""
    changed_at: dict[str, float] = {}
    delays: list[float] = []
    ready = asyncio.Semaphore(0)

    async def page(http: httpx.AsyncClient) -> None:
        async with http.stream("GET", f"{API}/events?dag_id={WIDE}") as answer:
            async for line in answer.aiter_lines():
                if line == "event: ready":
                    ready.release()
                elif line.startswith("data: {") and '"tasks":[{' in line:
                    for task in json.loads(line[6:])["tasks"]:
                        delays.append((time.monotonic() - changed_at[task["task_id"]]) * 1000)

    limits = httpx.Limits(max_connections=size.pages + 10)
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60, limits=limits) as http:
        pages = [asyncio.create_task(page(http)) for _ in range(size.pages)]
        for _ in pages:
            await ready.acquire()
        await asyncio.sleep(1)
        for number in range(TIMES):
            name = f"task_{number % size.wide:04}"
            await asyncio.to_thread(_change, stack, name, changed_at)
            await asyncio.sleep(0.37)
        until = time.monotonic() + LATEST_S
        while len(delays) < TIMES * size.pages and time.monotonic() < until:
            await asyncio.sleep(0.05)
        for one in pages:
            one.cancel()
        await asyncio.gather(*pages, return_exceptions=True)
    return {"live_delay": _summary(delays), "live_messages": len(delays), "live_expected": TIMES * size.pages}


def _change(stack: Stack, task_id: str, changed_at: dict[str, float]) -> None:
    with contextlib.closing(stack.connect()) as connection, connection.cursor() as cursor:
        # Before the commit: a page may get the change before this thread continues.
        changed_at[task_id] = time.monotonic()
        cursor.execute(
            "update task_instance set state = case state when 'failed' then 'success' else 'failed' end where task_id = %s"
            " and map_index < 0 and dag_run_id = (select id from dag_run where dag_id = %s and run_id = 'run-1')",
            (task_id, WIDE),
        )


def _clear(http: httpx.Client) -> dict[str, Any]:
    """Seconds for the preview of a change of all task instances of WIDE, and for the change if the preview is still right."""
    body: dict[str, Any] = {"filter": {"dag_ids": [WIDE]}}
    counts: list[int] = []

    def post(**options: Any) -> None:
        answer = http.post(f"{API}/clearByFilter", json=body | options)
        counts.append(answer.raise_for_status().json()["count"])

    preview_s, clear_s = _timed(post) / 1000, _timed(lambda: post(dry_run=False, expected=counts[0])) / 1000
    assert counts[0] == counts[1]
    return {"cleared": counts[0], "clear_preview_s": round(preview_s, 2), "clear_s": round(clear_s, 2)}


def _search(http: httpx.Client) -> None:
    """Find the only line of the whole log that has the text."""
    more: dict[str, Any] = {"next_offset": 0, "next_line": 0}
    found: list[Any] = []
    while not found or not more["is_complete"]:
        place = {"offset": more["next_offset"], "line": more["next_line"]}
        more = http.get(f"{API}{FIRST}/logs/1/search", params={"text": "needle", **place}).raise_for_status().json()
        found += more["matches"]
    assert len(found) == 1


def repeated(http: httpx.Client, path: str) -> dict[str, float]:
    """The times of a request, one after the other."""
    found = _summary([_timed(lambda: http.get(API + path).raise_for_status()) for _ in range(TIMES)])
    say(f"{path}: {found}")
    return found


def _bytes(http: httpx.Client, path: str) -> int:
    """The size of a response as it is sent."""
    with http.stream("GET", API + path) as answer:
        return sum(len(part) for part in answer.iter_raw())


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def _summary(times: Sequence[float]) -> dict[str, float]:
    if len(times) < 2:
        return {"p50": round(sum(times), 1), "p95": round(sum(times), 1)}
    return {"p50": round(statistics.median(times), 1), "p95": round(statistics.quantiles(times, n=20)[-1], 1)}
