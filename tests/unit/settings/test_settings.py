"""Settings: the precedence of their sources, and the errors for bad values."""

from pathlib import Path

import pytest

from paceline.exceptions import SettingsError
from scheduler.settings import Settings
from scheduler.settings import model as module
from scheduler.settings.model import keys


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without config/paceline.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


FERNET_KEYS = f"{'a' * 43}=, {'b' * 43}="


def file(folder: Path, text: str) -> dict[str, str]:
    path = folder / "paceline.toml"
    path.write_text(text, encoding="utf-8")
    return {"PACELINE_CONFIG": str(path)}


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(environ)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("environ", "key", "value"),
    [
        # The environment, then the file, then the default.
        ({"PACELINE_CORE_PARALLELISM": "7"}, "core.parallelism", 7),
        ({}, "core.parallelism", 5),
        ({"PACELINE_CORE_PARALLELISM": ""}, "core.parallelism", 5),
        ({}, "core.max_active_tasks_per_dag", 16),
        ({"PACELINE_CORE_FERNET_KEY": FERNET_KEYS}, "core.fernet_key", FERNET_KEYS),
        *(({"PACELINE_METRICS_STATSD": address}, "metrics.statsd", address) for address in (
            "", "localhost:8125", "127.0.0.1:8125", "[::1]:65535", "münchen.example:1", "unix:///run/statsd:1")),
    ],
)  # fmt: skip
def test_the_value_of_a_setting(tmp_path: Path, environ: dict[str, str], key: str, value: object) -> None:
    assert Settings.load(file(tmp_path, "[core]\nparallelism = 5\n") | environ).value(key) == value


def test_what_is_no_setting_counts_as_unset_and_unset_urls_mean_the_embedded_servers(tmp_path: Path) -> None:
    others = {"PACELINE_DATABASE_URL": "", "PACELINE_VAR_X": "1", "PACELINE_CONN_DB": "x://h"}
    loaded = Settings.load({"PACELINE_HOME": "/h"})

    assert (Settings.load(others), module.sources(others)) == (Settings(), {})
    assert loaded.database_url == "postgresql://paceline_scheduler@/paceline?host=/h/run"
    assert loaded.broker_url == "redis+socket:///h/run/redis.sock"


def test_sources_name_the_source_of_each_value_and_config_in_the_working_directory_is_one(tmp_path: Path) -> None:
    environ = file(tmp_path, "[core]\nparallelism = 5\n") | {"PACELINE_HOME": "/x"}
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "paceline.toml").write_text("[worker]\nconcurrency = 3\n")

    assert module.sources(environ) == {"core.parallelism": environ["PACELINE_CONFIG"], "paths.home": "PACELINE_HOME"}
    assert Settings.load({}).worker.concurrency == 3


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PACELINE_CORE_PARALLELISM", "x", ["core.parallelism", "'x'", "a whole number of at least 1"]),
        ("PACELINE_CORE_PARALLELISM", "0", ["core.parallelism", "'0'", "a whole number of at least 1"]),
        ("PACELINE_SCHEDULER_RUN_DURATION", "inf", ["scheduler.run_duration", "a number of at least -1"]),
        ("PACELINE_WORKER_GRACE_SEC", "nan", ["worker.grace_sec", "a number above 0"]),
        ("PACELINE_FLOWER_PORT", "70000", ["flower.port", "'70000'", "from 0 to 65535"]),
        ("PACELINE_SCHEDULER_CATCHUP_BY_DEFAULT", "maybe", ["'maybe'", "true or false"]),
        ("PACELINE_SCHEDULER_FILE_PARSING_SORT_MODE", "size", ["'size'", "one of modified_time, random_seeded_by_host, alph"]),
        ("PACELINE_CORE_DEFAULT_TIMEZONE", "Mars/Base", ["'Mars/Base'", "IANA time zone"]),
        ("PACELINE_CORE_DEFAULT_TIMEZONE", "../../etc/passwd", ["core.default_timezone", "IANA time zone"]),
        ("PACELINE_DATABASE_URL", "sqlite:///x.db", ["database.url", "'sqlite:///x.db'", "postgresql://"]),
        ("PACELINE_WEB_PROXIES", "*", ["web.proxies", "'*'", "IP addresses and networks"]),
        ("PACELINE_WEB_PROXIES", "10.0.0.1;10.0.0.2", ["web.proxies", "IP addresses and networks"]),
        ("PACELINE_METRICS_STATSD", "host:99999", ["metrics.statsd", "'host:99999'", "host:port"]),
        ("PACELINE_METRICS_STATSD", "host:0", ["metrics.statsd", "host:port"]),
        ("PACELINE_METRICS_STATSD", "a..b:8125", ["metrics.statsd", "host:port"]),
        ("PACELINE_METRICS_STATSD", "[::1]", ["metrics.statsd", "host:port"]),
        ("PACELINE_BROKER_URL", "amqp://host", ["broker.url", "'amqp://host'", "redis://"]),
    ],
)
def test_a_bad_value_is_reported_with_key_value_source_and_the_allowed_values(name: str, value: str, words: list[str]) -> None:
    message = refusal({name: value})

    assert f"set by {name}" in message
    assert [word for word in words if word not in message] == []
    assert "\n" not in message


def test_a_bad_value_in_the_file_names_the_file(tmp_path: Path) -> None:
    environ = file(tmp_path, "[worker]\nconcurrency = -2\n")

    assert refusal(environ) == (
        f"worker.concurrency (set by {environ['PACELINE_CONFIG']}) cannot be -2; allowed is a whole number of at least 1."
    )


def test_a_refused_url_does_not_show_its_password() -> None:
    message = refusal({"PACELINE_DATABASE_URL": "mysql://me:secret@host/db"})

    assert "secret" not in message
    assert "mysql://me:***@host/db" in message


def test_an_unknown_variable_is_reported_with_a_near_match() -> None:
    assert "did you mean PACELINE_CORE_PARALLELISM?" in refusal({"PACELINE_CORE_PARALELISM": "3"})
    assert "`paceline config show`" in refusal({"PACELINE_ZZZZZZZZZZ": "3"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[core]\nparalelism = 3\n", ["core.paralelism", "did you mean parallelism?"]),
        ("[core]\nzzz = 3\n", ["core.zzz", "[core] has parallelism"]),
        ("[cor]\nparallelism = 3\n", ["[cor]", "did you mean [core]?"]),
        ("[zzz]\n", ["[zzz]", "the sections are paths, core"]),
        ("[core.deep]\nx = 1\n", ["core.deep", "is not a setting"]),
        ("parallelism = 3\n", ["parallelism", "put it under [core]"]),
        ("core = 3\n", ["core", "is outside its section"]),
        ("[core\n", ["cannot be read as TOML"]),
        ("[core]\nparallelism = [1]\n", ["core.parallelism", "[1]", "a whole number"]),
    ],
)
def test_a_bad_file_is_reported_in_one_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    message = refusal(file(tmp_path, text))

    assert [word for word in [*words, "paceline.toml"] if word not in message] == []


def test_a_named_file_must_exist() -> None:
    assert refusal({"PACELINE_CONFIG": "/no/such.toml"}) == "PACELINE_CONFIG names /no/such.toml, which does not exist."


def test_a_timeout_leaves_a_process_time_to_send_a_heartbeat() -> None:
    assert "must be longer than worker.heartbeat_sec, 60 s" in refusal({"PACELINE_WORKER_HEARTBEAT_SEC": "60"})
    assert "scheduler.scheduler_heartbeat_sec" in refusal({"PACELINE_SCHEDULER_SCHEDULER_HEALTH_CHECK_THRESHOLD": "2"})


def test_every_setting_has_its_meaning_and_its_allowed_values() -> None:
    for key in keys():
        section, _, name = key.partition(".")
        assert module.section_type(section).model_fields[name].description, key
        assert module.allowed(key)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u:a/b@c@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@/d?host=/run&password=p&x=1", "postgresql://u@/d?host=/run&password=***&x=1"),
        ("redis://:p@h/0", "redis://:***@h/0"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert module.masked(url) == shown


@pytest.mark.parametrize("key", ["short", "a" * 43 + "=," + "b" * 10, "ü" * 44])
def test_a_wrong_fernet_key_is_refused_and_not_shown(key: str) -> None:
    message = refusal({"PACELINE_CORE_FERNET_KEY": key})

    assert "core.fernet_key (set by PACELINE_CORE_FERNET_KEY) cannot be '***'; allowed is Fernet keys" in message
    assert key not in message
