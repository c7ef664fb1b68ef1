"""Certificates, a PostgreSQL that accepts only TLS, and a TLS proxy for a Redis without TLS."""

import asyncio
import contextlib
import datetime
import ipaddress
import os
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from scheduler.embedded import home as homes
from scheduler.embedded import servers
from scheduler.embedded.supervisor import Supervisor
from support.processes import free_port


@dataclass(frozen=True)
class Certificates:
    """Files: an authority, a server's certificate for localhost that it signed, and another authority."""

    ca: Path
    certificate: Path
    key: Path
    other_ca: Path


def certificates(folder: Path) -> Certificates:
    """Create certificates that are valid for an hour."""
    folder.mkdir()
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "other.pem")
    authority_key, authority = _authority("Paceline test")
    _, other = _authority("Another authority")
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        _builder("localhost", "Paceline test", key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    for path, one in ((made.ca, authority), (made.certificate, certificate), (made.other_ca, other)):
        path.write_bytes(one.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    made = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, made


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
    )


def programs_with_tls() -> Path:
    """The programs of an installed PostgreSQL with TLS, which that of the wheel lacks."""
    for programs in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        linked = subprocess.run(["ldd", str(programs / "postgres")], capture_output=True, text=True, check=False).stdout
        if "libssl" in linked:
            return programs
    pytest.skip("no PostgreSQL with TLS is installed (apt install postgresql)")


class PostgresOnPort(servers.EmbeddedPostgres):
    """A PostgreSQL on a TCP port, which is part of the name of its socket."""

    def connect(self, database: str = servers.DATABASE) -> "psycopg2.extensions.connection":
        return psycopg2.connect(host=str(self.run_folder), port=self.options["port"], user=servers.SUPERUSER, dbname=database)


@contextlib.contextmanager
def postgres_with_tls(folder: Path, made: Certificates, *, user: str, password: str) -> Iterator[str]:
    """host:port/database of a PostgreSQL that accepts only `user` with `password` over TLS."""
    programs = programs_with_tls()
    data, run = folder / "data", folder / "run"
    port = free_port()
    identity = homes.server_identity(data)
    files = {}
    for name, source in (("ssl_cert_file", made.certificate), ("ssl_key_file", made.key)):
        files[name] = str(folder / source.name)
        shutil.copy(source, files[name])
        Path(files[name]).chmod(0o600)
        if identity is not None:
            os.chown(files[name], *identity)
    options = files | {"ssl": "on", "listen_addresses": "127.0.0.1", "port": str(port), "fsync": "off"}
    with Supervisor(folder / "logs") as supervisor:
        server = PostgresOnPort(data=data, run_folder=run, supervisor=supervisor, options=options, programs=programs)
        server.start()
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"create role {user} login password '{password}'")
            cursor.execute(f"alter database {servers.DATABASE} owner to {user}")
            cursor.execute(f"alter schema public owner to {user}")
            connection.commit()
            (data / "pg_hba.conf").write_text("local all postgres trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
            cursor.execute("select pg_reload_conf()")
        yield f"localhost:{port}/{servers.DATABASE}"


@dataclass
class TlsProxy:
    """Accepts TLS connections on its own port, and forwards their data to a Unix socket."""

    target: Path
    certificates: Certificates
    port: int = 0
    taken: int = 0
    refused: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _server: asyncio.Server | None = None

    def __enter__(self) -> "TlsProxy":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificates.certificate, self.certificates.key)
        self._loop.set_exception_handler(self._note)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0, ssl=context))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            assert self._server is not None
            # Accept no more first: asyncio leaves open a connection that it accepts in the turn in which its server closes.
            for socket in self._server.sockets:
                self._loop.remove_reader(socket.fileno())
            for _ in range(5):
                await asyncio.sleep(0)
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Also connections in the middle of a handshake, which have no task yet.
            for transport in list(self._loop._transports.values()):  # type: ignore[attr-defined]
                transport.abort()
            for _ in range(5):
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(10)
        self._loop.close()

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Ignore a handshake that the client aborted."""
        self.refused += 1

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        there_reader, there_writer = await asyncio.open_unix_connection(str(self.target))
        await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
