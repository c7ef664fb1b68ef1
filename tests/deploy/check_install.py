#!/usr/bin/env python3
"""Follow docs/how-to/install.md in an empty folder, command by command, with a given wheel.

It installs packages: run it as root on a bare Debian that you throw away, such as a container.
usage: check_install.py WHEEL. Prints one JSON object; exits 1 if a command fails.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/install.md"
#: What the page installs: a wheel somewhere on the reader's machine.
INSTALLED = re.compile(r'"/src/paceline/dist/paceline-[^"]+\.whl\[standalone\]"')
#: `paceline standalone` runs until a signal. Meanwhile, a DAG of the project runs, and the pages answer.
STANDALONE = """
paceline standalone & stack=$!
for attempt in $(seq 90); do
    kill -0 $stack
    if paceline dags show hello >/dev/null 2>&1; then break; fi
    sleep 2
done
paceline dags trigger hello --wait --timeout 300
python -c "from urllib.request import urlopen as get; print(get('http://127.0.0.1:${PACELINE_WEB_PORT:-8080}/alive').read())"
kill -TERM $stack
wait $stack
"""


def main() -> int:
    wheel = Path(sys.argv[1]).resolve()
    text = PAGE.read_text(encoding="utf-8")
    commands = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    assert INSTALLED.search(commands) and "\npaceline standalone" in commands, "the page has changed"
    script = re.sub(r"\npaceline standalone.*\n", lambda _: STANDALONE, INSTALLED.sub(f'"{wheel}[standalone]"', commands))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-exc", script], cwd=folder, stdout=sys.stderr, check=False)
        size = subprocess.run(["du", "-sm", f"{folder}/.venv"], capture_output=True, text=True, check=False).stdout.split("\t")[0]
    result = {
        "ok": done.returncode == 0,
        "exit": done.returncode,
        "environment_mb": size,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(result))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
