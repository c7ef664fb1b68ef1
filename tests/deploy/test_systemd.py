"""The unit files: valid, hardened, and in agreement with the commands of Paceline."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scheduler.settings.environment import OTHER_NAMES
from scheduler.settings.model import environment_names

from .rendering import DEPLOY
from .test_chart import parse

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MOST_EXPOSED = 3.0
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_valid_and_little_exposed(unit: Path, tmp_path: Path) -> None:
    # A copy whose programs exist, because Paceline is not in /opt here.
    copy = tmp_path / unit.name.replace("@", "@1")
    copy.write_text(unit.read_text(encoding="utf-8").replace("/opt/paceline/bin/paceline", "/bin/true"), encoding="utf-8")
    verified = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    security = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(copy)], capture_output=True, text=True, check=False
    )

    assert (verified.returncode, verified.stderr) == (0, "")
    exposure = re.search(r"exposure level for \S+ ([\d.]+)", security.stdout)
    assert exposure is not None and float(exposure[1]) <= MOST_EXPOSED


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_command_of_a_unit_exists_and_its_files_are_here(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=/opt/paceline/bin/paceline (.+)$", text, re.MULTILINE)
    assert command is not None
    parse(command[1].replace("${QUEUES}", "default").replace("%i", "1").split())
    for file in re.findall(r"^EnvironmentFile=/etc/paceline/(\S+)$", text, re.MULTILINE):
        assert (DEPLOY / "systemd" / file).is_file()


@pytest.mark.parametrize("file", sorted((DEPLOY / "systemd").glob("*.env")), ids=lambda file: file.name)
def test_every_variable_of_the_environment_files_is_a_setting(file: Path) -> None:
    names = set(re.findall(r"^(\w+)=", file.read_text(encoding="utf-8"), re.MULTILINE))

    assert {name for name in names if name.startswith("PACELINE_")} <= environment_names().keys() | OTHER_NAMES
    assert names


def test_each_daemon_notifies_and_has_a_watchdog() -> None:
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        if "Type=oneshot" not in text:
            assert {"Type=notify", "WatchdogSec=120", "Restart=always", "KillMode=mixed"} <= set(text.splitlines()), unit.name
