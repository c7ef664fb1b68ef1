"""Bundles on moto's real S3-compatible server: schedulers read them there, or keep the contents of their files there."""

import hashlib
import io
import json
import tarfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.processes import free_port
from support.s3 import s3_server

from paceline.authoring.connection import Connection
from paceline.exceptions import PacelineError, UnreachableError
from scheduler.dagfiles.bundle_cache import BundleCache, StoredContents
from scheduler.store.dags import bundles
from scheduler.store.dags.bundles import BundleFile
from scheduler.store.db.database import transact
from scheduler.store.db.rows import EngineReader
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher
from scheduler.store.upkeep import retention

from .conftest import Files, source
from .test_bundle_sources import Reading

s3fs = pytest.importorskip("s3fs", reason="make test-metrics installs it")

pytestmark = pytest.mark.on_demand


def test_a_prefix_and_an_archive_on_s3_are_bundles(files: Files, tmp_path: Path) -> None:
    reading, port = Reading(files), free_port()
    place = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}}
    own = Connection(conn_id="aws", conn_type="aws", login="key", password="secret", extra=json.dumps(place))
    transact(files.engine, connections.add, [own], Cipher.of(files.settings, make=True))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("b.py")
        entry.size = len(source("b").encode())
        archive.addfile(entry, io.BytesIO(source("b").encode()))
    sources = reading.sources("sales=s3://code/sales#connection=aws ops=s3://code/ops.tar.gz#connection=aws")

    reading.read(sources)  # the server is away
    assert all((reading.bundle(name)[1] or "").startswith("s3://code/") for name in ("sales", "ops"))

    with s3_server(port, tmp_path / "s3.txt", "code"):
        bucket = s3fs.S3FileSystem(key="key", secret="secret", **place)
        bucket.pipe_file("code/sales/a.py", source("a").encode())
        bucket.pipe_file("code/sales/lib/names.py", b"x = 1")
        bucket.pipe_file("code/ops.tar.gz", packed.getvalue())
        reading.read(sources)
        reading.read(sources)
        assert reading.paths("sales") == ["a.py", "lib/names.py"] and reading.paths("ops") == ["b.py"] and reading.published == 2

        bucket.pipe_file("code/sales/lib/names.py", b"x = 2")
        bucket.rm("code/sales/a.py")
        reading.read(sources)
        assert reading.bundle("sales") == (2, None) and reading.paths("sales") == ["lib/names.py"] and reading.published == 3


def test_contents_on_s3_are_stored_read_refused_if_replaced_and_deleted(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, engine = free_port(), files.engine
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    url = "s3://code/paceline"
    contents = StoredContents(lambda work: transact(engine, lambda connection: work(EngineReader(connection))), url)
    content = {f"f{number}": BundleFile(b"%d" % number * 1000) for number in range(100)}

    with s3_server(port, tmp_path / "s3.txt", "code"):
        first = transact(engine, bundles.publish, "sales", content, by="ada", code_url=url)
        second = transact(engine, bundles.publish, "sales", content | {"f1": BundleFile(b"new")}, by="ada", code_url=url)
        assert contents.files(first.id) == content
        assert contents.files(second.id)["f1"].content == b"new"
        bucket = s3fs.S3FileSystem()
        assert len(bucket.find("code/paceline")) == 101

        digest = hashlib.sha256(b"new").hexdigest()
        bucket.pipe_file(f"code/paceline/{digest[:2]}/{digest}", zlib.compress(b"bad"))
        with pytest.raises(PacelineError, match="f1 in bundle version"):
            BundleCache(tmp_path / "cache", contents, keep=1).path(second.id)

        with engine.begin() as connection:
            connection.exec_driver_sql("update bundle set wanted_id = null")
        for kind in ("bundle_versions", "bundle_files"):
            transact(engine, retention.delete, kind, datetime.now(UTC) + timedelta(days=1), None, logs=False, code_url=url)
        bucket.invalidate_cache()
        assert bucket.find("code/paceline") == []
        third = transact(engine, bundles.publish, "sales", {"f1": content["f1"]}, by="ada", code_url=url)

    with pytest.raises(UnreachableError, match=r"cannot be stored at bundles\.code_url"):
        transact(engine, bundles.publish, "sales", content, by="ada", code_url=url)
    with pytest.raises(UnreachableError, match=r"cannot be read from bundles\.code_url"):
        contents.files(third.id)
