"""Emails about failures, retries and missed SLAs: one message for each notice, sent over SMTP."""

import smtplib
import ssl
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate

from scheduler.settings import Settings, log_paths
from scheduler.settings.sections import Smtp
from scheduler.store.upkeep.notices import Notice

SUBJECTS = {"email_failure": "failed", "email_retry": "will be tried again", "email_sla": "missed its SLA"}


def message(notice: Notice, settings: Settings) -> EmailMessage:
    """The email of one notice. An email that is sent again after a crash has the same Message-ID."""
    assert notice.ti is not None, "emails are about task instances"
    ti = notice.ti
    mail = EmailMessage()
    mail["Subject"] = f"[Paceline] {notice.about} {SUBJECTS[notice.kind]}"
    mail["From"] = settings.smtp.mail_from
    mail["To"] = ", ".join(notice.email)
    mail["Date"] = formatdate(notice.created_at.timestamp())
    domain = settings.smtp.mail_from.rpartition("@")[2].strip("> ") or "localhost"
    mail["Message-ID"] = f"<paceline.notice.{notice.id}.{int(notice.created_at.timestamp() * 1e6)}@{domain}>"
    lines = {
        "DAG": notice.dag_id,
        "Task": ti["task_id"] + (f"[{ti['map_index']}]" if ti["map_index"] >= 0 else ""),
        "Run": notice.run_id,
        "Logical date": notice.run["logical_date"] or "none",
        "Try": f"{ti['try_number']} of {max(ti['max_tries'] + 1, ti['try_number'])}",
        "State": ti["state"] or "none",
        "Reason": notice.reason or "none given",
        "Log": try_log(notice, settings),
    }
    mail.set_content("".join(f"{name}: {value}\n" for name, value in lines.items()))
    return mail


def try_log(notice: Notice, settings: Settings) -> str:
    """The path of the log of the try that the notice is about."""
    assert notice.ti is not None
    names = {name: notice.ti[name] for name in ("task_id", "map_index", "try_number")}
    return log_paths.try_path(settings.logs_folder, dag_id=notice.dag_id, run_id=notice.run_id, **names)


def send(mail: EmailMessage, smtp: Smtp) -> str | None:
    """Send the email. Returns the recipients that the server rejected, or None if it accepted all.

    Raises the errors of smtplib, also if the server rejected every recipient.
    """
    assert smtp.host is not None
    secure = ssl.create_default_context() if smtp.ssl or smtp.starttls else None
    server: smtplib.SMTP
    if smtp.ssl:
        server = smtplib.SMTP_SSL(smtp.host, smtp.port, timeout=smtp.timeout, context=secure)
    else:
        server = smtplib.SMTP(smtp.host, smtp.port, timeout=smtp.timeout)
    try:
        if smtp.starttls:
            server.starttls(context=secure)
        if smtp.user:
            server.login(smtp.user, smtp.password or "")
        refused = server.send_message(mail)
    finally:
        # The server has accepted the email, or an error is being raised: a failing QUIT changes nothing.
        with suppress(smtplib.SMTPException, OSError):
            server.quit()
        server.close()
    return "; ".join(f"{address}: {_words(*why)}" for address, why in refused.items()) or None


def is_temporary(error: Exception) -> bool:
    """Whether the server may accept the same email later: it is unreachable or busy, or its code is 4xx."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(400 <= code < 500 for code, _ in error.recipients.values())
    if isinstance(error, smtplib.SMTPResponseException):
        return 400 <= error.smtp_code < 500
    if isinstance(error, ssl.SSLCertVerificationError | smtplib.SMTPNotSupportedError):
        return False
    return isinstance(error, smtplib.SMTPServerDisconnected | OSError)


def in_words(error: Exception) -> str:
    """The error as text, without the password."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return "; ".join(f"{address}: {_words(*why)}" for address, why in error.recipients.items())
    if isinstance(error, smtplib.SMTPResponseException):
        return _words(error.smtp_code, error.smtp_error)
    return f"{type(error).__name__}: {error}"


def _words(code: int, text: bytes | str) -> str:
    return f"{code} {text.decode('utf-8', 'replace') if isinstance(text, bytes) else text}"
