"""The delivery of claimed notices: callbacks are called one by one in a child, emails are sent. Each step is stored at once."""

import logging
import smtplib
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from tenacity import stop_when_event_set

from paceline.exceptions import PacelineError
from scheduler.dagfiles.bundle_cache import BundleCache
from scheduler.dagfiles.environments import Environments
from scheduler.dagfiles.parser import CallbackHost, ChildEnded
from scheduler.process import fault_points, measures
from scheduler.settings import Settings, log_paths
from scheduler.settings.sections import Smtp
from scheduler.store.db import database
from scheduler.store.upkeep import notices
from scheduler.store.upkeep.notices import Notice

log = logging.getLogger("paceline.scheduler")

P = ParamSpec("P")
R = TypeVar("R")
#: A callback that crashes its process this often is abandoned.
MAX_ATTEMPTS = 3
#: Attempts to send an email that the server rejects for now. The pause before each attempt is longer by MAIL_PAUSE_S.
MAX_MAIL_ATTEMPTS = 5
MAIL_PAUSE_S = 60.0
#: Seconds for which a claim outlives the timeout of a callback. Then another scheduler can claim the notice.
LEASE_MARGIN_S = 15.0
#: Seconds after which the remaining callbacks of a file are released, so that the callbacks of other files can run.
SLICE_S = 2.0
#: Seconds between two attempts to record a delivery.
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Notices claimed under one name: callbacks of one DAG file, or emails."""

    claimed_by: str
    #: None for emails.
    file: str | None
    notices: list[Notice]
    #: The ID of the bundle version of the file; None: it is in the DAGs folder.
    bundle_version: int | None = None
    #: That of the notices.
    place: str = ""


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Delivers the batches of one thread."""

    engine: Engine
    settings: Settings
    host: CallbackHost
    stop: threading.Event
    cache: BundleCache
    environments: Environments

    @property
    def call_lease_s(self) -> float:
        """Seconds for which a claim is valid once a callback has started."""
        return self.settings.scheduler.callback_execution_timeout + LEASE_MARGIN_S

    @property
    def lease_s(self) -> float:
        """Seconds for which a claim is valid if its file must be loaded first."""
        return self.call_lease_s + self.settings.scheduler.dag_file_processor_timeout

    def deliver(self, batch: Batch) -> bool:
        """Deliver each notice; False if the time slice or a stop ended this early."""
        return self._send_emails(batch) if batch.file is None else self._call_callbacks(batch, batch.file)

    def _call_callbacks(self, batch: Batch, file: str) -> bool:
        """Load the file once, and again after a child has ended."""
        started = time.monotonic()
        loaded = _LoadedFile(self, batch.bundle_version, file)
        try:
            for notice in batch.notices:
                if self.stop.is_set() or time.monotonic() - started >= SLICE_S:
                    self._release(batch)
                    return False
                # First, so that a crash while the file is loaded does not count as a crash of the callback.
                loaded.ensure(_log_path(notice, self.settings))
                attempt = self._begin(notice, batch.claimed_by, self.call_lease_s)
                if attempt is not None:
                    self._call_all(notice, batch.claimed_by, attempt, loaded)
        finally:
            loaded.close()
        if self.stop.is_set():
            self._release(batch)
        return True

    def _send_emails(self, batch: Batch) -> bool:
        lease_s = 10 * self.settings.smtp.timeout + LEASE_MARGIN_S
        for notice in batch.notices:
            if self.stop.is_set():
                self._release(batch)
                return False
            attempt = self._begin(notice, batch.claimed_by, lease_s)
            if attempt is not None:
                self._send_email(notice, batch.claimed_by, attempt)
        return True

    def _transact(self, work: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Repeat it until the database answers or the scheduler stops: a delivery that is not recorded would be repeated."""
        result: R = until_answered(self.engine, self.stop)(work, *args, **kwargs)
        return result

    def _begin(self, notice: Notice, claimed_by: str, lease_s: float) -> int | None:
        attempt = self._transact(notices.begin, notice.id, claimed_by, lease_s=lease_s)
        if attempt is not None:
            measures.count("dag_processing.other_callback_count")
        return attempt

    def _release(self, batch: Batch) -> None:
        """Release the claims of the notices that have not ended."""
        ids = [notice.id for notice in batch.notices]
        self._transact(notices.release, batch.claimed_by, ids)

    def _call_all(self, notice: Notice, claimed_by: str, attempt: int, loaded: "_LoadedFile") -> None:
        """Call the callbacks that have not ended. A crash may have interrupted the first; an error does not stop the others."""
        path = _log_path(notice, self.settings)
        index = notice.done
        while True:
            count = None
            error: str | None = None
            try:
                problem = loaded.ensure(path)
                if problem is not None:
                    self._record(notice, claimed_by, problem, path)
                    return
                is_rerun = attempt > 1 and index == notice.done
                request = self._request(notice, path, index=index, attempt=attempt, is_rerun=is_rerun)
                fault_points.point("callback.before")
                called = self.host.call(request)
                fault_points.point("callback.after")
                count, error = called.count, called.error
            except ChildEnded as ended:
                loaded.lost()
                error = str(ended)
                if self.stop.is_set():
                    return
                if not ended.timed_out and attempt < MAX_ATTEMPTS:
                    log.warning("The %s callback of %s will be called again: %s", notice.kind, notice.about, ended)
                    self._transact(notices.release, claimed_by, [notice.id])
                    return
            index += 1
            has_ended = count is not None and index >= count
            if not self._record(notice, claimed_by, error, path, done=None if has_ended else index) or has_ended:
                return

    def _record(self, notice: Notice, claimed_by: str, error: str | None, path: str, *, done: int | None = None) -> bool:
        """Record that `done` callbacks have ended, or all; False if the claim is lost."""
        if error is not None:
            measures.count("dag.callback_exceptions")
            log.error("The %s callback of %s failed: %s. Its log is %s", notice.kind, notice.about, error, path)
        if done is None:
            return self._transact(notices.end, notice.id, claimed_by, error=error)
        return self._transact(notices.progress, notice.id, claimed_by, done=done, error=error, lease_s=self.lease_s)

    def _request(self, notice: Notice, path: str, *, index: int, attempt: int, is_rerun: bool) -> dict[str, Any]:
        blocking = self._transact(notices.blocking, notice.dag_run_id) if notice.kind == "sla_miss" else []
        return {
            **{name: getattr(notice, name) for name in ("kind", "about", "dag_id", "run_id", "run", "ti", "reason", "data")},
            "at": notice.created_at.isoformat(),
            "blocking": blocking,
            "conf_overrides": self.settings.core.dag_run_conf_overrides_params,
            "index": index,
            "attempt": attempt,
            "is_rerun": is_rerun,
            "log": path,
            "log_url": path if notice.ti is None else try_log(notice, self.settings),
        }

    def _send_email(self, notice: Notice, claimed_by: str, attempt: int) -> None:
        error: str | None = "smtp.host is not set"
        if self.settings.smtp.host is not None:
            try:
                error = send(message(notice, self.settings), self.settings.smtp)
            except Exception as failure:  # any error concerns only this email
                error = in_words(failure)
                if is_temporary(failure) and attempt < MAX_MAIL_ATTEMPTS:
                    log.warning("The email about %s will be sent later: %s", notice.about, error)
                    pause_s = MAIL_PAUSE_S * attempt
                    self._transact(notices.release, claimed_by, [notice.id], pause_s=pause_s)
                    return
            if error is not None:
                measures.count("dag.callback_exceptions")
                log.error("The email about %s was not sent: %s", notice.about, error)
        self._transact(notices.end, notice.id, claimed_by, error=error)


def until_answered(engine: Engine, stop: threading.Event) -> Callable[..., Any]:
    """`transact`, repeated until the database answers or the scheduler stops. OperationalError if it stops."""
    return database.until_answered(
        engine,
        pause_s=PAUSE_S,
        failed=lambda error, _: log.warning("%s", database.translate(error)),
        stop=stop_when_event_set(stop),
        sleep=stop.wait,
    )


class _LoadedFile:
    """The DAG file of a batch, loaded in the child process that runs its callbacks."""

    def __init__(self, delivery: Delivery, version: int | None, file: str) -> None:
        self._host, self._cache, self._folder = delivery.host, delivery.cache, delivery.settings.dags_folder
        self._environments = delivery.environments
        self._python = sys.executable
        self._version = version
        self._file = file
        self._is_open = False
        self._problem: str | None = None

    def ensure(self, log_path: str) -> str | None:
        """Load the file unless it is loaded. Returns the reason if that fails, else None."""
        if self._is_open or self._problem is not None:
            return self._problem
        try:
            if self._version is not None:
                self._folder = self._cache.path(self._version)
                self._python = self._environments.python(self._folder)
            problem = self._host.open(self._file, log_path, self._folder, self._python)
            self._is_open = True
        except ChildEnded as ended:
            problem = f"while it was loaded, {ended}"
        except PacelineError as error:
            problem = str(error)
        if problem is not None:
            self._problem = f"The DAG file {self._folder / self._file} cannot be loaded: {problem}"
        return self._problem

    def lost(self) -> None:
        """Record that its child has ended."""
        self._is_open = False

    def close(self) -> None:
        if self._is_open:
            self._host.close()
            self._is_open = False
        if self._version is not None:
            self._cache.release(self._version)
            self._environments.release(self._python)


def _log_path(notice: Notice, settings: Settings) -> str:
    about_run = notice.ti is None or notice.kind.startswith("dag_")
    return log_paths.callbacks_path(
        settings.logs_folder,
        dag_id=notice.dag_id,
        run_id=notice.run_id,
        task_id=None if about_run or notice.ti is None else notice.ti["task_id"],
        map_index=-1 if notice.ti is None else notice.ti["map_index"],
    )


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
