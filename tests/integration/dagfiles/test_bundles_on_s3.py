"""Bundles that schedulers read from moto's real S3-compatible server, with the login of a connection."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from support.processes import free_port
from support.s3 import s3_server

from paceline.authoring.connection import Connection
from scheduler.store.db.database import transact
from scheduler.store.secrets import connections
from scheduler.store.secrets.cipher import Cipher

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
