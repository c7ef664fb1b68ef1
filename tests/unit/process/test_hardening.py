"""Secrets that are hidden from user code."""

from scheduler.process import hardening
from scheduler.settings.environment import PASSWORDS
from scheduler.settings.model import SECRET_KEYS, SECRET_URLS


def test_user_code_that_only_parses_gets_no_secret_of_ours_and_none_of_libpq() -> None:
    ours = ("DATABASE_URL", "DATABASE_OWNER_URL", "WORKER_DATABASE_URL", "BROKER_URL", "SMTP_PASSWORD", "CORE_FERNET_KEY", "VAR_X",
            "CONN_X", "SPARK_PASSWORD", "POSTGRES_PASSWORD", "REDIS_WORKER_PASSWORD")  # fmt: skip
    libpq = ("PGPASSWORD", "PGPASSFILE", "PGSERVICE", "PGSERVICEFILE")
    secret = dict.fromkeys([*(f"PACELINE_{name}" for name in ours), *libpq, "FLOWER_BASIC_AUTH"], "x")
    others = {"PATH": "/bin", "PACELINE_HOME": "/h", "PGHOST": "h", "MINE": "1"}

    assert hardening.clean((secret | others).items()) == others


def test_no_secret_setting_and_no_password_is_forgotten_in_the_list() -> None:
    secret = {f"PACELINE_{key.replace('.', '_').upper()}" for key in SECRET_KEYS | SECRET_URLS}
    secret |= {f"PACELINE_{user}_PASSWORD" for user in PASSWORDS}

    assert hardening.clean(dict.fromkeys(secret, "x").items()) == {}
