"""A wheel that was built here serves the pages where there is no Node.js and no checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Loads the first page and the scripts and styles that it names.
PROGRAM = """
import re, sys
from pathlib import Path
from starlette.testclient import TestClient
import scheduler
from scheduler.api import app
from scheduler.settings import Settings
assert Path(scheduler.__file__).is_relative_to(sys.argv[1]), scheduler.__file__
client = TestClient(app.create(Settings.load({
    "PACELINE_HOME": sys.argv[2], "PACELINE_DATABASE_URL": "postgresql://nowhere/none", "PACELINE_WEB_SIGNING_KEY": "x" * 32,
})))
page = client.get("/dags/etl")
assert page.status_code == 200, page.text
names = re.findall(r'(?:src|href)="(?:[.]/)?(assets/[^"]+)"', page.text)
assert any(name.endswith(".js") for name in names), page.text
for name in names:
    assert client.get("/" + name).status_code == 200, name
"""


def test_a_wheel_has_the_pages(tmp_path: Path) -> None:
    wheels, site, home = tmp_path / "wheels", tmp_path / "site", tmp_path / "home"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--build-constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, "--wheel-dir", str(wheels), str(ROOT)], check=True)
    (wheel,) = wheels.iterdir()
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
        names = packed.namelist()
    assert [name for name in names if name.startswith("web/") or "node_modules" in name] == []
    home.mkdir()

    environment = {"PYTHONPATH": str(site), "PATH": "/nowhere", "HOME": os.environ.get("HOME", "/")}
    subprocess.run([sys.executable, "-P", "-c", PROGRAM, str(site), str(home)], env=environment, cwd=tmp_path, check=True)
