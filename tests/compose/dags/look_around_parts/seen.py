"""The secrets of a container that author code can see. All begin with the same word in the stack of run.py.

Nothing here may spell the word in one piece, or it would find itself.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

#: Seconds to look from a DAG: longer than the pause between two health checks, whose processes get the whole environment.
LONG_S = 20
WORD = b"Ses" + b"ame"


def look(seconds: float) -> set[str]:
    """Where the word is found among all processes but this one."""
    found, deadline = set(), time.monotonic() + seconds
    while True:
        for folder in Path("/proc").glob("[0-9]*"):
            if folder.name == str(os.getpid()):
                continue
            for name in ("environ", "cmdline"):
                try:
                    if WORD in (folder / name).read_bytes():
                        found.add(f"{name} of {(folder / 'comm').read_text().strip()}")
                except OSError:
                    continue  # it ended, or is not for us
        if time.monotonic() > deadline:
            return found
        time.sleep(0.002)


def report() -> str:
    """The secrets in the environment of this process, and those that a program finds that it starts."""
    own = [name for name, value in os.environ.items() if WORD.decode() in value]
    output = subprocess.run([sys.executable, __file__, str(LONG_S)], stdout=subprocess.PIPE, text=True, check=True).stdout
    return "; ".join([*own, *output.splitlines()]) or "nothing"


if __name__ == "__main__":
    print("\n".join(sorted(look(float(sys.argv[1])))))
else:
    from paceline.triggers import BaseTrigger, TriggerEvent

    class Look(BaseTrigger):
        """Looks from a waiter."""

        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "look_around_parts.seen.Look", {}

        async def run(self) -> AsyncIterator[TriggerEvent]:
            yield TriggerEvent(await asyncio.to_thread(report))
