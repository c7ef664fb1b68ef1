"""Emails that tasks send, received by a real SMTP server."""

import json
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from paceline.airflow.email import EmailOperator, addresses, send_email
from paceline.authoring import running
from paceline.exceptions import PacelineError
from scheduler.testing.in_memory.backends import MemoryBackend


class Inbox:
    def __init__(self) -> None:
        self.received: list[Envelope] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.received.append(envelope)
        return "250 OK"


class Server(Controller):
    """Listens on any free port, which `port` holds after the start."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        super()._trigger_server()


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    server = Server(inbox, hostname="127.0.0.1", port=0)
    server.start()
    extra = {"from_email": "p@example.org", "disable_ssl": True, "disable_tls": True}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": server.port, "extra": extra}
    environment = {"PACELINE_CONN_SMTP_DEFAULT": json.dumps(connection)}
    with running.served_outside(MemoryBackend(environment, variables={}, check=lambda: None)):
        yield inbox
    server.stop()


def test_an_email_has_all_recipients_and_files(inbox: Inbox, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n")

    send_email("a@x.org; b@x.org", "Done", "<b>1</b>", files=[str(tmp_path / "a.csv")], cc=["c@x.org"], bcc="d@x.org")

    (envelope,) = inbox.received
    mail = message_from_bytes(bytes(envelope.content or b""))
    assert envelope.rcpt_tos == ["a@x.org", "b@x.org", "c@x.org", "d@x.org"] and envelope.mail_from == "p@example.org"
    assert (mail["Subject"], mail["To"], mail["Cc"], mail["Bcc"]) == ("Done", "a@x.org, b@x.org", "c@x.org", None)
    body, attached = mail.get_payload()  # type: ignore[misc]
    assert body.get_payload(decode=True).strip() == b"<b>1</b>" and attached.get_filename() == "a.csv"  # type: ignore[union-attr]


def test_the_operator_sends_and_a_dry_run_does_not(inbox: Inbox) -> None:
    context: Any = {}
    EmailOperator(task_id="e", to=["a@x.org"], subject="s", html_content="h").execute(context)
    send_email("a@x.org", "s", "h", dryrun=True)

    assert len(inbox.received) == 1


def test_addresses_are_a_list_or_a_text() -> None:
    assert addresses("a, b;c") == addresses(["a", " b", "c"]) == ["a", "b", "c"]


def test_a_connection_without_a_sender_is_an_error() -> None:
    environment = {"PACELINE_CONN_SMTP_DEFAULT": '{"conn_type": "smtp"}'}
    with (
        running.served_outside(MemoryBackend(environment, variables={}, check=lambda: None)),
        pytest.raises(PacelineError, match="set from_email in its extra"),
    ):
        send_email("a@x.org", "s", "h")
