"""The options of Airflow that have a value here: our setting where one corresponds, else Airflow's default."""

import configparser
import functools
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from scheduler.settings.model import SECRET_KEYS, SECRET_URLS, Settings, effective, keys

#: Our settings with another name than the option of Airflow. All others have the same section and name.
_OURS = {
    "core.dags_folder": "paths.dags_folder",
    "logging.base_log_folder": "paths.logs_folder",
    "operators.default_queue": "core.default_queue",
    "celery.worker_concurrency": "worker.concurrency",
    "triggerer.capacity": "waiter.capacity",
    "api.host": "web.address",
    "api.port": "web.port",
    "dag_processor.refresh_interval": "scheduler.dag_dir_list_interval",
    **{
        f"dag_processor.{name}": f"scheduler.{name}"
        for name in ("min_file_process_interval", "parsing_processes", "file_parsing_sort_mode", "dag_file_processor_timeout")
    },
    **{f"smtp.smtp_{name}": f"smtp.{name}" for name in ("host", "port", "user", "mail_from", "starttls", "ssl")},
}
#: Options whose value no setting decides here.
_FIXED = {"core.executor": "CeleryExecutor", "core.load_examples": "False"}
#: The folder of the bundle version whose code this process executes now, which is its DAGs folder.
_version_folder: Path | None = None


def use(version_folder: Path | None) -> None:
    """Say where the bundle version is whose code this process executes now; None if it is the DAGs folder."""
    global _version_folder  # noqa: PLW0603 - one per process, as its modules
    _version_folder = version_folder


def known(section: str, key: str) -> str | None:
    """The value of an option that is not in the environment, as text; None if neither Paceline nor Airflow has one."""
    section, key = section.lower(), key.lower()
    option = f"{section}.{key}"
    if option in _FIXED:
        return _FIXED[option]
    if option == "core.dags_folder" and _version_folder is not None:
        return str(_version_folder)
    if option in _settings():
        value = effective(Settings.load(os.environ), _settings()[option])
        return "" if value is None else str(value)
    return _defaults().get(section, {}).get(key)


def names(section: str) -> set[str]:
    """The options of a section that may have a value."""
    ours = {key.partition(".")[2] for key in _settings() if key.startswith(f"{section}.")}
    return ours | set(_defaults().get(section, {}))


@functools.cache
def _settings() -> dict[str, str]:
    """The key of our setting for each option that has one. No secrets, and no addresses of servers that may hold one."""
    same = {key: key for key in keys() if key not in SECRET_KEYS | SECRET_URLS}
    return {**same, **_OURS}


@functools.cache
def _defaults() -> Mapping[str, Mapping[str, str]]:
    """Airflow's defaults by section and name."""
    parser = configparser.RawConfigParser()
    parser.read_string(resources.files(__package__).joinpath("airflow_defaults.cfg").read_text(encoding="utf-8"))
    return {section: dict(parser[section]) for section in parser.sections()}
