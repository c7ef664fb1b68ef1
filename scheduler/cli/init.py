"""`paceline init`: creates a project with DAGs, tests, settings, containers and CI."""

from __future__ import annotations

import base64
import importlib.metadata
import json
import re
import secrets
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

from scheduler.cli import options

TEMPLATES = Path(__file__).with_name("project")
#: The template of each file. The templates have other names, so that no tool takes them for code of Paceline.
FILES = {
    "README.md": "README.md.in",
    "requirements.txt": "requirements.txt.in",
    ".gitignore": "gitignore.in",
    ".github/workflows/test.yml": "github_workflows_test.yml.in",
    "compose.yml": "compose.yml.in",
    "config/paceline.toml": "config_paceline.toml.in",
    "dags/hello.py": "dags_hello.py.in",
    "tests/test_dags.py": "tests_test_dags.py.in",
}
#: The folder of a wheel that no package index has.
WHEELS = "wheels"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@click.command()
@click.argument("name", metavar="NAME")
def init(name: str) -> None:
    """Create the project NAME in a new folder: a DAG, its tests, settings, a compose file with new passwords, and a CI example.

    NAME may be a path; its last part is the name of the project. An existing folder must be empty.
    """
    folder = Path(name)
    project = folder.resolve().name
    if not NAME.fullmatch(project):
        raise click.BadParameter(f"{project!r} may hold letters, digits and _.- only, after a letter.", param_hint="NAME")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(f"{folder} exists and is not an empty folder: choose another name.")
    paceline = importlib.metadata.distribution("paceline")
    requirement, wheel = _requirement(paceline.version, json.loads(paceline.read_text("direct_url.json") or "{}"))
    values = {"@NAME@": project, "@VERSION@": paceline.version, "@REQUIREMENT@": requirement}
    try:
        for target, template in FILES.items():
            text = (TEMPLATES / template).read_text(encoding="utf-8")
            for key, value in values.items():
                text = text.replace(key, value)
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if wheel is not None:
            (folder / WHEELS).mkdir()
            shutil.copy(wheel, folder / WHEELS)
    except OSError as error:
        raise click.UsageError(f"{folder} cannot be written: {error.strerror}.") from None
    private = {f"PACELINE_{server}_PASSWORD": secrets.token_hex(24) for server in ("POSTGRES", "REDIS")}
    private["PACELINE_CORE_FERNET_KEY"] = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
    options.write_private(folder / ".env", "".join(f"{name}={value}\n" for name, value in private.items()))
    click.echo(f"Created {len(FILES) + 1 + (wheel is not None)} files in {folder.resolve()}. Continue with:")
    if folder.resolve() != Path.cwd():
        click.echo(f"  cd {folder}")
    click.echo("  paceline dags test hello\n  paceline standalone")


def _requirement(version: str, origin: dict[str, Any]) -> tuple[str, Path | None]:
    """Return what pip must install to get this Paceline again, and the wheel that the project needs for it.

    `origin` is what pip recorded about an installation that came from no package index (PEP 610); else it is empty.
    """
    url = str(origin.get("url", ""))
    if not url:
        return f"paceline[standalone]=={version}", None
    if "vcs_info" in origin:
        about = origin["vcs_info"]
        return f"paceline[standalone] @ {about['vcs']}+{url}@{about['commit_id']}", None
    path = Path(url2pathname(urlsplit(url).path))
    if url.startswith("file:") and path.suffix == ".whl" and path.is_file():
        return f"./{WHEELS}/{path.name}[standalone]", path
    return f"paceline[standalone] @ {url}", None
