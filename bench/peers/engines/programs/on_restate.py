"""Restate: a run is an invocation with a step for each task. `wide` calls a handler for each. The server is a single node."""

import json
import os
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import restate

from bench.peers.engines.programs.protocol import FOLDER, WORKERS, module, serve, wait_until

#: The environment variable with the path of the server's program.
SERVER = "BENCH_RESTATE_SERVER"
LIMIT_S = 300.0

service = restate.Service("bench")


async def noop(before: int) -> int:
    """A step."""
    return before + 1


@service.handler()
async def chain(context: restate.Context, count: int) -> int:
    """Steps one after the other. Returns how many ran."""
    done: int = 0
    for _ in range(count):
        done = await context.run_typed("noop", noop, before=done)
    return done


@service.handler()
async def single(context: restate.Context, before: int) -> int:
    """A task of `wide`."""
    return before + 1


@service.handler()
async def wide(context: restate.Context, count: int) -> int:
    """A step, many calls, a step."""
    done: int = await context.run_typed("first", noop, before=0)
    for call in [context.service_call(single, 0) for _ in range(count)]:
        done += await call
    done = await context.run_typed("last", noop, before=done)
    return done


app = restate.app([service])


def main() -> None:
    """Start the server and the processes of the service, and serve."""
    ingress, admin, node, handlers = (free_address() for _ in range(4))
    _server(ingress, admin, node)
    module("hypercorn", f"{__spec__.name}:app", "-b", handlers, "-w", str(WORKERS), "--log-level", "WARNING")
    wait_until(lambda: _registered(admin, handlers), "Restate's server and service")
    steps = 0

    def call(handler: str, count: int) -> int:
        return int(_post(f"http://{ingress}/bench/{handler}", count))

    def one(handler: str, count: int) -> float:
        nonlocal steps
        steps += call(handler, count)
        return time.time()

    def many(runs: int, count: int) -> float:
        nonlocal steps
        with ThreadPoolExecutor(runs) as threads:
            steps += sum(threads.map(lambda _: call("chain", count), range(runs)))
        return time.time()

    serve({"chain": lambda count: one("chain", count), "many": many, "wide": lambda count: one("wide", count)}, lambda: steps)


def free_address() -> str:
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def _server(ingress: str, admin: str, node: str) -> None:
    folder = Path(os.environ[FOLDER]) / "restate"
    folder.mkdir()
    environment = os.environ | {
        "RESTATE_LOG_FILTER": "warn",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_INGRESS__BIND_ADDRESS": ingress,
        "RESTATE_ADMIN__BIND_ADDRESS": admin,
        "RESTATE_BIND_ADDRESS": node,
    }
    command = [os.environ[SERVER], "--base-dir", str(folder), "--node-name", "bench", "--no-logo"]
    subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL)


def _registered(admin: str, handlers: str) -> bool:
    try:
        _post(f"http://{admin}/deployments", {"uri": f"http://{handlers}"})
    except OSError:
        return False
    return True


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:  # noqa: S310
        return json.load(answer)


if __name__ == "__main__":
    main()
