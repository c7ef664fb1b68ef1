"""The shared fixtures give each test servers, a database and a broker of its own."""

import contextlib
import os
import subprocess

import psycopg2
import pytest
import redis
from support import folders
from support.waiting import eventually

from scheduler.messaging.brokers import client


def test_each_database_starts_with_the_schema_and_without_rows(database_url):
    with contextlib.closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        cursor.execute("select name from pool")
        assert cursor.fetchall() == [("default_pool",)]
        cursor.execute("select count(*) from dag")
        assert cursor.fetchone() == (0,)


def test_folders_that_a_killed_session_left_in_memory_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "MEMORY", tmp_path)
    with subprocess.Popen(["true"]) as ended:
        pass
    left, used = tmp_path / f"pl-{ended.pid}-a", tmp_path / f"pl-{os.getpid()}-b"
    left.mkdir()
    used.mkdir()

    with folders.short_folder(memory=False):
        assert list(tmp_path.iterdir()) == [used]


def test_databases_of_two_tests_are_apart(postgres_server):
    with postgres_server.new_database() as first, postgres_server.new_database() as second:
        with contextlib.closing(psycopg2.connect(first)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("create table mark ()")
        with contextlib.closing(psycopg2.connect(second)) as connection, connection.cursor() as cursor:
            cursor.execute("select to_regclass('mark')")
            assert cursor.fetchone() == (None,)


def test_broker_urls_name_different_empty_databases(redis_server, settings):
    first = settings.model_copy(update={"broker": settings.broker.model_copy(update={"url": redis_server.new_database()})})
    with contextlib.closing(client(settings.broker_url)) as ours, contextlib.closing(client(first.broker_url)) as theirs:
        ours.set("mark", 1)
        assert theirs.get("mark") is None
        assert isinstance(ours, redis.Redis)


def test_eventually_reports_the_last_value_and_the_message():
    with pytest.raises(AssertionError, match=r"not true within 0.05 s; the last value: 0\. all 3 are missing"):
        eventually(lambda: 0, timeout=0.05, message="all 3 are missing")
