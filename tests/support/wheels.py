"""The wheel of this checkout, and an environment that has it."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = str(ROOT / "constraints.txt")
#: Not linked into the environment: our checkout, the files that refer to it, and a Node.js that only builds need.
OWN = ("paceline", "_paceline", "__editable__", "_editable", "nodejs")


def build(folder: Path) -> Path:
    """Build the wheel in `folder`. The dependencies of the build come from the index."""
    source = folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "node_modules", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--constraint", CONSTRAINTS, "--build-constraint",
               CONSTRAINTS, "--wheel-dir", str(folder), str(source)]  # fmt: skip
    subprocess.run(command, check=True)
    (found,) = folder.glob("*.whl")
    return found


def install(wheel: Path, folder: Path) -> None:
    """Create an environment with the wheel. Its dependencies are those of the tests: installing them again would take a minute."""
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    own = next(Path(one) for one in sys.path if one.endswith("site-packages"))
    for path in own.iterdir():
        if not path.name.startswith(OWN) and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)


def install_from_index(wheel: Path, folder: Path, *, extras: str, packages: list[str]) -> None:
    """Create an environment into which pip installs the wheel with extras, its dependencies and more packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "--quiet", "--constraint", CONSTRAINTS]
    subprocess.run([*command, f"{wheel}[{extras}]" if extras else str(wheel), *packages], check=True)
