"""The arguments of `@task`, `@task.bash` and the others by name, for editors and type checkers. Nothing here runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline.authoring.xcom_arg import XComArg
from paceline.operators.python import PythonTaskArguments
from paceline.operators.virtualenv import OtherPythonTaskArguments
from paceline.sensors.base import SensorArguments


class BashTaskArguments(PythonTaskArguments, total=False):
    env: Mapping[str, str] | XComArg | None
    append_env: bool
    output_encoding: str
    skip_on_exit_code: int | Iterable[int] | None
    cwd: str | XComArg | None
    output_processor: Callable[[str], Any]


class ShortCircuitTaskArguments(PythonTaskArguments, total=False):
    ignore_downstream_trigger_rules: bool


class SensorTaskArguments(SensorArguments, total=False):
    templates_dict: Mapping[str, Any] | None


class PySparkTaskArguments(PythonTaskArguments, total=False):
    conf: Mapping[str, Any] | None
    heavy: bool
    warm: bool


class ExternalPythonTaskArguments(OtherPythonTaskArguments, total=False):
    python: str


class VirtualenvTaskArguments(OtherPythonTaskArguments, total=False):
    requirements: Iterable[str] | str | None
    python_version: str | None
    system_site_packages: bool
    pip_install_options: Iterable[str] | None
    index_urls: Iterable[str] | str | None
    venv_cache_path: str | None


class OverrideArguments(
    BashTaskArguments, ShortCircuitTaskArguments, SensorTaskArguments, PySparkTaskArguments, VirtualenvTaskArguments, total=False
):
    """The arguments of `override`, which is the same for all decorators."""

    python: str
