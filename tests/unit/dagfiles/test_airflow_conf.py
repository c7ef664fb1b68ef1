"""`conf` answers as Airflow's configuration does."""

import os
from pathlib import Path

import pytest

from paceline import conf
from paceline.exceptions import AirflowConfigException, SettingsError
from scheduler.dagfiles import load  # noqa: F401 - this import registers the options
from scheduler.settings import Settings


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/dags")
    monkeypatch.setenv("PACELINE_CORE_PARALLELISM", "7")
    monkeypatch.setenv("AIRFLOW__OWN__LIST", "a, b")

    assert conf.get("core", "dags_folder") == "/dags" and conf.getint("core", "parallelism") == 7
    assert conf.getlist("own", "list") == ["a", "b"] and conf.getsection("own") == {"list": "a, b"}
    assert conf.getboolean("core", "load_examples", fallback=False) is False and not conf.has_option("core", "none")
    with pytest.raises(SettingsError, match=r"There is no option \[core\] none: set AIRFLOW__CORE__NONE"):
        conf.get("core", "none")
    with pytest.raises(SettingsError, match="must be true or false"):
        conf.getboolean("core", "dags_folder")


def test_options_without_an_environment_variable_are_our_settings_or_the_defaults_of_airflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith(("PACELINE_", "AIRFLOW"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PACELINE_DAGS_FOLDER", str(tmp_path))
    monkeypatch.setenv("PACELINE_WORKER_CONCURRENCY", "3")
    settings = Settings.load(os.environ)

    assert conf.get("core", "dags_folder") == str(tmp_path)
    assert conf.getint("celery", "worker_concurrency") == 3
    assert conf.getint("core", "parallelism", fallback=-1) == settings.core.parallelism
    assert conf.get("core", "executor") == "CeleryExecutor"
    assert conf.get("operators", "default_owner") == "airflow"
    assert conf.get("kubernetes_executor", "worker_container_tag") == ""
    assert conf.getboolean("sensors", "no_such", fallback=True) is True
    assert conf.has_option("core", "default_timezone") and conf.getsection("operators")["default_queue"] == "default"


@pytest.mark.parametrize(("section", "key"), [("core", "fernet_key"), ("database", "sql_alchemy_conn"), ("database", "url")])
def test_secrets_are_no_options(section: str, key: str) -> None:
    with pytest.raises(
        AirflowConfigException, match=r"There is no option .*: addresses and secrets of servers are not for DAG files"
    ):
        conf.get(section, key)
