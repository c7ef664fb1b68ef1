"""Adds metrics, traces and lineage to the process of a command. Without a setting, nothing else of this folder is imported."""

import contextlib
import functools
from collections.abc import Mapping

from scheduler.process import role
from scheduler.process.health import Health
from scheduler.process.health_server import Page
from scheduler.settings import Settings


def attach(settings: Settings) -> None:
    """Turn on the configured metrics, tracing and lineage for this process."""
    if settings.metrics.prometheus or settings.metrics.statsd or settings.tracing.otlp_endpoint or settings.lineage.url:
        role.extensions.append(functools.partial(_extend, settings))


def _extend(settings: Settings, health: Health, ending: contextlib.ExitStack) -> Mapping[str, Page]:
    from scheduler.telemetry import parts

    return parts.start(settings, health, ending)
