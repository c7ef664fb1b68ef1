"""Which Java runs Spark here, and what to do if there is none that can."""

import os
import re
import shutil
import subprocess

from scheduler.exceptions import FailTask

OLDEST_JAVA = 17
INSTALL = f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."


def check_java() -> str:
    """The java to run Spark with; FailTask, saying what to install, if there is none that Spark can use."""
    java = find_java()
    if java is None:
        raise FailTask(f"Spark needs Java and found none: {INSTALL}")
    version = java_version(java)
    if version is not None and version < OLDEST_JAVA:
        raise FailTask(f"Spark needs Java {OLDEST_JAVA} and {java} is version {version}: {INSTALL}")
    return java


def find_java() -> str | None:
    """The java to run Spark with: that of JAVA_HOME, else the first in PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    return shutil.which("java")


def submit_opts(*options: str) -> str:
    """SPARK_SUBMIT_OPTS, what Java is told besides what Spark's conf says, with these options after those of the environment."""
    return " ".join([os.environ.get("SPARK_SUBMIT_OPTS", ""), *(f'"{one}"' for one in options)]).strip()


def java_version(java: str) -> int | None:
    """Its feature release (8, 11, 17...); None if it does not say."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
