"""`deploy/compose-autoscale`, with a stand-in for Docker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/compose-autoscale"
#: `compose exec` prints a number, and three more while the first `compose up` still runs.
DOCKER = """#!/usr/bin/env bash
until_there() { until [ -e "$1" ]; do sleep 0.02; done; }
case "$2" in
  exec) echo 4; until_there "$FOLDER/started"; printf '3\\n2\\n5\\n'; touch "$FOLDER/printed"; until_there "$FOLDER/never";;
  up) touch "$FOLDER/started"; until_there "$FOLDER/printed"; echo "$7" >>"$FOLDER/scaled";;
esac
"""


def test_numbers_that_arrive_while_containers_stop_are_skipped_but_for_the_last(tmp_path: Path) -> None:
    docker, scaled = tmp_path / "docker", tmp_path / "scaled"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "FOLDER": str(tmp_path)}

    scaling = subprocess.Popen([SCRIPT, "worker", "--queue", "default"], env=environment, stderr=sys.stderr, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while not (scaled.exists() and "worker=5" in scaled.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.killpg(scaling.pid, signal.SIGKILL)
        scaling.wait()

    assert scaled.read_text().split() == ["worker=4", "worker=5"]
