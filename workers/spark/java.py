"""Finds and checks the Java that runs Spark on this machine."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from paceline.exceptions import FailTask

OLDEST_JAVA = 17
INSTALL = f"install Java {OLDEST_JAVA} or newer (on Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME."


def check_java() -> str:
    """The path of the java command for Spark; FailTask, with the package to install, if none can run Spark."""
    java = find_java()
    if java is None:
        raise FailTask(f"Spark needs Java, and there is none on this machine: {INSTALL}")
    version = java_version(java)
    if version is not None and version < OLDEST_JAVA:
        raise FailTask(f"Spark needs Java {OLDEST_JAVA} or newer, and {java} is version {version}: {INSTALL}")
    return java


def find_java() -> str | None:
    """The path of the java command: that of JAVA_HOME, else the first in PATH; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(f"{home}/bin/java", os.X_OK):
        return f"{home}/bin/java"
    return shutil.which("java")


def environment(java: str, *options: str) -> dict[str, str]:
    """The environment of spark-submit. Options in the conf come later and override these `options` of Java."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        # spark-submit fails with a JAVA_HOME that has no Java; with an empty one it uses PATH.
        "JAVA_HOME": str(Path(java).parent.parent) if java.startswith(os.environ.get("JAVA_HOME") or "//") else "",
        "SPARK_SUBMIT_OPTS": " ".join([os.environ.get("SPARK_SUBMIT_OPTS", ""), *(f'"{option}"' for option in options)]).strip(),
    }


def java_version(java: str) -> int | None:
    """The feature release of a Java (8, 11, 17...); None if it is unknown."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None
