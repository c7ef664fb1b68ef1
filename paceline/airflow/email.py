"""Emails from tasks, as Airflow 2 sends them. The connection smtp_default has the server, the login and the sender."""

import mimetypes
import smtplib
import ssl
from collections.abc import Iterable, Sequence
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from typing import Any

from paceline.authoring.connection import Connection
from paceline.authoring.operator import BaseOperator
from paceline.exceptions import PacelineError

CONNECTION = "smtp_default"
TIMEOUT_S = 30


def send_email(  # noqa: PLR0917 - the signature of Airflow
    to: str | Iterable[str],
    subject: str,
    html_content: str,
    files: Sequence[str] | None = None,
    dryrun: bool = False,
    cc: str | Iterable[str] | None = None,
    bcc: str | Iterable[str] | None = None,
    mime_subtype: str = "mixed",
    mime_charset: str = "utf-8",
    conn_id: str | None = None,
    custom_headers: dict[str, Any] | None = None,
    **_other: Any,
) -> None:
    """Send an HTML email from a task, with files attached to it.

    `conn_id` is a connection with host, port, login and password. Its extra may have from_email, disable_ssl and disable_tls, as
    in Airflow. With `dryrun`, nothing is sent.
    """
    server = Connection.get(conn_id or CONNECTION)
    sender = server.extra_dejson.get("from_email") or server.login
    if not sender:
        raise PacelineError(f"Connection {server.conn_id!r} has no sender: set from_email in its extra.")
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["Date"] = subject, sender, formatdate(localtime=True)
    mail["To"] = ", ".join(addresses(to))
    if cc:
        mail["Cc"] = ", ".join(addresses(cc))
    for name, value in (custom_headers or {}).items():
        mail[name] = str(value)
    mail.set_content(html_content, subtype="html", charset=mime_charset)
    for file in map(Path, files or ()):
        kind, _, detail = (mimetypes.guess_type(file.name)[0] or "application/octet-stream").partition("/")
        mail.add_attachment(file.read_bytes(), maintype=kind, subtype=detail, filename=file.name)
    if not dryrun:
        _send(mail, server, [*addresses(to), *addresses(cc or ()), *addresses(bcc or ())])


def addresses(given: str | Iterable[str]) -> list[str]:
    """The addresses of a list, or of a text with commas or semicolons between them."""
    parts = given.replace(";", ",").split(",") if isinstance(given, str) else given
    return [part.strip() for part in parts if part.strip()]


def _send(mail: EmailMessage, server: Connection, recipients: list[str]) -> None:
    extra = server.extra_dejson
    is_encrypted = not extra.get("disable_ssl", False)
    host, port = server.host or "localhost", server.port or (465 if is_encrypted else 25)
    timeout = extra.get("timeout", TIMEOUT_S)
    secure = ssl.create_default_context()
    client: smtplib.SMTP = (
        smtplib.SMTP_SSL(host, port, timeout=timeout, context=secure) if is_encrypted else smtplib.SMTP(host, port, timeout=timeout)
    )
    with client:
        if not is_encrypted and not extra.get("disable_tls", False):
            client.starttls(context=secure)
        if server.login and server.password:
            client.login(server.login, server.password)
        client.send_message(mail, to_addrs=recipients)


class EmailOperator(BaseOperator):
    """Sends an email. The arguments are those of `send_email`."""

    template_fields: Sequence[str] = ("to", "subject", "html_content", "files", "cc", "bcc", "custom_headers")
    template_ext: Sequence[str] = (".html",)
    ui_color = "#e6faf9"

    def __init__(
        self,
        *,
        to: str | list[str],
        subject: str,
        html_content: str,
        files: list[str] | None = None,
        cc: str | list[str] | None = None,
        bcc: str | list[str] | None = None,
        mime_subtype: str = "mixed",
        mime_charset: str = "utf-8",
        conn_id: str | None = None,
        custom_headers: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to, self.subject, self.html_content, self.files = to, subject, html_content, files
        self.cc, self.bcc, self.custom_headers = cc, bcc, custom_headers
        self.mime_subtype, self.mime_charset, self.conn_id = mime_subtype, mime_charset, conn_id

    def execute(self, context: Any) -> None:
        send_email(
            self.to,
            self.subject,
            self.html_content,
            files=self.files,
            cc=self.cc,
            bcc=self.bcc,
            mime_subtype=self.mime_subtype,
            mime_charset=self.mime_charset,
            conn_id=self.conn_id,
            custom_headers=self.custom_headers,
        )
